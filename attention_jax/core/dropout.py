"""Which weights dropout keeps: a function of key, batch entry, head, query and key alone."""

import jax
import jax.numpy as jnp
from jax.extend.random import threefry2x32_p

from attention_jax.types import Array, Bool, DropoutKey, Int, UInt32

Words = UInt32[Array, "*B H 2"]


def words(key: DropoutKey, shape: tuple[int, ...]) -> Words:
    """Returns the seed of each batch entry and head, for `shape` = `[..., H]`."""
    return jax.random.bits(key, (*shape, 2), jnp.uint32)


def keep(
    seeds: Words, rate: float, queries: Int[Array, " T"], keys: Int[Array, " S"]
) -> Bool[Array, "*B H T S"]:
    """Returns which weights stay, each with probability `1 - rate`, independently.

    A weight's fate depends on its indices only, so that a block of the scores, another block size,
    another device or the backward pass finds the same one.

    Args:
      seeds: `[..., H, 2]`, of `words`.
      rate: In [0, 1).
      queries: Index of each query of the block.
      keys: Index of each key of the block.
    """
    shape = (*seeds.shape[:-1], queries.shape[0], keys.shape[0])
    ones = (1,) * (seeds.ndim - 1)
    words = (
        seeds[..., 0, None, None],
        seeds[..., 1, None, None],
        queries.astype(jnp.uint32).reshape(*ones, -1, 1),
        keys.astype(jnp.uint32).reshape(*ones, 1, -1),
    )
    bits, _ = threefry2x32_p.bind(*(jnp.broadcast_to(word, shape) for word in words))
    return bits < jnp.uint32(min(round((1.0 - rate) * 2**32), 2**32 - 1))
