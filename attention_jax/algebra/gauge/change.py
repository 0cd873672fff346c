"""Changes of gauge by given matrices."""

import jax.numpy as jnp

from attention_jax import checks
from attention_jax.algebra import lapack, lowrank, pairs, tree
from attention_jax.algebra.merge import check_one_matrix
from attention_jax.positions import Position, check_position
from attention_jax.types import Array, Float, Parameters


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
        changed = pairs.join(changed, side, (times(left, matrices), times(right, inverse)))
    return changed


def sides_of(params: Parameters, qk: bool, ov: bool, position: Position | None) -> list[str]:
    """Returns what is asked for, "qk" or "ov" or both, or raises where it cannot be changed."""
    tree.check_layer(params)
    checks.check_bool("qk", qk)
    checks.check_bool("ov", ov)
    check_position(position)
    if not (qk or ov):
        raise checks.refuse(
            ValueError, "qk, ov", "at least one of them True", "both False", "say what to change"
        )
    sides = [side for side, asked in (("qk", qk), ("ov", ov)) if asked]
    for side in sides:
        pairs.check_separate(params, side)
    if qk:
        check_one_matrix(params, position, "pass qk=False; values and outputs alone are possible")
    return sides


def times(a: Float[Array, "G M K"], b: Float[Array, "G K R"]) -> Float[Array, "G M R"]:
    """Returns the products `a b`."""
    return jnp.einsum("GMK,GKR->GMR", a, b, precision="highest")
