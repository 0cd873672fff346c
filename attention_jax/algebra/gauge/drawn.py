"""Random gauges."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from attention_jax.algebra import lapack, pairs, tree
from attention_jax.algebra.gauge.change import change, sides_of, times
from attention_jax.positions import Position, Rotary
from attention_jax.types import Array, DropoutKey, Float, Parameters


def random(
    params: Parameters,
    key: DropoutKey,
    *,
    qk: bool = True,
    ov: bool = True,
    position: Position | None = None,
) -> dict[str, dict[str, Array]]:
    """Changes the gauge by random matrices, which leave the function alone.

    They are those of `draw`, of condition number 4 at most.

    Args:
      params: Parameters of one layer, separate where it shall be changed.
      key: Random key.
      qk: Whether to change queries and keys.
      ov: Whether to change values and outputs.
      position: The layer's position encoding, which leaves no trace in the parameters.

    Returns:
      The parameters, in float32 or wider, with the same entries of the same shapes.

    Raises:
      NotImplementedError: QK-norm, or a rotation that is not `aj.Rotary`, stands between W_q and
        W_k. Such a norm does not see orthogonal matrices that keep the mean of the channels and
        commute with its gains, but all others.
      ValueError: `params` is not one layer, is merged, or nothing is asked for.
      TypeError: A parameter is not floating, or an argument has the wrong kind.

    Example:
      >>> import jax
      >>> import attention_jax as aj
      >>> x = jax.random.normal(jax.random.key(0), (5, 8))
      >>> module = aj.SeparateAttention(num_heads=2, position=aj.Rotary())
      >>> params = module.init(jax.random.key(1), x)["params"]
      >>> other = random(params, jax.random.key(2), position=aj.Rotary())
      >>> difference = module.apply({"params": other}, x) - module.apply({"params": params}, x)
      >>> bool(abs(difference).max() < 2e-6)
      True
    """
    rotary = position if isinstance(position, Rotary) else None
    sides, wide = sides_of(params, qk, ov, None if rotary else position), tree.wide(params)
    matrices = {}
    for side, drawn in zip(sides, jax.random.split(key), strict=False):
        left, _ = pairs.split(wide, side)
        turned = rotary if side == "qk" else None
        matrices[side] = draw(drawn, len(left), left.shape[2], left.dtype, turned)
    return change(params, **matrices)


def draw(
    key: DropoutKey, count: int, width: int, dtype: DTypeLike, position: Rotary | None = None
) -> Float[Array, "G K K"]:
    """Returns random invertible matrices of condition number 4 at most.

    `Q_1 diag(2^u) Q_2` with random orthogonal Q and u uniform in [-1, 1]. With a rotary encoding
    the channels that pass have such a matrix, and each rotated pair `2^u` times a rotation by a
    random angle, `[[a, c], [-c, a]]`: these, and no others, commute with all rotations.

    Args:
      key: Random key.
      count: Number of matrices G.
      width: Rows and columns K.
      dtype: Floating, 32 bits or more.
      position: A rotary encoding, or None.

    Raises:
      ValueError: `position` does not fit the width.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> matrix = draw(jax.random.key(0), 1, 4, jnp.float32)
      >>> bool(jnp.linalg.cond(matrix[0]) < 4)
      True
    """
    keys = jax.random.split(key, 4)
    rotated = 0 if position is None else position.width(width)
    sizes = jnp.exp2(jax.random.uniform(keys[0], (count, 1, width), dtype, -1.0, 1.0))
    matrices = jnp.zeros((count, width, width), dtype)
    if rotated < width:
        left, right = (_orthogonal(k, count, width - rotated, dtype) for k in keys[1:3])
        general = times(left * sizes[..., rotated:], right)
        matrices = matrices.at[:, rotated:, rotated:].set(general)
    if position is not None:
        half = rotated // 2
        order = np.arange(rotated).reshape((2, half) if position.style == "half" else (half, 2))
        first, second = order if position.style == "half" else order.T
        angles = 2 * np.pi * jax.random.uniform(keys[3], (count, half), dtype)
        a, c = (sizes[:, 0, :half] * turn(angles) for turn in (jnp.cos, jnp.sin))
        matrices = matrices.at[:, first, first].set(a).at[:, second, second].set(a)
        matrices = matrices.at[:, first, second].set(c).at[:, second, first].set(-c)
    return matrices


def _orthogonal(key: DropoutKey, count: int, width: int, dtype: DTypeLike) -> Array:
    q, r = lapack.qr(jax.random.normal(key, (count, width, width), dtype))
    # Without the signs the distribution would depend on how the decomposition chooses them.
    return q * jnp.where(jnp.diagonal(r, axis1=1, axis2=2) < 0, -1.0, 1.0)[:, None]
