"""How the scores are cut into tiles, none of which is as large as the scores."""

import math
from typing import NamedTuple

# Measured on CPUs with 4 MiB or more of cache, float32, widths 64 and 512: larger tiles leave the
# cache, smaller ones make slower matrix products. Accelerators want all heads and rows at once.
_MATRIX = 512
_CPU_TILE = 2**19
_ACCELERATOR_TILE = 2**25


class Plan(NamedTuple):
    """Sizes of a tile `[rows, heads, queries, keys]` of the scores `[B, H, T, S]`.

    Attributes:
      rows: Batch entries of a tile, a divisor of B.
      heads: Query heads of a tile, a divisor of H that holds whole groups, or parts of one group,
        of heads that share keys, and likewise values.
      queries: Queries of a block; the last block may be shorter.
      keys: Keys of a block.
    """

    rows: int
    heads: int
    queries: int
    keys: int


def plan(
    batch: int, heads: int, key_heads: int, value_heads: int, lengths: tuple[int, int], on_cpu: bool
) -> Plan:
    """Returns the tile for `batch` rows, H, G and N heads, and lengths `(T, S)`."""
    share_key, share_value = heads // key_heads, heads // value_heads
    fitting = [
        size
        for size in range(1, heads + 1)
        if heads % size == 0 and _whole(size, share_key) and _whole(size, share_value)
    ]
    # Heads that share keys stand below each other in one matrix product; so do those that share
    # values. Where the two differ, a quarter of a product's rows per head is a compromise.
    sharing = max(share_key, share_value)
    at_once = sharing if share_key == share_value else min(sharing, 4)
    unit = max(size for size in fitting if size <= at_once)
    queries = _even(lengths[0], max(_MATRIX // unit, 8))
    keys = _even(lengths[1], _MATRIX)
    limit = _CPU_TILE if on_cpu else _ACCELERATOR_TILE
    spare = max(limit // (unit * queries * keys), 1)
    # Rows before heads: a batch is what is cut over devices most often.
    rows = max(size for size in range(1, batch + 1) if batch % size == 0 and size <= spare)
    spare_heads = [size for size in fitting if size % unit == 0 and size * rows <= unit * spare]
    return Plan(rows, max(spare_heads, default=unit), queries, keys)


def _even(length: int, most: int) -> int:
    """Returns a size of at most about `most` that leaves no short last block."""
    size = math.ceil(length / math.ceil(length / most))
    return min(length, math.ceil(size / 8) * 8)


def _whole(size: int, share: int) -> bool:
    return math.gcd(size, share) == min(size, share)
