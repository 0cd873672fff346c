"""Balanced factors: the nearest ones, and those that depend on the function alone."""

from typing import Any

import jax
import jax.numpy as jnp

from attention_jax import checks
from attention_jax.algebra import lowrank, pairs, tree
from attention_jax.algebra.gauge.change import sides_of, times
from attention_jax.positions import Position
from attention_jax.types import Array, Float, Parameters


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
    for side in sides_of(params, qk, ov, position):
        pair = pairs.split(balanced, side)
        one, other = (
            times(factor.swapaxes(1, 2), target)
            for factor, target in zip(pair, pairs.split(given, side), strict=True)
        )
        # The best turn of one set of columns towards another, Procrustes' problem.
        u, _, v = lowrank.decompose(one + other)
        turn = times(u, v.swapaxes(1, 2))
        balanced = pairs.join(balanced, side, (times(pair[0], turn), times(pair[1], turn)))
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
    sides, found = sides_of(params, qk, ov, position), tree.wide(params)
    for side in sides:
        found = pairs.join(found, side, _canonical(*pairs.split(found, side)))
    return found


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
