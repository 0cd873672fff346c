"""The numbers of a truncation curve."""

import functools
import typing

import jax
import jax.numpy as jnp

from attention_jax.algebra import lowrank, tree
from attention_jax.algebra.circuits import layer
from attention_jax.core import merged, separate
from attention_jax.core.attend import check_bias
from attention_jax.core.form import QueryKey, ValueOutput, with_ones
from attention_jax.core.layer import attention
from attention_jax.masks import Mask, render
from attention_jax.positions import Position, positions_or_default
from attention_jax.types import (
    Array,
    Bool,
    Float,
    Heads,
    Int,
    KeyInputs,
    Outputs,
    Parameters,
    Precision,
    QueryInputs,
    Value,
    ValueInputs,
)

_HIGHEST = "highest"


@functools.partial(
    jax.jit, static_argnames=("scale", "position", "softcap", "qk", "ov", "homogeneous")
)
def measure(
    params: Parameters,
    inputs: tuple[QueryInputs, KeyInputs, ValueInputs],
    ranks: Int[Array, " n"],
    mask: Mask | None,
    bias: Float[Array, "..."] | None,
    *,
    scale: float,
    position: Position | None,
    softcap: float | None,
    qk: bool,
    ov: bool,
    homogeneous: bool,
) -> dict[str, Float[Array, "n H"]]:
    """Returns the arrays of `TruncationCurve` by name; arguments are checked."""
    params = tree.wide(params)
    dtype = jnp.result_type(*inputs, *jax.tree.leaves(params))
    params = jax.tree.map(lambda leaf: leaf.astype(dtype), params)
    x, y, z = (jnp.asarray(array, dtype) for array in inputs)
    query_key = (merged if "qk" in params else separate).query_key
    # Outputs of a head are averages of [z, 1] times W_ov. Without the orthogonal factor of W_ov on
    # the right they keep their norms, at the width of the head.
    u, s, _ = lowrank.decompose(*layer.ov(params, homogeneous=True).factors())
    to_output = u * s[:, None]
    heads = len(s)

    def average(form: QueryKey) -> Float[Array, "*B T H F"]:
        flat = typing.cast(
            Array,
            attention(
                form,
                ValueOutput(_values, _side_by_side),
                params,
                x,
                y,
                z,
                scale=scale,
                mask=mask,
                bias=bias,
                position=position,
                softcap=softcap,
                precision=_HIGHEST,
            ),
        )
        return flat.reshape(*flat.shape[:-1], heads, -1)

    averages = average(query_key)
    output_norm = _per_head(_project(averages, to_output), -2)
    measured = {}
    if ov:
        u, s, _ = lowrank.decompose(*layer.ov(params, homogeneous=homogeneous).factors())
        inside = averages if homogeneous else averages[..., :-1]
        parts = jnp.where(_dropped(ranks, s), _per_head(_project(inside, u), (-2, -1))[None], 0.0)
        change = lowrank.norm(parts * s[None], -1)
        bound = lowrank.norm(parts, -1) * _first_dropped(ranks, s)
        measured["ov_output"] = lowrank.ratio(change, output_norm[None])
        measured["ov_output_bound"] = lowrank.ratio(bound, output_norm[None])
    if not qk:
        return measured

    u, s, v = lowrank.decompose(*layer.qk(params, homogeneous=homogeneous).factors())
    x_in, y_in = (with_ones(x), with_ones(y)) if homogeneous else (x, y)
    x_parts, y_parts = _project(x_in[..., None, :], u), _project(y_in[..., None, :], v)
    query, key = query_key.project(params, x, y, _HIGHEST)
    key = jnp.repeat(key, heads // key.shape[-2], axis=-2)
    visible = _visible(mask, bias, query, key)
    scores_norm = _per_head(jnp.where(visible, scale * _products(query, key), 0.0), -3)
    diameter = _diameter(_project(with_ones(z)[..., None, :], to_output), visible)

    def truncated(arguments: tuple[Array, Array]) -> dict[str, Float[Array, " H"]]:
        dropped, first = arguments
        x_cut, y_cut = (
            jnp.where(dropped.reshape((1,) * (parts.ndim - 1) + (-1,)), parts, 0.0)
            for parts in (x_parts, y_parts)
        )
        # Queries and keys as they are, and what is dropped as further channels to subtract.
        weighted = x_cut * s.reshape((1,) * (x_cut.ndim - 2) + s.shape)
        form = QueryKey(
            lambda *_: jnp.concatenate([query, -weighted], axis=-1),
            lambda *_: jnp.concatenate([key, y_cut], axis=-1),
            rotates=False,
        )
        outputs = _per_head(_project(average(form) - averages, to_output), -2)
        change = jnp.where(visible, scale * _products(weighted, y_cut), 0.0)
        lengths = [lowrank.norm(cut, -1)[..., None] for cut in (x_cut, y_cut)]
        most = jnp.where(visible, abs(scale) * _products(*lengths), 0.0)
        most = most * first.reshape((1,) * (most.ndim - 3) + (heads, 1, 1))
        return {
            "qk_scores": _per_head(change, -3),
            "qk_scores_bound": _per_head(most, -3),
            # Where nothing is dropped two evaluations differ by rounding only.
            "qk_output": jnp.where(first == 0, 0.0, outputs),
            "qk_output_bound": _per_head(jnp.tanh(most.max(-1) / 2) * diameter[..., None], -2),
        }

    changes = jax.lax.map(truncated, (_dropped(ranks, s)[:, 0], _first_dropped(ranks, s)))
    for name, change in changes.items():
        norm = scores_norm if "scores" in name else output_norm
        measured[name] = lowrank.ratio(change, norm[None])
    return measured


def _values(params: Parameters, inputs_v: ValueInputs, precision: Precision) -> Value:
    return with_ones(inputs_v)[..., None, :]


def _side_by_side(params: Parameters, heads: Heads, precision: Precision) -> Outputs:
    return heads.reshape(*heads.shape[:-2], -1)


def _project(x: Float[Array, "... M"], kernel: Float[Array, "H M R"]) -> Float[Array, "... H R"]:
    """Returns every head's product; `x` has an axis of H or 1 before the last."""
    x = jnp.broadcast_to(x, (*x.shape[:-2], *kernel.shape[:2]))
    return jnp.einsum("...HM,HMR->...HR", x, kernel, precision=_HIGHEST)


def _products(query: Array, key: Array) -> Float[Array, "*B H T S"]:
    return jnp.einsum("...THK,...SHK->...HTS", query, key, precision=_HIGHEST)


def _per_head(x: Array, axes: int | tuple[int, ...]) -> Array:
    """Returns the norm over all axes but the given ones."""
    kept = {axis % x.ndim for axis in ((axes,) if isinstance(axes, int) else axes)}
    return lowrank.norm(x, tuple(axis for axis in range(x.ndim) if axis not in kept))


def _dropped(ranks: Int[Array, " n"], s: Float[Array, "H Q"]) -> Bool[Array, "n 1 Q"]:
    return jnp.arange(s.shape[-1])[None, None] >= ranks[:, None, None]


def _first_dropped(ranks: Int[Array, " n"], s: Float[Array, "H Q"]) -> Float[Array, "n H"]:
    """Returns the greatest singular value that is not kept, 0 if all are."""
    return jnp.take(s, ranks, axis=1, mode="fill", fill_value=0.0).T


def _visible(
    mask: Mask | None, bias: Array | None, query: Array, key: Array
) -> Bool[Array, "*B H T S"]:
    shape = (*query.shape[:-3], query.shape[-2], query.shape[-3], key.shape[-3])
    positions = positions_or_default(None, None, query.shape[:-2], key.shape[:-2])
    rendered = render(mask, shape, *positions)
    visible = jnp.ones(shape, bool) if rendered is None else jnp.broadcast_to(rendered, shape)
    bias = check_bias(bias, shape)
    return visible if bias is None else visible & ~jnp.isneginf(bias)


def _diameter(values: Float[Array, "*B S H Q"], visible: Array) -> Float[Array, "*B H"]:
    """Returns the greatest distance between values that any query of the sequence sees."""
    seen = visible.any(-2).swapaxes(-1, -2)[..., None]
    # Centred, so that squares do not cancel.
    count = jnp.maximum(seen.sum(-3, keepdims=True), 1)
    values = jnp.where(seen, values, 0.0)
    values = jnp.where(seen, values - values.sum(-3, keepdims=True) / count, 0.0)
    squares = jnp.square(values).sum(-1).swapaxes(-1, -2)
    inner = _products(values, values)
    distances = squares[..., None] + squares[..., None, :] - 2 * inner
    both = seen[..., 0].swapaxes(-1, -2)
    distances = jnp.where(both[..., None] & both[..., None, :], distances, 0.0)
    return jnp.sqrt(jnp.maximum(distances.max((-2, -1)), 0.0))
