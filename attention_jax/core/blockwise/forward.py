"""The forward pass: an online softmax over blocks of keys."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from attention_jax.core.blockwise.arrays import block, grouped
from attention_jax.core.blockwise.part import Part
from attention_jax.core.blockwise.problem import (
    Given,
    Inputs,
    Settings,
    scaled,
    sizes,
    statistics,
    zeros,
)
from attention_jax.core.blockwise.visits import look, order, visit
from attention_jax.types import Array


class Softmax(NamedTuple):
    """The softmax over the keys seen so far.

    Attributes:
      peak: The largest score of a row, `[rows, G, J, T]`; -inf while no key was seen.
      total: The sum of the exponentials of scores minus peak.
      output: The sum of these, after dropout, times values, `[rows, G, J, T, V]`.
    """

    peak: Array
    total: Array
    output: Array


def forward(settings: Settings, inputs: Inputs, given: Given) -> tuple[Array, Array]:
    """Returns the output `[B, T, H, V]` and the log-sum-exp of the scores `[B, T, H]`.

    A row that sees nothing has output 0 and log-sum-exp -inf.
    """
    plan, whole = settings.plan, sizes(inputs)
    seen = look(given, plan)
    rows = whole.batch // plan.rows
    shape = (plan.rows, rows, whole.queries, whole.heads)
    dtype = statistics(inputs)

    def part(index: Array, results: tuple[Array, Array]) -> tuple[Array, Array]:
        own = Part(settings, whole, given, seen, index)
        found = _part(own, inputs, dtype)
        starts = (0, own.row, 0, own.head)

        def put(x: Array, new: Array) -> Array:
            return lax.dynamic_update_slice(x, new[:, None].astype(x.dtype), (*starts, 0)[: x.ndim])

        return put(results[0], found[0]), put(results[1], found[1])

    results = (
        zeros((*shape, inputs.value.shape[-1]), inputs, inputs.query.dtype),
        zeros(shape, inputs),
    )
    output, total = lax.fori_loop(0, rows * (whole.heads // plan.heads), part, results)
    return output.reshape(whole.batch, *output.shape[2:]), total.reshape(whole.batch, *shape[2:])


def _part(part: Part, inputs: Inputs, dtype: jnp.dtype) -> tuple[Array, Array]:
    """Returns output `[rows, T, heads, V]` and log-sum-exp `[rows, T, heads]` of a part."""
    plan = part.plan
    query, key, value = part.queries(inputs.query), part.keys(inputs.key), part.values(inputs.value)
    bias = part.bias(inputs.bias)
    blocks, whole, visited = order(*part.seen)
    rows, groups, share = query.shape[:3]
    width = value.shape[-1]

    def scores(i: Array, j: Array, own: Array, masked: bool) -> Array:
        tile = part.tile(i, j)
        scores = jnp.einsum(
            "BGJTK,BGSK->BGJTS",
            own,
            block(key, j, plan.keys, 2),
            precision=part.settings.precision,
            preferred_element_type=dtype,
        )
        scores = scaled(scores, part.settings, inputs)
        if part.settings.softcap is not None:
            scores = part.settings.softcap * jnp.tanh(scores / part.settings.softcap)
        if bias is not None:
            scores = scores + grouped(tile.bias(bias), groups).astype(dtype)
        if part.settings.position is not None:
            scores = scores + grouped(tile.position(inputs.position, dtype), groups)
        visible = tile.visible() if masked else None
        return scores if visible is None else jnp.where(grouped(visible, groups), scores, -jnp.inf)

    def query_block(i: Array) -> tuple[Array, Array]:
        own = block(query, i, plan.queries, 3)

        def step(j: Array, state: Softmax, masked: bool) -> Softmax:
            tile_scores = scores(i, j, own, masked)
            peak = jnp.maximum(state.peak, jnp.max(tile_scores, axis=-1))
            # While a row has seen nothing its peak is -inf, and -inf - -inf would be NaN.
            finite = jnp.where(jnp.isneginf(peak), 0.0, peak)
            weights = jnp.exp(tile_scores - finite[..., None])
            fade = jnp.exp(state.peak - finite)
            total = state.total * fade + jnp.sum(weights, axis=-1)
            kept = part.tile(i, j).kept(dtype)
            if kept is not None:
                weights = weights * grouped(kept, groups)
            by_value = weights.astype(value.dtype).reshape(
                rows, part.value_heads, -1, *weights.shape[3:]
            )
            added = jnp.einsum(
                "BNJTS,BNSV->BNJTV",
                by_value,
                block(value, j, plan.keys, 2),
                precision=part.settings.precision,
                preferred_element_type=dtype,
            )
            output = state.output * fade[..., None] + added.reshape(state.output.shape)
            return Softmax(peak, total, output)

        shape = (rows, groups, share, plan.queries)
        state = Softmax(
            zeros(shape, inputs) - jnp.inf, zeros(shape, inputs), zeros((*shape, width), inputs)
        )
        state = visit(part, (blocks[i], whole[i], visited[i]), step, state)
        nothing = state.total == 0.0
        output = state.output / jnp.where(nothing, 1.0, state.total)[..., None]
        total = jnp.where(nothing, -jnp.inf, state.peak + jnp.log(state.total))
        return _tokens_first(output), _tokens_first(total)

    output, total = lax.map(query_block, jnp.arange(part.query_blocks))

    def joined(x: Array) -> Array:
        """Returns blocks `[blocks, rows, T, ...]` as `[rows, T, ...]`."""
        return jnp.moveaxis(x, 0, 1).reshape(rows, -1, *x.shape[3:])[:, : part.sizes.queries]

    return joined(output), joined(total)


def _tokens_first(x: Array) -> Array:
    """Returns `[rows, G, J, T, ...]` as `[rows, T, heads, ...]`."""
    x = jnp.moveaxis(x, 3, 1)
    return x.reshape(*x.shape[:2], -1, *x.shape[4:])
