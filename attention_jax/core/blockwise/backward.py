"""The backward pass: each tile of weights is computed again from the log-sum-exp of its rows."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from attention_jax.core.blockwise.arrays import (
    add_block,
    add_slice,
    block,
    flipped,
    regrouped,
    summed_to,
    unflipped,
)
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


class Residuals(NamedTuple):
    """What the forward pass leaves: its arguments, its output and the log-sum-exp of each row."""

    inputs: Inputs
    given: Given
    output: Array
    total: Array


class _Rows(NamedTuple):
    """Of each query of a part: log-sum-exp, and the sum of weights times their gradients."""

    total: Array
    inner: Array
    gradient: Array


class _Sums(NamedTuple):
    """Gradients, summed over tiles: `key` and `value` of one key block, the others of a part."""

    key: Array
    value: Array
    query: Array
    bias: Array | None
    scale: Array | None
    position: tuple[Array, ...]


def backward(settings: Settings, residuals: Residuals, gradient: Array) -> Inputs:
    """Returns the gradients of the inputs for a `gradient` of the output, `[B, T, H, V]`."""
    inputs, given, output, total = residuals
    plan, whole = settings.plan, sizes(inputs)
    dtype = statistics(inputs)
    seen = look(given, plan)
    # sum_s weights_s dweights_s, also with dropout, which changes weights and output alike.
    inner = jnp.sum(gradient.astype(dtype) * output.astype(dtype), axis=-1)
    # Where a row sees nothing all its scores are -inf, and so are their exponentials' exponents.
    total = jnp.where(jnp.isneginf(total), 0.0, total)

    def part(index: Array, sums: Inputs) -> Inputs:
        own = Part(settings, whole, given, seen, index)
        found = _part(own, inputs, _Rows(total, inner, gradient))
        bias = sums.bias
        if bias is not None and found.bias is not None:
            bias = _put(own, bias, found.bias, head_axis=1)
        return Inputs(
            query=_put(own, sums.query, found.query, head_axis=2),
            key=_put(own, sums.key, found.key, head_axis=2),
            value=_put(own, sums.value, found.value, head_axis=2),
            bias=bias,
            scale=jax.tree.map(jnp.add, sums.scale, found.scale),
            position=jax.tree.map(jnp.add, sums.position, found.position),
        )

    def apart(x: Array) -> Array:
        """Returns zeros for `[B or 1, ...]` as `[rows or 1, parts or 1, ...]`."""
        cut = (plan.rows, whole.batch // plan.rows) if x.shape[0] > 1 else (1, 1)
        return zeros((*cut, *x.shape[1:]), inputs)

    start = Inputs(
        query=apart(inputs.query),
        key=apart(inputs.key),
        value=apart(inputs.value),
        bias=None if inputs.bias is None else apart(inputs.bias),
        scale=None if inputs.scale is None else zeros((), inputs),
        position=tuple(zeros(x.shape, inputs) for x in inputs.position),
    )
    parts = whole.batch // plan.rows * (whole.heads // plan.heads)
    sums = lax.fori_loop(0, parts, part, start)
    return jax.tree.map(lambda x, like: x.reshape(like.shape).astype(like.dtype), sums, inputs)


def _put(part: Part, sums: Array, found: Array, head_axis: int) -> Array:
    """Returns sums `[rows or 1, parts or 1, ...]` with what was found for the part added.

    Axis `head_axis` of `found` has all or some of the heads.
    """
    heads = sums.shape[head_axis + 1]
    starts: list[Array | int] = [0] * sums.ndim
    starts[1] = part.row if sums.shape[1] > 1 else 0
    starts[head_axis + 1] = part.head * heads // part.sizes.heads
    return add_slice(sums, found[:, None], starts)


def _part(part: Part, inputs: Inputs, rows: _Rows) -> Inputs:
    """Returns the gradients of a part: `[rows, T or S, heads, width]`, and of what is added."""
    plan = part.plan
    query, key, value = part.queries(inputs.query), part.keys(inputs.key), part.values(inputs.value)
    # Products are fastest with transposed tiles of scores, and the query's gradient, which then
    # needs the other order, with this copy of the keys.
    key_columns = jnp.swapaxes(key, 2, 3)
    bias = part.bias(inputs.bias)
    own = _Rows(
        part.queries(rows.total[..., None])[..., 0],
        part.queries(rows.inner[..., None])[..., 0],
        part.queries(rows.gradient),
    )
    some, every = part.seen
    blocks, whole, visited = order(some.T, every.T)

    def key_block(sums: tuple, j: Array) -> tuple[tuple, tuple[Array, Array]]:
        arrays = (
            block(key, j, plan.keys, 2),
            block(key_columns, j, plan.keys, 3),
            block(value, j, plan.keys, 2),
        )

        def step(i: Array, sums: _Sums, masked: bool) -> _Sums:
            at = _Rows(*(block(x, i, plan.queries, 3) for x in own))
            return _tile(part, inputs, bias, block(query, i, plan.queries, 3), arrays, at, (i, j),
                         sums, masked)  # fmt: skip

        start = _Sums(zeros(arrays[0].shape, inputs), zeros(arrays[2].shape, inputs), *sums)
        found = visit(part, (blocks[j], whole[j], visited[j]), step, start)
        return tuple(found[2:]), (found.key, found.value)

    shape = (key.shape[0], *key_columns.shape[1:3], *query.shape[2:4])
    start = (
        zeros(shape, inputs),
        None if bias is None else zeros(bias.shape, inputs),
        None if inputs.scale is None else zeros((), inputs),
        tuple(zeros(x.shape, inputs) for x in inputs.position),
    )
    (by_query, by_bias, by_scale, by_position), by_keys = lax.scan(
        key_block, start, jnp.arange(part.key_blocks)
    )
    by_query = jnp.transpose(by_query, (0, 4, 1, 3, 2))
    by_query = by_query.reshape(*by_query.shape[:2], -1, by_query.shape[-1])
    by_key, by_value = (jnp.transpose(x, (1, 0, 3, 2, 4)) for x in by_keys)
    length, key_length = part.sizes.queries, part.sizes.keys
    return Inputs(
        by_query[:, :length],
        by_key.reshape(by_key.shape[0], -1, *by_key.shape[3:])[:, :key_length],
        by_value.reshape(by_value.shape[0], -1, *by_value.shape[3:])[:, :key_length],
        None if by_bias is None else by_bias[:, :, :length, :key_length],
        by_scale,
        by_position,
    )


def _tile(
    part: Part,
    inputs: Inputs,
    bias: Array | None,
    query: Array,
    keys: tuple[Array, Array, Array],
    rows: _Rows,
    at: tuple[Array, Array],
    sums: _Sums,
    masked: bool,
) -> _Sums:
    """Returns the sums with the gradients of tile `at` = (query block, key block) added."""
    settings, dtype = part.settings, statistics(inputs)
    key, key_columns, value = keys
    groups = part.key_heads
    tile = part.tile(*at)

    def product(letters: str, one: Array, other: Array) -> Array:
        return jnp.einsum(
            letters, one, other, precision=settings.precision, preferred_element_type=dtype
        )

    products = product("BGSK,BGJTK->BGSJT", key, query)
    capped = scaled(products, settings, inputs)
    if settings.softcap is not None:
        capped = settings.softcap * jnp.tanh(capped / settings.softcap)
    scores = capped
    if bias is not None:
        scores = scores + flipped(tile.bias(bias), groups).astype(dtype)
    if settings.position is not None:
        added, by_added = jax.vjp(lambda arrays: tile.position(arrays, dtype), inputs.position)
        scores = scores + flipped(added, groups)
    visible = tile.visible() if masked else None
    if visible is not None:
        scores = jnp.where(flipped(visible, groups), scores, -jnp.inf)
    weights = jnp.exp(scores - rows.total[:, :, None])

    gradient = rows.gradient.reshape(
        rows.gradient.shape[0], part.value_heads, -1, *rows.gradient.shape[3:]
    )
    by_weight = product("BNSV,BNJTV->BNSJT", value, gradient)
    by_weight = regrouped(by_weight, groups)
    kept = tile.kept(dtype)
    used = weights
    if kept is not None:
        kept = flipped(kept, groups)
        used, by_weight = used * kept, by_weight * kept
    used = regrouped(used, part.value_heads).astype(value.dtype)
    by_score = weights * (by_weight - rows.inner[:, :, None])
    by_scaled = by_score
    if settings.softcap is not None:
        by_scaled = by_score * (1.0 - jnp.square(capped / settings.softcap))
    by_product = scaled(by_scaled, settings, inputs).astype(query.dtype)

    by_bias, by_scale, by_position = sums.bias, sums.scale, sums.position
    if by_bias is not None:
        starts = tile.starts(by_bias)
        found = summed_to(unflipped(by_score), tile.bias(by_bias).shape)
        by_bias = add_slice(by_bias, found, starts)
    if by_scale is not None:
        by_scale = by_scale + jnp.sum(by_scaled * products)
    if by_position:
        (found,) = by_added(summed_to(unflipped(by_score), added.shape).astype(added.dtype))
        by_position = jax.tree.map(lambda x, more: x + more.astype(dtype), by_position, found)
    return _Sums(
        sums.key + product("BGSJT,BGJTK->BGSK", by_product, query),
        sums.value + product("BNSJT,BNJTV->BNSV", used, gradient),
        add_block(
            sums.query, product("BGKS,BGSJT->BGKJT", key_columns, by_product), tile.query_start, 4
        ),
        by_bias,
        by_scale,
        by_position,
    )
