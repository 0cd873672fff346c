"""From one matrix back to two of a given width, with the error."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from attention_jax import checks
from attention_jax.algebra import lowrank, tree
from attention_jax.types import Array, Float, Parameters


def factor(
    params: Parameters, *, head_dim: int, num_kv_heads: int | None = None
) -> tuple[dict[str, dict[str, Array]], Float[Array, ""]]:
    """Splits W_qk and W_ov into two factors of width `head_dim` by singular value decomposition.

    Heads of one group share a factor, so the group's matrices are stacked and decomposed together:
    `[W_h]_h = U S V^T`, cut after `head_dim`, with `U sqrt(S)` and `V sqrt(S)` as balanced factors
    and the largest entry of each column of U positive. Biases are one more row of the matrices, so
    that they are part of the decomposition and of the error. No factorisation of this width has a
    smaller error. Where `head_dim` exceeds the greatest possible rank, further columns are zero.

    The softmax scale is not part of the parameters: the factors stand for the same scores only if
    the separate layer keeps the merged layer's scale (pass `scale=old_head_dim ** -0.5` to
    `SeparateAttention` if `head_dim` is another width than the merged layer stands for).

    Args:
      params: Parameters of one layer with `qk`, `ov` or both.
      head_dim: Width of the factors K (and V).
      num_kv_heads: Number of key and value heads G, a divisor of H; by default that of `value` if
        it is there, else H.

    Returns:
      `(params, relative_error)`: the tree with `query` and `key` in place of `qk`, `value` and
      `out` in place of `ov`, in float32 or wider; and the Frobenius norm of what was cut, divided
      by that of the matrices, the larger one of QK and OV, a scalar; NaN if a weight is not finite.

    Raises:
      ValueError: Nothing is merged, or sizes do not fit.
      TypeError: A parameter or a size has the wrong kind.
      NotImplementedError: `factor` is differentiated, which has no meaning where singular values
        are equal.

    Example:
      >>> import jax
      >>> kernel = jax.random.normal(jax.random.key(0), (6, 2, 6))
      >>> out = {"kernel": kernel.transpose(1, 2, 0)}
      >>> params = {"qk": {"kernel": kernel}, "value": {"kernel": kernel}, "out": out}
      >>> factors, error = factor(params, head_dim=6)
      >>> sorted(factors), factors["key"]["kernel"].shape, bool(error < 1e-6)
      (['key', 'out', 'query', 'value'], (6, 2, 6), True)
      >>> bool(factor(params, head_dim=3)[1] > 0.1)
      True

    Paper: Eckart and Young (1936), for the optimality of the cut.
    """
    tree.check_layer(params)
    checks.check_positive_int("head_dim", head_dim)
    if "qk" not in params and "ov" not in params:
        raise checks.refuse(
            ValueError, "params", "qk or ov", sorted(params), "the layer is separate already"
        )
    heads = params["qk"]["kernel"].shape[1] if "qk" in params else params["ov"]["kernel"].shape[0]
    groups = _groups(params, heads, num_kv_heads)
    factors = tree.wide(params)
    errors = []
    if "qk" in params:
        query, key, error = _factor_qk(factors.pop("qk"), groups, head_dim)
        factors |= {"query": query, "key": key}
        errors.append(error)
    if "ov" in params:
        value, w_o, error = _factor_ov(factors.pop("ov"), groups, head_dim)
        factors["out"] = {"kernel": w_o} | factors.get("out", {})
        factors["value"] = value
        errors.append(error)
    return factors, jnp.max(jnp.stack(errors))


def _groups(params: Parameters, heads: int, num_kv_heads: int | None) -> int:
    present = params[name]["kernel"].shape[1] if (name := _kv(params)) else None
    groups = num_kv_heads if num_kv_heads is not None else present or heads
    checks.check_heads(heads, groups)
    if present not in (None, groups):
        raise checks.refuse(
            ValueError,
            "num_kv_heads",
            f"{present}, the heads of {name}",
            groups,
            "leave it out, or merge that part too",
        )
    return groups


def _kv(params: Parameters) -> str | None:
    return next((name for name in ("value", "key") if name in params), None)


def _factor_qk(
    qk: Parameters, groups: int, head_dim: int
) -> tuple[dict[str, Array], dict[str, Array], Array]:
    kernel = tree.homogeneous(qk, axis=0)
    if "row_kernel" in qk:
        column = jnp.concatenate([qk["row_kernel"], qk["row_bias"][None]], axis=0)
        kernel = jnp.concatenate([kernel, column[..., None]], axis=-1)
    inputs, heads, outputs = kernel.shape
    stacks = kernel.reshape(inputs, groups, heads // groups, outputs).transpose(1, 2, 0, 3)
    left, right, error = _balanced(stacks.reshape(groups, -1, outputs), head_dim)
    left = left.reshape(heads, inputs, head_dim).swapaxes(0, 1)
    right = right.swapaxes(0, 1)
    query, key = {"kernel": left[:-1]}, {"kernel": right}
    if "bias" in qk:
        query["bias"], key["bias"] = left[-1], jnp.zeros(right.shape[1:], right.dtype)
    if "row_kernel" in qk:
        key = {"kernel": right[:-1], "bias": right[-1]}
    return query, key, error


def _factor_ov(ov: Parameters, groups: int, head_dim: int) -> tuple[dict[str, Array], Array, Array]:
    kernel = tree.homogeneous(ov, axis=1)
    heads, inputs, outputs = kernel.shape
    stacks = kernel.reshape(groups, heads // groups, inputs, outputs).swapaxes(1, 2)
    left, right, error = _balanced(stacks.reshape(groups, inputs, -1), head_dim)
    left = left.swapaxes(0, 1)
    value = {"kernel": left[:-1]}
    if "bias" in ov:
        value["bias"] = left[-1]
    w_o = right.reshape(groups, heads // groups, outputs, head_dim).swapaxes(-1, -2)
    return value, w_o.reshape(heads, head_dim, outputs), error


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _balanced(
    matrices: Float[Array, "G N M"], width: int
) -> tuple[Float[Array, "G N R"], Float[Array, "G M R"], Float[Array, ""]]:
    """Returns factors of equal singular values with `left right^T` nearest to each matrix."""
    u, s, v = lowrank.decompose(matrices)
    kept = min(width, s.shape[-1])
    left, right = lowrank.halves(u, s, v, kept)
    padding = ((0, 0), (0, 0), (0, width - kept))
    left, right = (jnp.pad(x, padding) for x in (left, right))
    cut = jnp.where(jnp.arange(s.shape[-1])[None] < kept, 0.0, s)
    return left, right, lowrank.ratio(lowrank.norm(cut, (0, 1)), lowrank.norm(s, (0, 1)))


@_balanced.defjvp
def _balanced_jvp(width: int, primals: Any, tangents: Any) -> Any:
    raise checks.refuse(
        NotImplementedError,
        "factor",
        "no differentiation: factors turn freely where singular values are equal",
        "a derivative of factor",
        "differentiate a function of W_qk or W_ov themselves, and factor the result",
    )
