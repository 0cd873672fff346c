"""The masks that `aj.causal`, `aj.sliding_window`, `aj.padding` and `aj.segments` build."""

import dataclasses

import jax
import jax.numpy as jnp

from attention_jax import checks
from attention_jax.masks.arrays import extents, grid_axes, one_batch_axis, take
from attention_jax.masks.mask import Block, Grid, Mask, Rendered, Seen
from attention_jax.types import Array, Int


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Causal(Mask):
    """See `causal`."""

    def _visible(self, block: Block) -> Rendered:
        queries, keys = grid_axes(block.query_positions, block.key_positions)
        return keys <= queries

    def _seen(self, grid: Grid) -> Seen:
        first_query, first_key = grid_axes(grid.queries.least, grid.keys.least)
        last_query, last_key = grid_axes(grid.queries.greatest, grid.keys.greatest)
        return first_key <= last_query, last_key <= first_query


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SlidingWindow(Mask):
    """See `sliding_window`."""

    width: int = dataclasses.field(metadata={"static": True})

    def __post_init__(self) -> None:
        """Checks the width."""
        checks.check_positive_int("width", self.width)

    def _visible(self, block: Block) -> Rendered:
        queries, keys = grid_axes(block.query_positions, block.key_positions)
        return jnp.abs(queries - keys) < self.width

    def _seen(self, grid: Grid) -> Seen:
        first_query, last_key = grid_axes(grid.queries.least, grid.keys.greatest)
        last_query, first_key = grid_axes(grid.queries.greatest, grid.keys.least)
        before, after = first_query - last_key, first_key - last_query
        nearest = jnp.maximum(jnp.maximum(before, after), 0)
        farthest = jnp.maximum(-before, -after)
        return nearest < self.width, farthest < self.width


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Padding(Mask):
    """See `padding`."""

    lengths: Int[Array, "*B"]

    def _visible(self, block: Block) -> Rendered:
        lengths, keys = grid_axes(self.lengths[..., None], block.key_positions)
        return (keys >= 0) & (keys < lengths)

    def _seen(self, grid: Grid) -> Seen:
        lengths, first = grid_axes(self.lengths[..., None], grid.keys.least)
        _, last = grid_axes(self.lengths[..., None], grid.keys.greatest)
        return (last >= 0) & (first < lengths), (first >= 0) & (last < lengths)

    def _rows(self, batch: tuple[int, ...]) -> Mask:
        return Padding(one_batch_axis(self.lengths, batch, 0))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Segments(Mask):
    """See `segments`."""

    query_ids: Int[Array, "*B T"]
    key_ids: Int[Array, "*B S"]

    def _visible(self, block: Block) -> Rendered:
        queries, keys = grid_axes(
            take(self.query_ids, block.query_start, block.query_positions, axis=-1),
            take(self.key_ids, block.key_start, block.key_positions, axis=-1),
        )
        return (queries == keys) & (queries > 0)

    def _seen(self, grid: Grid) -> Seen:
        queries = extents(self.query_ids, grid.query_size)
        keys = extents(self.key_ids, grid.key_size)
        first_query, first_key = grid_axes(queries.least, keys.least)
        last_query, last_key = grid_axes(queries.greatest, keys.greatest)
        some = (first_key <= last_query) & (first_query <= last_key) & (last_query > 0)
        one = (first_query == last_query) & (first_key == last_key)
        return some, one & (first_query == first_key) & (first_query > 0)

    def _rows(self, batch: tuple[int, ...]) -> Mask:
        return Segments(*(one_batch_axis(x, batch, 1) for x in (self.query_ids, self.key_ids)))

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
