"""The public functions that build masks."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attention_jax import checks
from attention_jax.masks.kinds import Causal, Padding, Segments, SlidingWindow
from attention_jax.masks.mask import Mask
from attention_jax.types import Array, Int


def causal() -> Mask:
    """Lets each query attend the keys at its own and earlier positions: `key <= query`.

    The comparison is between positions. Without explicit ones the last query stands at the last
    key, so one query against S cached keys sees all of them.

    Returns:
      A mask object.

    Example:
      >>> import jax.numpy as jnp
      >>> causal().render(jnp.arange(3), jnp.arange(3)).astype(int)[0].tolist()
      [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    """
    return Causal()


def sliding_window(width: int) -> Mask:
    """Lets each query attend the keys nearer than `width`: `|query - key| < width`.

    It looks both ways; `causal() & sliding_window(width)` lets a query see `width` keys, itself
    included.

    Args:
      width: At least 1; with 1 each query sees the key at its own position only.

    Returns:
      A mask object.

    Raises:
      ValueError: `width` is below 1.
      TypeError: `width` is not an integer.

    Example:
      >>> import jax.numpy as jnp
      >>> positions = jnp.arange(5)
      >>> sliding_window(2).render(positions, positions).sum(-1)[0].tolist()
      [2, 3, 3, 3, 2]
      >>> (causal() & sliding_window(2)).render(positions, positions).sum(-1)[0].tolist()
      [1, 2, 2, 2, 2]
    """
    return SlidingWindow(width)


def padding(lengths: Int[Array, "*B"] | Any) -> Mask:
    """Hides the keys from position `lengths` on, and keys at negative positions.

    Args:
      lengths: Number of real keys in each row of the batch, integers of shape `[...]` equal to the
        batch axes (or a single integer for all rows).

    Returns:
      A mask object.

    Raises:
      TypeError: `lengths` are not integers.
      ValueError: A length is negative.

    Example:
      >>> import jax.numpy as jnp
      >>> mask = padding(jnp.array([3, 1])).render(jnp.arange(3), jnp.arange(3))
      >>> mask.shape, mask[:, 0, 0].astype(int).tolist()
      ((2, 1, 1, 3), [[1, 1, 1], [1, 0, 0]])
    """
    lengths = _integers("lengths", lengths)
    if not isinstance(lengths, jax.core.Tracer) and np.any(np.asarray(lengths) < 0):
        raise checks.refuse(
            ValueError, "lengths", "numbers of keys, none negative", lengths, "use 0 for no keys"
        )
    return Padding(lengths)


def segments(
    query_ids: Int[Array, "*B T"] | Any, key_ids: Int[Array, "*B S"] | Any | None = None
) -> Mask:
    """Lets a query attend the keys of its own segment: `query_id == key_id and query_id > 0`.

    Documents packed into one row are numbered from 1. An id of 0 or below marks padding, which
    attends nothing and is attended by nothing.

    Args:
      query_ids: Integers `[..., T]`.
      key_ids: Integers `[..., S]`; `query_ids` if None.

    Returns:
      A mask object.

    Raises:
      TypeError: The ids are not integers.
      ValueError: The ids have no axis.

    Example:
      >>> import jax.numpy as jnp
      >>> ids = jnp.array([1, 1, 2, 0])
      >>> segments(ids).render(jnp.arange(4), jnp.arange(4)).astype(int)[0].tolist()
      [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]
    """
    query_ids = _integers("query_ids", query_ids)
    key_ids = query_ids if key_ids is None else _integers("key_ids", key_ids)
    for name, ids in (("query_ids", query_ids), ("key_ids", key_ids)):
        if ids.ndim < 1:
            raise checks.refuse(
                ValueError, name, "shape [..., length]", f"shape {ids.shape}", "one id per token"
            )
    return Segments(query_ids, key_ids)


def _integers(name: str, x: Any) -> Array:
    if checks.is_array(x) or isinstance(x, int | list | tuple):
        checks.check_int32(name, x)
        x = jnp.asarray(x)
        if jnp.issubdtype(x.dtype, jnp.integer):
            return x
    got = x.dtype if checks.is_array(x) else type(x).__name__
    raise checks.refuse(TypeError, name, "integers", got, "pass an integer array")
