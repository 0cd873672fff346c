"""What blocks of the scores a mask hides, shows, or shows in part."""

import jax.numpy as jnp

from attention_jax.masks.arrays import extents, with_ndim
from attention_jax.masks.mask import Grid, Mask, Seen
from attention_jax.types import KeyPositions, QueryPositions


def seen_blocks(
    mask: Mask,
    query_positions: QueryPositions,
    key_positions: KeyPositions,
    query_size: int,
    key_size: int,
) -> Seen:
    """Returns for each pair of blocks whether some and whether all pairs of tokens are visible.

    Where that is not known without looking at each pair, the answers are True and False: such a
    block is rendered. Memory is in proportion to the number of blocks, or to the mask's own arrays.

    Args:
      mask: The mask.
      query_positions: `[..., T]`.
      key_positions: `[..., S]`.
      query_size: Number of queries of a block; the last one may be shorter.
      key_size: Number of keys of a block.

    Returns:
      Two boolean arrays that broadcast to `[..., H, query blocks, key blocks]`, of 4 axes or more.
    """
    grid = Grid(
        extents(query_positions, query_size), extents(key_positions, key_size), query_size, key_size
    )
    some, every = mask._seen(grid)
    # A mask that is wrongly sure of a pair of blocks must not show what it hides.
    every = every & some
    return with_ndim(jnp.asarray(some), 4), with_ndim(every, 4)
