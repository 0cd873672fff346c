"""Mask objects: frozen dataclasses and pytrees, rendered from positions, whole or per block."""

import dataclasses
import functools
import operator
from typing import NamedTuple

import jax
import jax.numpy as jnp

from attention_jax import checks
from attention_jax.types import Array, Bool, BooleanMask, Int, KeyPositions, QueryPositions

Start = int | Int[Array, ""]
Rendered = Bool[Array, "..."]


class Block(NamedTuple):
    """The part of the scores that a mask is rendered for; see `Mask.render`."""

    query_positions: QueryPositions
    key_positions: KeyPositions
    query_start: Start
    key_start: Start


class Mask:
    """Base of all masks: `a & b` is the mask that allows what both allow."""

    # NumPy would otherwise apply `&` to a mask element by element.
    __array_ufunc__ = None

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

    def check_lengths(self, query_length: int, key_length: int) -> None:
        """Raises ValueError if the mask holds entries for other lengths than T and S."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Causal(Mask):
    """See `causal`."""

    def _visible(self, block: Block) -> Rendered:
        queries, keys = _grid(block.query_positions, block.key_positions)
        return keys <= queries


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SlidingWindow(Mask):
    """See `sliding_window`."""

    width: int = dataclasses.field(metadata={"static": True})

    def __post_init__(self) -> None:
        """Checks the width."""
        checks.check_positive_int("width", self.width)

    def _visible(self, block: Block) -> Rendered:
        queries, keys = _grid(block.query_positions, block.key_positions)
        return jnp.abs(queries - keys) < self.width


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Padding(Mask):
    """See `padding`."""

    lengths: Int[Array, "*B"]

    def _visible(self, block: Block) -> Rendered:
        lengths, keys = _grid(self.lengths[..., None], block.key_positions)
        return (keys >= 0) & (keys < lengths)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Segments(Mask):
    """See `segments`."""

    query_ids: Int[Array, "*B T"]
    key_ids: Int[Array, "*B S"]

    def _visible(self, block: Block) -> Rendered:
        queries, keys = _grid(
            _take(self.query_ids, block.query_start, block.query_positions, axis=-1),
            _take(self.key_ids, block.key_start, block.key_positions, axis=-1),
        )
        return (queries == keys) & (queries > 0)

    def check_lengths(self, query_length: int, key_length: int) -> None:  # noqa: D102
        for name, ids, length in (
            ("query_ids", self.query_ids, query_length),
            ("key_ids", self.key_ids, key_length),
        ):
            if ids.shape[-1] != length:
                raise checks.refuse(
                    ValueError,
                    f"segments {name}",
                    f"one id per token, {length} on the last axis",
                    f"shape {ids.shape}",
                    "pass query_ids [..., T] and, for cross attention, key_ids [..., S]",
                )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Explicit(Mask):
    """A boolean array that broadcasts to `[..., H, T, S]`, as a mask object."""

    array: BooleanMask

    def _visible(self, block: Block) -> Rendered:
        rows = _take(self.array, block.query_start, block.query_positions, axis=-2)
        return _take(rows, block.key_start, block.key_positions, axis=-1)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class All(Mask):
    """The intersection of masks; what `&` returns."""

    masks: tuple[Mask, ...]

    def _visible(self, block: Block) -> Rendered:
        rendered = [mask._visible(block) for mask in self.masks]
        ndim = max(array.ndim for array in rendered)
        return functools.reduce(operator.and_, (with_ndim(array, ndim) for array in rendered))

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


def _grid(rows: Array, columns: Array) -> tuple[Array, Array]:
    """Returns `[..., T]` as `[..., 1, T, 1]` and `[..., S]` as `[..., 1, 1, S]`, of equal rank."""
    ndim = max(rows.ndim, columns.ndim) + 2
    return with_ndim(rows[..., None, :, None], ndim), with_ndim(columns[..., None, None, :], ndim)


def with_ndim(x: Array, ndim: int) -> Array:
    """Returns `x` with leading axes of size 1 up to `ndim` axes."""
    return x.reshape((1,) * (ndim - x.ndim) + x.shape)


def _take(x: Array, start: Start, positions: Array, axis: int) -> Array:
    """Returns an entry per position, from `start` on; past the end False, or id 0, which hides."""
    length = positions.shape[-1]
    whole = isinstance(start, int) and start == 0 and x.shape[axis] == length
    if whole or x.shape[axis] == 1:
        return x
    # A slice would be shifted back into the array where it reaches past the end.
    return jnp.take(x, start + jnp.arange(length), axis=axis, mode="fill", fill_value=0)
