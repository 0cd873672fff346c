"""How many pairs of query and key a mask leaves."""

import math

import jax.numpy as jnp
import numpy as np

from attention_jax import checks
from attention_jax.masks import Mask, check_mask, seen_blocks
from attention_jax.positions import positions_or_default
from attention_jax.types import BooleanMask, KeyPositions, QueryPositions

_BLOCK = 512


def attended_pairs(
    mask: Mask | BooleanMask | None,
    *,
    query_length: int,
    key_length: int | None = None,
    batch_size: int = 1,
    num_heads: int = 1,
    query_positions: QueryPositions | None = None,
    key_positions: KeyPositions | None = None,
) -> int:
    """Counts the pairs of query and key that may attend, over all batch entries and heads.

    The mask counts them itself: blocks that it hides or shows whole are not looked at.

    Args:
      mask: A mask object, booleans that broadcast to `[B, H, T, S]`, or None.
      query_length: T.
      key_length: S; by default T.
      batch_size: B.
      num_heads: H.
      query_positions: `[..., T]`; by default the last query stands at the last key.
      key_positions: `[..., S]`; by default 0, 1, ..., S - 1.

    Returns:
      The number of pairs.

    Raises:
      ValueError: A size is not positive, or the mask does not fit.
      TypeError: A size is not an integer, or the mask is not boolean.

    Example:
      >>> from attention_jax.masks import causal, sliding_window
      >>> attended_pairs(causal(), query_length=1000)
      500500
      >>> attended_pairs(causal() & sliding_window(10), query_length=1000)
      9955
    """
    key_length = query_length if key_length is None else key_length
    for name, size in (
        ("query_length", query_length),
        ("key_length", key_length),
        ("batch_size", batch_size),
        ("num_heads", num_heads),
    ):
        checks.check_positive_int(name, size)
    shape = (batch_size, num_heads, query_length, key_length)
    queries, keys = positions_or_default(
        query_positions, key_positions, (batch_size, query_length), (batch_size, key_length)
    )
    checked = check_mask(mask, shape, queries, keys)
    if checked is None:
        return math.prod(shape)
    blocks = tuple(math.ceil(length / _BLOCK) for length in (query_length, key_length))
    some, every = (
        np.broadcast_to(np.asarray(seen), (*seen.shape[:2], *blocks))
        for seen in seen_blocks(checked, queries, keys, _BLOCK, _BLOCK)
    )
    # A block is looked at as a whole, for all batch entries and heads at once.
    somewhere, everywhere = np.any(some, (0, 1)), np.all(every, (0, 1))
    count = 0
    for i, j in np.argwhere(somewhere).tolist():
        rows = slice(i * _BLOCK, min((i + 1) * _BLOCK, query_length))
        columns = slice(j * _BLOCK, min((j + 1) * _BLOCK, key_length))
        pairs = batch_size * num_heads * (rows.stop - rows.start) * (columns.stop - columns.start)
        if everywhere[i, j]:
            count += pairs
            continue
        visible = checked.render(
            queries[..., rows],
            keys[..., columns],
            query_start=jnp.asarray(rows.start),
            key_start=jnp.asarray(columns.start),
        )
        # Axes of size 1 stand for all batch entries, heads, queries or keys.
        count += int(jnp.sum(visible)) * (pairs // visible.size)
    return count
