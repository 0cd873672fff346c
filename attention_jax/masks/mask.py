"""Mask objects: frozen dataclasses and pytrees, rendered from positions, whole or per block."""

import dataclasses
import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from attention_jax import checks
from attention_jax.masks.arrays import (
    Extents,
    Start,
    one_batch_axis,
    split_blocks,
    take,
    with_ndim,
)
from attention_jax.types import Array, Bool, BooleanMask, KeyPositions, QueryPositions

Rendered = Bool[Array, "..."]


class Block(NamedTuple):
    """The part of the scores that a mask is rendered for; see `Mask.render`."""

    query_positions: QueryPositions
    key_positions: KeyPositions
    query_start: Start
    key_start: Start


class Grid(NamedTuple):
    """Blocks of queries and blocks of keys, each pair of which is hidden, visible, or in part.

    Attributes:
      queries: Positions of the queries.
      keys: Positions of the keys.
      query_size: Number of queries of a block.
      key_size: Number of keys of a block.
    """

    queries: Extents
    keys: Extents
    query_size: int
    key_size: int


Seen = tuple[Rendered, Rendered]
"""Whether some and whether all pairs of a block may be visible, `[..., blocks, blocks]`."""
Select = Callable[[Array], Array]


class Mask:
    """Base of all masks: `a & b` is the mask that allows what both allow."""

    # NumPy would otherwise apply `&` to a mask element by element.
    __array_ufunc__ = None

    def __init_subclass__(cls, **settings: Any) -> None:
        """Forgets what a base class knows of blocks where a subclass shows something else."""
        super().__init_subclass__(**settings)
        if "_visible" in cls.__dict__ and "_seen" not in cls.__dict__:
            cls._seen = Mask._seen  # type: ignore[method-assign]

    def __and__(self, other: "Mask | BooleanMask") -> "Mask":
        """Returns the intersection with another mask or a boolean array."""
        return All((*parts(self), *parts(as_mask(other))))

    def __rand__(self, other: BooleanMask) -> "Mask":
        """Returns the intersection with a boolean array on the left."""
        return as_mask(other) & self

    def render(
        self,
        query_positions: QueryPositions,
        key_positions: KeyPositions,
        *,
        query_start: Start = 0,
        key_start: Start = 0,
    ) -> Rendered:
        """Returns the mask as booleans that broadcast to `[..., H, T, S]`.

        Args:
          query_positions: Position of each query of the block, `[..., T]`.
          key_positions: Position of each key of the block, `[..., S]`.
          query_start: Index of the block's first query; only masks that hold one entry per token
            (segments, arrays) use it, to take their part.
          key_start: Index of the block's first key.

        Returns:
          `[..., 1 or H, 1 or T, 1 or S]`, True where the query may attend the key.
        """
        queries, keys = checks.signed(query_positions), checks.signed(key_positions)
        return self._visible(Block(queries, keys, query_start, key_start))

    def _visible(self, block: Block) -> Rendered:
        raise NotImplementedError

    def _seen(self, grid: Grid) -> Seen:
        """Returns what is known without looking at each pair: by default nothing."""
        return jnp.array(True), jnp.array(False)

    def _rows(self, batch: tuple[int, ...]) -> "Mask":
        """Returns the mask with one batch axis, of size 1 or the product of `batch`."""
        if jax.tree.leaves(self):
            raise checks.refuse(
                NotImplementedError,
                "mask",
                "a mask without arrays, or one of this library",
                type(self).__name__,
                "use implementation='dense', or pass the mask as booleans [..., H, T, S]",
            )
        return self

    def _select(self, rows: Select, heads: Select) -> "Mask":
        """Returns the part of a mask of `_rows` for some rows, and for some heads (axis 1)."""
        del heads
        return jax.tree.map(rows, self)

    def check_lengths(self, query_length: int, key_length: int) -> None:
        """Raises ValueError if the mask holds entries for other lengths than T and S."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Explicit(Mask):
    """A boolean array that broadcasts to `[..., H, T, S]`, as a mask object."""

    array: BooleanMask

    def _visible(self, block: Block) -> Rendered:
        rows = take(self.array, block.query_start, block.query_positions, axis=-2)
        return take(rows, block.key_start, block.key_positions, axis=-1)

    def _seen(self, grid: Grid) -> Seen:
        blocks = split_blocks(split_blocks(self.array, grid.key_size, -1), grid.query_size, -3)
        return blocks.any(axis=(-3, -1)), blocks.all(axis=(-3, -1))

    def _rows(self, batch: tuple[int, ...]) -> Mask:
        return Explicit(one_batch_axis(self.array, batch, 3))

    def _select(self, rows: Select, heads: Select) -> Mask:
        return Explicit(heads(rows(self.array)))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class All(Mask):
    """The intersection of masks; what `&` returns."""

    masks: tuple[Mask, ...]

    def _visible(self, block: Block) -> Rendered:
        return _intersection([mask._visible(block) for mask in self.masks])

    def _seen(self, grid: Grid) -> Seen:
        some, every = zip(*(mask._seen(grid) for mask in self.masks), strict=True)
        return _intersection(some), _intersection(every)

    def _rows(self, batch: tuple[int, ...]) -> Mask:
        return All(tuple(mask._rows(batch) for mask in self.masks))

    def _select(self, rows: Select, heads: Select) -> Mask:
        return All(tuple(mask._select(rows, heads) for mask in self.masks))

    def check_lengths(self, query_length: int, key_length: int) -> None:  # noqa: D102
        for mask in self.masks:
            mask.check_lengths(query_length, key_length)


def as_mask(mask: Mask | BooleanMask) -> Mask:
    """Returns `mask` as a mask object; boolean arrays are wrapped, numeric ones refused."""
    if isinstance(mask, Mask):
        return mask
    if not checks.is_array(mask):
        raise checks.refuse(
            TypeError,
            "mask",
            "a mask object, a boolean array or None",
            type(mask).__name__,
            "build it with aj.causal(), aj.padding(lengths) or jnp.asarray(..., bool)",
        )
    if mask.dtype != jnp.bool_:
        raise checks.refuse(
            TypeError,
            "mask",
            "booleans, True where a query may attend a key",
            f"dtype {mask.dtype}",
            "compare it (mask != 0, or dtype=bool where it is made); numbers that are added to "
            "the scores are a bias",
        )
    return Explicit(jnp.asarray(mask))


def parts(mask: Mask) -> tuple[Mask, ...]:
    """Returns the masks whose intersection `mask` is."""
    return mask.masks if isinstance(mask, All) else (mask,)


def _intersection(rendered: Sequence[Rendered]) -> Rendered:
    ndim = max(array.ndim for array in rendered)
    return functools.reduce(operator.and_, (with_ndim(array, ndim) for array in rendered))
