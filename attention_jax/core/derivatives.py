"""Refusals of derivatives that only the dense path has, which say what to do instead."""

from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from attention_jax import checks
from attention_jax.types import Array


@jax.custom_jvp
def reverse_mode_only(x: Array) -> Array:
    """Returns `x`; its tangent can be transposed, which reverse mode does, but not evaluated."""
    return x


@reverse_mode_only.defjvp
def _jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    return reverse_mode_only(*primals), _tangent_p.bind(*tangents)


@jax.custom_jvp
def first_order_only(x: Array) -> Array:
    """Returns `x`, which must not be differentiated: it stands in a backward pass."""
    return x


@first_order_only.defjvp
def _second_order(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    del primals, tangents
    raise _refusal("second derivatives (jax.grad of jax.grad, jax.hessian)", "first ones only")


def _refuse(*_: Any, **__: Any) -> Any:
    raise _refusal(
        "forward-mode differentiation (jax.jvp, jax.jacfwd, jax.hessian)", "a reverse mode only"
    )


def _refusal(what: str, has: str) -> Exception:
    return checks.refuse(
        NotImplementedError,
        "implementation",
        f"'dense' in {what}",
        f"the blockwise path or a kernel, which have {has}",
        "pass implementation='dense'",
    )


_tangent_p = Primitive("reverse_mode_only_tangent")
_tangent_p.def_impl(_refuse)
_tangent_p.def_abstract_eval(lambda tangent: tangent)
ad.deflinear2(_tangent_p, lambda cotangent, _: [cotangent])
batching.defvectorized(_tangent_p)
mlir.register_lowering(_tangent_p, _refuse)
