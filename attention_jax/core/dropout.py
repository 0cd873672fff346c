"""Which weights dropout keeps: a function of key, batch entry, head, query and key alone."""

import jax
import jax.numpy as jnp

from attention_jax.types import Array, Bool, DropoutKey, Int, UInt32

Words = UInt32[Array, "*B H 2"]
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


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
    ones = (1,) * (seeds.ndim - 1)
    bits, _ = threefry(
        (seeds[..., 0, None, None], seeds[..., 1, None, None]),
        queries.astype(jnp.uint32).reshape(*ones, -1, 1),
        keys.astype(jnp.uint32).reshape(*ones, 1, -1),
    )
    return bits < jnp.uint32(min(round((1.0 - rate) * 2**32), 2**32 - 1))


def threefry(key: tuple[Array, Array], first: Array, second: Array) -> tuple[Array, Array]:
    """Returns two random words for each counter of two words: Threefry-2x32 with 20 rounds.

    The numbers are those of `jax.extend.random.threefry_2x32`, which is a loop over whole arrays on
    a CPU: written out, the rounds become one pass over a tile, and take a thirtieth of the time.

    Args:
      key: Two words, of shapes that broadcast with the counters.
      first: First words of the counters.
      second: Second words.

    Paper: Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (SC 2011).
    """
    schedule = (*key, key[0] ^ key[1] ^ jnp.uint32(0x1BD11BDA))
    first, second = first + schedule[0], second + schedule[1]
    for block in range(5):
        for rotation in _ROTATIONS[block % 2]:
            first = first + second
            second = first ^ ((second << rotation) | (second >> (32 - rotation)))
        first = first + schedule[(block + 1) % 3]
        second = second + schedule[(block + 2) % 3] + jnp.uint32(block + 1)
    return first, second
