"""Softmax over the keys that a mask shows."""

import jax
import jax.numpy as jnp

from attention_jax.types import Array, BooleanMask, Float


def masked_softmax(
    scores: Float[Array, "... S"], mask: BooleanMask | None
) -> Float[Array, "... S"]:
    """Normalises the exponentials of the visible scores: `exp(s_j) / sum_visible exp(s_i)`.

    A row without a visible key is zero, and its gradients are zero.

    Args:
      scores: `[..., H, T, S]`, in the precision in which the sums shall be taken.
      mask: Booleans with as many axes as the scores, each of full size or 1; None shows every key.

    Returns:
      Weights of the shape and dtype of the scores; each row sums to 1, or is zero.

    Example:
      >>> import jax.numpy as jnp
      >>> visible = jnp.array([[True, True, False], [False, False, False]])
      >>> masked_softmax(jnp.zeros((2, 3)), visible).tolist()
      [[0.5, 0.5, 0.0], [0.0, 0.0, 0.0]]
    """
    if mask is not None:
        scores = jnp.where(mask, scores, -jnp.inf)
    return _softmax(scores)


@jax.custom_jvp
def _softmax(scores: Array) -> Array:
    peak = jnp.max(scores, axis=-1, keepdims=True)
    # With no visible key the peak is -inf, and -inf - -inf would be NaN.
    peak = jnp.where(jnp.isneginf(peak), 0.0, peak)
    exponentials = jnp.exp(scores - peak)
    total = jnp.sum(exponentials, axis=-1, keepdims=True)
    return exponentials / jnp.where(total == 0.0, 1.0, total)


@_softmax.defjvp
def _softmax_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (scores,), (tangent,) = primals, tangents
    # The general rule would divide by the total once more and keep three arrays instead of one.
    weights = _softmax(scores)
    product = weights * tangent
    return weights, product - weights * jnp.sum(product, axis=-1, keepdims=True)
