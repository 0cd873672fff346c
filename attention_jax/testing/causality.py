"""The assertion that no output sees the future."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from attention_jax.testing import compare
from attention_jax.types import Array


def assert_causal(
    function: Callable[[Array], Array],
    x: Array,
    *,
    key: Array | None = None,
    tolerance: float | None = None,
) -> None:
    """Asserts, at every position t, that outputs before t do not depend on inputs from t on.

    Args:
      function: From `[..., T, D]` to `[..., T, O]`; any callable. It is called T times.
      x: Inputs `[..., T, D]` with T of at least 2.
      key: Random key of the inputs that replace the future; fixed by default.
      tolerance: Relative to the largest output of each channel, or to 1; by default from the
        dtype.

    Raises:
      AssertionError: An output sees the future; the message names the first such position.
      ValueError: The inputs could not show a violation.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> import attention_jax as aj
      >>> x = jax.random.normal(jax.random.key(0), (2, 5, 4))
      >>> assert_causal(lambda x: aj.RawAttention().apply({}, x, mask=aj.causal()), x)
      >>> assert_causal(lambda x: aj.RawAttention().apply({}, x), x)
      Traceback (most recent call last):
      AssertionError: outputs before position 1 change with the inputs from position 1 on...
    """
    length = x.shape[-2] if x.ndim > 1 else 0
    if length < 2:
        raise compare.refuse_vacuous("x", "[..., T, D] with at least 2 tokens", f"shape {x.shape}")
    # Folded, because users draw their inputs with key 0 too, and equal inputs would change nothing.
    key = jax.random.fold_in(jax.random.key(0), 1) if key is None else key
    other = jax.random.normal(key, x.shape, x.dtype)
    expected = function(x)
    compare.check_differ(
        "function", "the output depends on the input", expected, function(other), tolerance
    )
    # A large channel must not hide a leak in a small one.
    sizes = jax.tree.map(_channel_sizes, expected)
    expected = jax.tree.map(_divide, expected, sizes)
    for t in range(1, length):
        changed = function(jnp.concatenate([x[..., :t, :], other[..., t:, :]], axis=-2))
        compare.assert_close(
            f"outputs before position {t} change with the inputs from position {t} on",
            jax.tree.map(lambda y, t=t: y[..., :t, :], expected),
            jax.tree.map(lambda y, size, t=t: _divide(y, size)[..., :t, :], changed, sizes),
            tolerance,
        )


def _channel_sizes(y: Array | np.ndarray) -> np.ndarray:
    """Returns the largest number of each channel, or 1 where that is less, `[..., 1, D]`."""
    y = np.asarray(y)
    largest = np.max(np.abs(y), axis=tuple(range(y.ndim - 1)), keepdims=True)
    return np.maximum(largest, np.ones_like(largest))


def _divide(y: Array | np.ndarray, sizes: np.ndarray) -> np.ndarray:
    return np.asarray(y) / sizes
