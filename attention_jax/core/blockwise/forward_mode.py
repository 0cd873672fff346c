"""A refusal of forward-mode differentiation that says what to do instead."""

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


def _refuse(*_: Any, **__: Any) -> Any:
    raise checks.refuse(
        NotImplementedError,
        "implementation",
        "'dense' in forward-mode differentiation (jax.jvp, jax.jacfwd, jax.hessian)",
        "the blockwise path, which has a reverse mode only",
        "pass implementation='dense', or use jax.grad, jax.vjp or jax.jacrev",
    )


_tangent_p = Primitive("blockwise_tangent")
_tangent_p.def_impl(_refuse)
_tangent_p.def_abstract_eval(lambda tangent: tangent)
ad.deflinear2(_tangent_p, lambda cotangent, _: [cotangent])
batching.defvectorized(_tangent_p)
mlir.register_lowering(_tangent_p, _refuse)
