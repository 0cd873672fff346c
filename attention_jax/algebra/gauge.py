"""The gauge of a separate layer: the choice of factors of W_qk and W_ov, which no output sees.

For each key head any invertible A gives the same scores, `(W_q A) (W_k A^-T)^T = W_q W_k^T`, and
for each value head the same outputs, `(W_v A) (A^-1 W_o) = W_v W_o`.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from attention_jax import checks
from attention_jax.algebra import lapack, lowrank, pairs, tree
from attention_jax.algebra.merge import check_one_matrix
from attention_jax.positions import Position, Rotary, check_position
from attention_jax.types import Array, DropoutKey, Float, Parameters


def change(
    params: Parameters,
    *,
    qk: Float[Array, "G K K"] | None = None,
    ov: Float[Array, "N V V"] | None = None,
) -> dict[str, dict[str, Array]]:
    """Changes the basis inside heads: `W_q A, W_k A^-T` and `W_v A, A^-1 W_o`, biases too.

    With QK-norm, or rotation that A does not commute with, it changes the function.

    Args:
      params: Parameters of one layer, separate where a matrix is given.
      qk: An invertible A for each key head; its query heads share it.
      ov: An invertible A for each value head; its query heads share it.

    Returns:
      The parameters, in float32 or wider. A singular matrix gives numbers that are not finite.

    Raises:
      ValueError: The layer has no such pair of factors, or a shape does not fit.
      TypeError: A parameter or a matrix is not floating.

    Example:
      >>> import jax.numpy as jnp
      >>> params = {name: {"kernel": jnp.ones((1, 1, 1))} for name in ("query", "key", "value")}
      >>> params["out"] = {"kernel": jnp.ones((1, 1, 1))}
      >>> changed = change(params, qk=jnp.full((1, 1, 1), 2.0))
      >>> changed["query"]["kernel"].item(), changed["key"]["kernel"].item()
      (2.0, 0.5)
    """
    tree.check_layer(params)
    changed = tree.wide(params)
    for side, matrices in (("qk", qk), ("ov", ov)):
        if matrices is None:
            continue
        pairs.check_separate(params, side)
        checks.check_floating(side, matrices)
        left, right = pairs.split(changed, side)
        expected = (len(left), left.shape[2], left.shape[2])
        if matrices.shape != expected:
            raise checks.refuse(
                ValueError,
                side,
                f"one matrix for each key or value head, shape {expected}",
                f"shape {matrices.shape}",
                "query heads that share a key head share its matrix",
            )
        matrices = lowrank.wide(matrices)
        inverse = lapack.inverse(matrices).swapaxes(1, 2)
        changed = pairs.join(changed, side, (_times(left, matrices), _times(right, inverse)))
    return changed


def balance(
    params: Parameters, *, qk: bool = True, ov: bool = True, position: Position | None = None
) -> dict[str, dict[str, Array]]:
    """Returns the nearest layer of the same function whose factors are balanced.

    `W_q^T W_q = W_k^T W_k` and `W_v^T W_v = W_o W_o^T` for each key and value head, summed over the
    query heads that share it, a bias being one more row. Then the squared factors have the smallest
    sum possible, `2 (s_1 + s_2 + ...)` with the singular values of the product. Of all balanced
    factors, which differ by an orthogonal matrix, these have the smallest sum of squared
    differences to those given; a balanced layer stays as it is. `canonical` returns others, which
    depend on the function alone.

    Args:
      params: Parameters of one layer, separate where it shall be balanced.
      qk: Whether to balance queries and keys.
      ov: Whether to balance values and outputs.
      position: The layer's position encoding, which leaves no trace in the parameters.

    Returns:
      The parameters, in float32 or wider, with the same entries of the same shapes. What a factor
      has beyond the rank of the product, and the product does not see, is lost.

    Raises:
      NotImplementedError: A rotary encoding or QK-norm stands between W_q and W_k, or `balance` is
        differentiated.
      ValueError: `params` is not one layer, is merged, or nothing is asked for.
      TypeError: A parameter is not floating, or an argument has the wrong kind.

    Example:
      >>> import jax.numpy as jnp
      >>> one, two = {"kernel": jnp.full((1, 1, 1), 2.0)}, {"kernel": jnp.full((1, 1, 1), 8.0)}
      >>> params = balance({"query": one, "key": two, "value": one, "out": one})
      >>> [round(params[name]["kernel"].item(), 5) for name in ("query", "key", "out")]
      [4.0, 4.0, 2.0]
    """
    balanced, given = canonical(params, qk=qk, ov=ov, position=position), tree.wide(params)
    for side in _asked(qk, ov):
        pair = pairs.split(balanced, side)
        one, other = (
            _times(factor.swapaxes(1, 2), target)
            for factor, target in zip(pair, pairs.split(given, side), strict=True)
        )
        # The best turn of one set of columns towards another, Procrustes' problem.
        u, _, v = lowrank.decompose(one + other)
        turn = _times(u, v.swapaxes(1, 2))
        balanced = pairs.join(balanced, side, (_times(pair[0], turn), _times(pair[1], turn)))
    return balanced


def canonical(
    params: Parameters, *, qk: bool = True, ov: bool = True, position: Position | None = None
) -> dict[str, dict[str, Array]]:
    """Returns the one layer that stands for all of the same function.

    With `U S V^T` the singular value decomposition of the product of a key or value head's factors,
    they become `U sqrt(S)` and `V sqrt(S)`: balanced, singular values descending, the largest entry
    of each column of U positive, as `factor` returns them. Query heads that share a head are
    stacked, and biases are one more row, so that all terms of the scores stay, those too that a
    soft cap sees. Where nonzero singular values are equal, their columns may turn among each other.
    The decomposition is that of a K x K core; nothing as large as the product is made.

    Args:
      params: Parameters of one layer, separate where its factors shall be replaced.
      qk: Whether to replace the factors of queries and keys.
      ov: Whether to replace the factors of values and outputs.
      position: The layer's position encoding, which leaves no trace in the parameters.

    Returns:
      The parameters, in float32 or wider, with the same entries of the same shapes. Columns beyond
      the greatest possible rank are zero.

    Raises:
      NotImplementedError: A rotary encoding or QK-norm stands between W_q and W_k, or `canonical`
        is differentiated.
      ValueError: `params` is not one layer, is merged, or nothing is asked for.
      TypeError: A parameter is not floating, or an argument has the wrong kind.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> import attention_jax as aj
      >>> module = aj.SeparateAttention(num_heads=2)
      >>> params = module.init(jax.random.key(0), jnp.ones((1, 3, 8)))["params"]
      >>> other = aj.gauge.random(params, jax.random.key(1))
      >>> differences = [abs(one["query"]["kernel"] - two["query"]["kernel"]).max() for one, two in
      ...                ((params, other), (canonical(params), canonical(other)))]
      >>> bool(differences[0] > 0.1), bool(differences[1] < 1e-5)
      (True, True)
    """
    _check(params, qk, ov, position)
    found = tree.wide(params)
    for side in _asked(qk, ov):
        found = pairs.join(found, side, _canonical(*pairs.split(found, side)))
    return found


def random(
    params: Parameters,
    key: DropoutKey,
    *,
    qk: bool = True,
    ov: bool = True,
    position: Position | None = None,
) -> dict[str, dict[str, Array]]:
    """Changes the gauge by random matrices; the function stays exactly the same.

    The matrices are those of `draw`, well conditioned, and with a rotary encoding such that commute
    with it.

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
        W_k. The norm of this library leaves orthogonal matrices alone, and of these only such that
        keep the mean of the channels and commute with its gains.
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
    _check(params, qk, ov, None if rotary else position)
    matrices = {}
    for side, drawn in zip(_asked(qk, ov), jax.random.split(key), strict=False):
        left, _ = pairs.split(tree.wide(params), side)
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
        general = _times(left * sizes[..., rotated:], right)
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


