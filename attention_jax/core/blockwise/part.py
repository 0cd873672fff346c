"""A part of the problem: some rows and heads with all their tokens, and its tiles of scores."""

from typing import Any

import jax.numpy as jnp
from jax import lax

from attention_jax.core import dropout
from attention_jax.core.blockwise.arrays import block, fill, shared
from attention_jax.core.blockwise.problem import Given, Settings, Sizes
from attention_jax.masks.arrays import with_ndim
from attention_jax.types import Array


class Part:
    """The rows and heads of one tile, with all their queries and keys, and its tiles.

    The batch is seen as `[rows, parts]`: a part has one row of each stretch of the batch, so that a
    batch that is cut over devices stays where it is.
    """

    def __init__(
        self,
        settings: Settings,
        sizes: Sizes,
        given: Given,
        seen: tuple[Array, Array],
        index: Array,
    ) -> None:
        """Selects part `index` of `parts(plan, sizes)`."""
        plan = settings.plan
        self.settings, self.sizes, self.plan = settings, sizes, plan
        head_parts = sizes.heads // plan.heads
        self.row, self.head = index // head_parts, index % head_parts * plan.heads
        self.key_heads = max(plan.heads * sizes.key_heads // sizes.heads, 1)
        self.value_heads = max(plan.heads * sizes.value_heads // sizes.heads, 1)
        self.query_blocks = -(-sizes.queries // plan.queries)
        self.key_blocks = -(-sizes.keys // plan.keys)
        rows = self.rows
        self.given = Given(
            None if given.mask is None else given.mask._select(rows, self.heads),
            fill(rows(given.query_positions), 1, self.query_blocks * plan.queries, "edge"),
            fill(rows(given.key_positions), 1, self.key_blocks * plan.keys, "edge"),
            None if given.seeds is None else self.heads(rows(given.seeds)),
        )
        some, every = (self.heads(rows(x)) for x in seen)
        shape = (self.query_blocks, self.key_blocks)
        some = jnp.broadcast_to(jnp.any(some, (0, 1)), shape)
        every = jnp.broadcast_to(jnp.all(every, (0, 1)), shape)
        if sizes.keys % plan.keys:
            every = every.at[:, -1].set(False)
        self.seen = some, every

    def rows(self, x: Array) -> Array:
        """Returns the part's rows of `[B or 1, ...]`."""
        if x.shape[0] == 1:
            return x
        apart = x.reshape(self.plan.rows, -1, *x.shape[1:])
        return lax.dynamic_index_in_dim(apart, self.row, 1, keepdims=False)

    def heads(self, x: Array, axis: int = 1) -> Array:
        """Returns the part's heads of an axis of size H or 1."""
        if x.shape[axis] == 1:
            return x
        return lax.dynamic_slice_in_dim(x, self.head, self.plan.heads, axis)

    def tokens(self, x: Array, heads: int, blocks: int, size: int) -> Array:
        """Returns the part of `[B, length, heads of all, width]` as `[rows, heads, length, width]`.

        The length is filled up to whole blocks with zeros.
        """
        first = self.head * x.shape[2] // self.sizes.heads
        own = lax.dynamic_slice_in_dim(self.rows(x), first, heads, 2)
        return fill(jnp.swapaxes(own, 1, 2), 2, blocks * size, "constant")

    def queries(self, x: Array) -> Array:
        """Returns the part of `[B, T, H, width]` as `[rows, G, J, T, width]`."""
        x = self.tokens(x, self.plan.heads, self.query_blocks, self.plan.queries)
        return x.reshape(x.shape[0], self.key_heads, -1, *x.shape[2:])

    def keys(self, x: Array) -> Array:
        """Returns the part of `[B, S, G, K]` as `[rows, G, S, K]`."""
        return self.tokens(x, self.key_heads, self.key_blocks, self.plan.keys)

    def values(self, x: Array) -> Array:
        """Returns the part of `[B, S, N, V]` as `[rows, N, S, V]`."""
        return self.tokens(x, self.value_heads, self.key_blocks, self.plan.keys)

    def bias(self, x: Array | None) -> Array | None:
        """Returns the part of a bias, filled up to whole blocks."""
        if x is None:
            return None
        x = self.heads(self.rows(x))
        for axis, size in (
            (2, self.query_blocks * self.plan.queries), (3, self.key_blocks * self.plan.keys)
        ):  # fmt: skip
            x = x if x.shape[axis] == 1 else fill(x, axis, size, "constant")
        return x

    def tile(self, i: Array, j: Array) -> "Tile":
        """Returns the tile of query block `i` and key block `j`."""
        return Tile(self, i, j)


class Tile:
    """What is added to, hidden from and dropped from a tile of scores `[rows, heads, T, S]`."""

    def __init__(self, part: Part, i: Array, j: Array) -> None:
        """Finds the tokens of query block `i` and key block `j` of `part`."""
        self.part = part
        plan = part.plan
        self.query_start, self.key_start = i * plan.queries, j * plan.keys
        self.query_positions = shared(block(part.given.query_positions, i, plan.queries, 1))
        self.key_positions = shared(block(part.given.key_positions, j, plan.keys, 1))

    def starts(self, x: Array) -> list[Array | int]:
        """Returns where this tile begins in a bias of `Part.bias`."""
        return [
            0,
            0,
            self.query_start if x.shape[2] > 1 else 0,
            self.key_start if x.shape[3] > 1 else 0,
        ]

    def bias(self, x: Array) -> Array:
        """Returns this tile of a bias of `Part.bias`."""
        plan = self.part.plan
        sizes = (*x.shape[:2], min(plan.queries, x.shape[2]), min(plan.keys, x.shape[3]))
        return lax.dynamic_slice(x, self.starts(x), sizes)

    def position(self, leaves: tuple[Array, ...], dtype: Any) -> Array:
        """Returns this tile of what the position encoding adds."""
        function = self.part.settings.position
        assert function is not None
        added = function(leaves, self.query_positions, self.key_positions, dtype)
        return self.part.heads(with_ndim(added, 4))

    def visible(self) -> Array | None:
        """Returns which pairs may be seen, or None where all are."""
        part = self.part
        visible = None
        if part.given.mask is not None:
            visible = part.given.mask.render(
                self.query_positions,
                self.key_positions,
                query_start=self.query_start,
                key_start=self.key_start,
            )
            visible = with_ndim(visible, 4)
        if part.sizes.keys % part.plan.keys:
            inside = self.key_start + jnp.arange(part.plan.keys) < part.sizes.keys
            visible = (
                inside[None, None, None] if visible is None else visible & inside[None, None, None]
            )
        return visible

    def kept(self, dtype: Any) -> Array | None:
        """Returns the factors of dropout, 0 or `1 / (1 - rate)`, or None."""
        seeds, rate = self.part.given.seeds, self.part.settings.dropout_rate
        if seeds is None:
            return None
        queries = self.query_start + jnp.arange(self.part.plan.queries)
        keys = self.key_start + jnp.arange(self.part.plan.keys)
        return dropout.keep(seeds, rate, queries, keys).astype(dtype) / (1.0 - rate)
