"""Splash attention, the TPU kernel in JAX's Pallas operations."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from attention_jax.kernels import blocks
from attention_jax.kernels.capability import check
from attention_jax.kernels.pattern import Pattern, pattern
from attention_jax.kernels.target import device_kind, platform
from attention_jax.masks.arrays import one_batch_axis
from attention_jax.request import Request
from attention_jax.types import Array, Heads

# Far below all scores, and far above what the kernel gives hidden ones.
_NOTHING = -1e38


def splash_attention(request: Request, *, interpret: bool = False) -> Heads:
    """Returns the output of `attend` `[..., T, H, V]` by the TPU kernel splash attention.

    Every form is multi-query attention, mapped over key and value heads. The merged form with
    merged outputs is one such call, whose single key and value is the input at width D. Where keys
    have fewer heads than values, or values than keys, as in the merged form with separate outputs,
    they are not repeated but read again; their gradients are summed over heads after the kernel.

    The query is scaled before the product, in float32, and rounded to its dtype, since the kernel
    has no scale. In bfloat16 that is exact for powers of two, as for widths 64 and 256. Lengths
    are filled up to whole blocks, and the filling is hidden by the mask that the kernel evaluates.
    A query that sees no key gets zeros, and adds nothing to any gradient.

    The compiler cannot partition the kernel: on several devices call it inside `jax.shard_map` with
    `check_vma=False`, over batch and heads.

    Args:
      request: What `attend` checked.
      interpret: Whether to run the kernel step by step on any platform, which is slow.

    Raises:
      NotImplementedError: See `refusal`; or the platform is not a TPU.
    """
    check("splash", request, "tpu" if interpret else platform())
    *batch, length, heads, width = request.query.shape
    key_length, key_heads = request.key.shape[-3:-1]
    value_heads, value_width = request.value.shape[-2:]
    rows = math.prod(batch)
    kind = "" if interpret else device_kind()
    most = blocks.block_size(max(width, value_width) * request.query.dtype.itemsize, kind)
    query_block, queries = blocks.padded(length, most)
    key_block, keys = blocks.padded(key_length, most)
    outer, inner = min(key_heads, value_heads), max(key_heads, value_heads)
    inner //= outer
    shared = heads // (outer * inner)

    scaled = request.query.astype(jnp.float32) * jnp.asarray(request.scale, jnp.float32)
    query = _heads_first(scaled.astype(request.query.dtype), queries)
    query = query.reshape(rows, outer, inner, shared, queries, width)
    key = _heads_first(request.key, keys).reshape(rows, outer, key_heads // outer, keys, width)
    value = _heads_first(request.value, keys)
    value = value.reshape(rows, outer, value_heads // outer, keys, value_width)
    found = pattern(request.mask)
    kernel = _kernel(
        _band((queries, keys), (length, key_length), found),
        (query_block, key_block),
        shared,
        request.softcap,
        interpret,
    )
    ids = _segment_ids(found, tuple(batch), (length, key_length), (queries, keys))

    def row(query: Array, key: Array, value: Array, *ids: Array) -> Array:
        return _mapped(_mapped(lambda *group: kernel(*group, *ids)))(query, key, value)

    output = _mapped(row)(query, key, value, *ids)
    output = output.reshape(*batch, heads, queries, value_width)[..., :length, :]
    return jnp.swapaxes(output, -3, -2)


def _mapped(run: Callable[..., Array]) -> Callable[..., Array]:
    """Returns `run` over the first axes of its arguments; those of size 1 are shared by all."""

    def over_first(*given: Array) -> Array:
        axes = tuple(None if len(x) == 1 else 0 for x in given)
        given = tuple(x if axis == 0 else x[0] for x, axis in zip(given, axes, strict=True))
        return jax.vmap(run, axes)(*given) if 0 in axes else run(*given)[None]

    return over_first


def _heads_first(x: Array, length: int) -> Array:
    """Returns `[..., T, H, K]` as `[..., H, length, K]`, filled up with zeros."""
    x = jnp.swapaxes(x, -3, -2)
    missing = length - x.shape[-2]
    return jnp.pad(x, [(0, 0)] * (x.ndim - 2) + [(0, missing), (0, 0)]) if missing else x


def _band(size: tuple[int, int], lengths: tuple[int, int], found: Pattern) -> Any:
    """Returns the mask that depends on positions alone, aligned at the last query and key."""
    from attention_jax.kernels.band import mask_of

    length, key_length = lengths
    around = None if found.window is None else found.window - 1
    return mask_of(size, key_length - length, around, 0 if found.causal else around, key_length)


def _segment_ids(
    found: Pattern, batch: tuple[int, ...], lengths: tuple[int, int], size: tuple[int, int]
) -> tuple[Array, ...]:
    """Returns ids `[1 or B, T]` and `[1 or B, S]`, equal where a query may see a key, or none."""
    if not found.segments and not found.lengths:
        return ()
    length, key_length = lengths
    query_ids, key_ids = jnp.ones((1, length), jnp.int32), jnp.ones((1, key_length), jnp.int32)
    for segments in found.segments:
        query_ids, key_ids = (
            one_batch_axis(ids, batch, 1).astype(jnp.int32)
            for ids in (segments.query_ids, segments.key_ids)
        )
    for real in found.lengths:
        inside = jnp.arange(key_length)[None, :] < one_batch_axis(real, batch, 0)[:, None]
        key_ids = jnp.where(inside, key_ids, 0)
    query_ids, key_ids = (
        jnp.pad(ids, ((0, 0), (0, whole - ids.shape[1])))
        for ids, whole in zip((query_ids, key_ids), size, strict=True)
    )
    # Hidden queries and hidden keys have no id in common.
    return jnp.maximum(query_ids, 0), jnp.where(key_ids > 0, key_ids, -1)


def _kernel(
    mask: Any, block: tuple[int, int], heads: int, softcap: float | None, interpret: bool
) -> Callable[..., Array]:
    """Returns `(query [H, T, K], key [S, K], value [S, V], *ids) -> [H, T, V]`."""
    from jax.experimental.pallas.ops.tpu.splash_attention import (
        splash_attention_kernel as splash,
    )
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask

    block_q, block_kv = block
    # The fused backward pass keeps a gradient of the queries per block of keys.
    sizes = splash.BlockSizes(
        block_q=block_q,
        block_kv=block_kv,
        block_q_dkv=block_q,
        block_kv_dkv=block_kv,
        block_q_dq=block_q,
        block_kv_dq=block_kv,
        use_fused_bwd_kernel=False,
    )
    made = splash.make_splash_mqa(
        mask=splash_attention_mask.MultiHeadMask([mask] * heads),
        block_sizes=sizes,
        head_shards=1,
        q_seq_shards=1,
        attn_logits_soft_cap=None if softcap is None else float(softcap),
        interpret=interpret,
    )
    # A row of which all is hidden would be the mean of hidden values, or NaN. One more score, which
    # is nothing beside any other and has no value, makes it zero in both passes.
    nothing = jnp.full((heads,), _NOTHING, jnp.float32)

    def run(query: Array, key: Array, value: Array, *ids: Array) -> Array:
        segment_ids = splash.SegmentIds(*ids) if ids else None
        return made(query, key, value, segment_ids=segment_ids, sinks=nothing)

    return run