def _asked(qk: bool, ov: bool) -> list[str]:
    return [side for side, asked in (("qk", qk), ("ov", ov)) if asked]


def _check(params: Parameters, qk: bool, ov: bool, position: Position | None) -> None:
    tree.check_layer(params)
    checks.check_bool("qk", qk)
    checks.check_bool("ov", ov)
    check_position(position)
    if not (qk or ov):
        raise checks.refuse(
            ValueError, "qk, ov", "at least one of them True", "both False", "say what to change"
        )
    for side in _asked(qk, ov):
        pairs.check_separate(params, side)
    if qk:
        check_one_matrix(params, position, "pass qk=False; values and outputs alone are possible")


@jax.custom_jvp
def _canonical(left: Float[Array, "G M K"], right: Float[Array, "G N K"]) -> pairs.Pair:
    u, s, v = lowrank.decompose(left, right)
    padding = ((0, 0), (0, 0), (0, left.shape[2] - s.shape[1]))
    left, right = (jnp.pad(half, padding) for half in lowrank.halves(u, s, v, s.shape[1]))
    return left, right


@_canonical.defjvp
def _canonical_jvp(primals: Any, tangents: Any) -> Any:
    raise checks.refuse(
        NotImplementedError,
        "gauge",
        "no differentiation: factors turn freely where singular values are equal",
        "a derivative of balance or canonical",
        "differentiate a function of the layer, and change the gauge of the result",
    )


def _times(a: Float[Array, "G M K"], b: Float[Array, "G K R"]) -> Float[Array, "G M R"]:
    return jnp.einsum("GMK,GKR->GMR", a, b, precision="highest")
