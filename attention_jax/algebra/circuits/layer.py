"""The circuits of one layer."""

import jax.numpy as jnp

from attention_jax import checks
from attention_jax.algebra import tree
from attention_jax.algebra.circuits.circuit import Circuit
from attention_jax.types import Array, Float, Parameters


def qk(params: Parameters, *, homogeneous: bool = False) -> Circuit:
    """Returns W_qk of each head, `(D, E)`: scores are `x W_qk y^T`, apart from biases and scale.

    Args:
      params: Parameters of one layer, separate (grouped heads too) or merged. What may stand
        between the factors (rotation, QK-norm) is not part of the matrix.
      homogeneous: Whether biases are part of the matrix, as one more row and column: `(D + 1,
        E + 1)`, so that scores are `[x, 1] W [y, 1]^T`, apart from the scale. A merged layer
        without row terms has none of what is constant along a row of scores; softmax cannot see it.

    Raises:
      ValueError: `params` is not one layer.
      TypeError: A parameter is not floating, or `homogeneous` is not a bool.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> import attention_jax as aj
      >>> module = aj.SeparateAttention(num_heads=2)
      >>> params = module.init(jax.random.key(0), jnp.ones((1, 3, 8)))["params"]
      >>> qk(params).matrix().shape, qk(params).rank().tolist()
      ((2, 8, 8), [4, 4])
      >>> qk(params, homogeneous=True).matrix().shape
      (2, 9, 9)
    """
    params = _checked(params, homogeneous)
    if "qk" in params:
        kernel = merged_qk(params["qk"]) if homogeneous else params["qk"]["kernel"]
        return Circuit(kernel.swapaxes(0, 1))
    w_q, w_k = (_kernel(params[name], 0, homogeneous) for name in tree.SEPARATE_QK)
    w_k = jnp.repeat(w_k, w_q.shape[1] // w_k.shape[1], axis=1)
    return Circuit(w_q.swapaxes(0, 1), w_k.swapaxes(0, 1))


def ov(params: Parameters, *, homogeneous: bool = False) -> Circuit:
    """Returns W_ov of each head, `(F, O)`: what the head writes for a token it attends.

    Args:
      params: Parameters of one layer, separate (grouped heads too) or merged.
      homogeneous: Whether the bias of the values is part of the matrix, as one more row:
        `(F + 1, O)`, so that the head writes `[y, 1] W` for a token y.

    Raises:
      ValueError: `params` is not one layer.
      TypeError: A parameter is not floating, or `homogeneous` is not a bool.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> import attention_jax as aj
      >>> module = aj.MergedAttention(num_heads=2, ov="merged")
      >>> params = module.init(jax.random.key(0), jnp.ones((1, 3, 8)))["params"]
      >>> ov(params).matrix().shape, ov(params).rank(1e-5).tolist()
      ((2, 8, 8), [4, 4])
    """
    params = _checked(params, homogeneous)
    if "ov" in params:
        return Circuit(_kernel(params["ov"], 1, homogeneous))
    w_v, w_o = _kernel(params["value"], 0, homogeneous), params["out"]["kernel"]
    w_v = jnp.repeat(w_v, w_o.shape[0] // w_v.shape[1], axis=1)
    return Circuit(w_v.swapaxes(0, 1), w_o.swapaxes(1, 2))


def merged_qk(entries: Parameters) -> Float[Array, "D H E"]:
    """Returns `[[W, w], [u, c]]` of a merged QK, zeros where a term is missing."""
    rows = tree.homogeneous(entries, axis=0)
    column = jnp.zeros(rows.shape[:2], rows.dtype)
    if "row_kernel" in entries:
        column = tree.homogeneous(
            {"kernel": entries["row_kernel"], "bias": entries["row_bias"]}, axis=0
        )
    return jnp.concatenate([rows, column[..., None]], axis=-1)


def _checked(params: Parameters, homogeneous: bool) -> dict[str, dict[str, Array]]:
    tree.check_layer(params)
    checks.check_bool("homogeneous", homogeneous)
    return tree.wide(params)


def _kernel(entries: Parameters, axis: int, homogeneous: bool) -> Array:
    return tree.homogeneous(entries, axis) if homogeneous else entries["kernel"]
