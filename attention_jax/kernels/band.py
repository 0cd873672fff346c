"""The band of scores around the diagonal that a mask shows, as splash attention takes masks.

Importing this module imports Pallas, which is slow: import it inside functions.
"""

import dataclasses
import functools
import operator
from typing import Any

import numpy as np
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as splash_mask


@dataclasses.dataclass(frozen=True)
class Band(splash_mask.Mask):
    """Shows query q the keys from `q + offset - before` to `q + offset + after`, below `keys`.

    The kernel evaluates it in its blocks, and skips those that it hides. Equal bands are equal, so
    that JAX traces the kernel once.

    Attributes:
      size: Numbers of queries and of keys, filled up to whole blocks.
      offset: Position of the first query.
      before: How many keys before its own position a query sees, or None for all.
      after: How many after it, or None for all.
      keys: Number of keys that are no filling.
    """

    size: tuple[int, int]
    offset: int
    before: int | None
    after: int | None
    keys: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Size of the scores."""
        return self.size

    @property
    def q_sequence(self) -> np.ndarray:
        """The indices of queries that the kernel passes to `mask_function`."""
        return np.arange(self.size[0], dtype=np.int32)

    @property
    def mask_function(self) -> "Band":
        """What the kernel calls with indices; unlike bound methods, equal for equal bands."""
        return self

    def __call__(self, queries: Any, keys: Any) -> Any:
        """Returns which of the pairs of indices are visible."""
        limits = []
        if self.keys < self.size[1]:
            limits.append(keys < self.keys)
        if self.before is not None:
            limits.append(keys >= queries + (self.offset - self.before))
        if self.after is not None:
            limits.append(keys <= queries + (self.offset + self.after))
        return functools.reduce(operator.and_, limits)

    def __getitem__(self, index: tuple[slice, slice]) -> np.ndarray:
        """Returns a block of the mask in NumPy."""
        rows, columns = (
            np.arange(*part.indices(size), dtype=np.int32)
            for part, size in zip(index, self.size, strict=True)
        )
        return np.broadcast_to(self(rows[:, None], columns[None, :]), (len(rows), len(columns)))


def mask_of(
    size: tuple[int, int], offset: int, before: int | None, after: int | None, keys: int
) -> splash_mask.Mask:
    """Returns a band, or the mask that shows everything if the band does."""
    queries = size[0]
    # Limits beyond all tokens are dropped before they could overflow.
    before = None if before is None or before >= offset + queries - 1 else before
    after = None if after is None or after >= keys - 1 - offset else after
    if before is None and after is None and keys == size[1]:
        return splash_mask.FullMask(size)
    return Band(size, offset, before, after, keys)
