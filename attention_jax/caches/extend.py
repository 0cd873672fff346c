"""Self-attention of new tokens to those in a cache."""

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from attention_jax import checks
from attention_jax.caches import slots
from attention_jax.caches.cache import Cache, keeps_of
from attention_jax.caches.slots import Tokens
from attention_jax.core.form import QueryKey, ValueOutput
from attention_jax.core.layer import attention, check_rotates
from attention_jax.masks import Mask, causal, segments, sliding_window
from attention_jax.masks.kinds import Segments
from attention_jax.masks.mask import Explicit, as_mask, parts
from attention_jax.positions import Position, QueryKeyPosition, check_positions
from attention_jax.types import (
    Array,
    Bool,
    BooleanMask,
    Float,
    Int,
    Outputs,
    Parameters,
    Positions,
    Precision,
    QueryInputs,
    Weights,
)


def extend(
    query_key: QueryKey,
    value_output: ValueOutput,
    params: Parameters,
    x: QueryInputs,
    cache: Cache,
    *,
    scale: float,
    valid: Bool[Array, "B T"] | None = None,
    positions: Positions | None = None,
    mask: Mask | BooleanMask | None = None,
    bias: Float[Array, "..."] | None = None,
    position: Position | None = None,
    softcap: float | None = None,
    dtype: DTypeLike | None = None,
    precision: Precision = None,
    implementation: str = "auto",
    return_weights: bool = False,
) -> tuple[Outputs, Cache] | tuple[Outputs, Cache, Weights]:
    """Applies one layer to new tokens, which attend those in the cache and themselves.

    It is causal by definition: a token sees the valid tokens at its own and earlier positions. Any
    division of a text into calls gives the output of `core.layer.attention` with `aj.causal()` for
    all of it, up to rounding. Weights are never dropped.

    Args:
      query_key: As in `core.layer.attention`; `keeps` says what is cached.
      value_output: Likewise.
      params: Parameters of the layer.
      x: New tokens `[B, T, D]`.
      cache: Of the tokens before them.
      scale: Factor of the products.
      valid: False at padding, wherever it stands: no token sees it, its own output is that of a
        token that sees nothing, and the positions of its row do not count it.
      positions: `[T]` or `[B, T]`, integers; by default each row counts on its valid tokens.
      mask: What hides more: a mask object, rendered from positions, or booleans that broadcast to
        `[B, H, T, C]`, an entry per slot.
      bias: Floats that broadcast to `[B, H, T, C]`, added to the scores.
      position: An encoding that acts on queries and keys, or on scores.
      softcap: See `attend`.
      dtype: Of the computation; None takes the promotion of `x` and parameters.
      precision: Of every matrix product.
      implementation: See `attend`.
      return_weights: Whether to return the weights too.

    Returns:
      `(output [B, T, O], cache)`, with `return_weights` also the weights `[B, H, T, C]`. Where
      tokens did not fit, which only a traced cache can come to, this output and all later ones are
      NaN.

    Raises:
      ValueError: Arguments do not fit each other or the cache, or it is known that tokens do not.
      TypeError: A kind is wrong, or numbers are wider than those of the cache.
      NotImplementedError: The encoding has nothing to act on, or a window refuses what has an entry
        per slot.

    Example:
      >>> import jax.numpy as jnp
      >>> from attention_jax.caches import empty
      >>> from attention_jax.core import raw
      >>> cache = empty(1, 3, {"inputs": (1,)})
      >>> for number in (1.0, 3.0, 8.0):
      ...     output, cache = extend(raw.query_key, raw.value_output, {},
      ...                            jnp.full((1, 1, 1), number), cache, scale=0.0)
      ...     print(output.item(), int(cache.length))
      1.0 1
      2.0 2
      4.0 3
    """
    _check_form(query_key, value_output, cache)
    x, valid = _checked(x, valid, cache)
    slots.check_room(cache, x.shape[1])
    positions = _positions(positions, valid, cache)
    dtype = jnp.result_type(x, *jax.tree.leaves(params)) if dtype is None else dtype
    # Padding may hold anything; not even NaN must come near what is kept.
    x = jnp.where(valid[..., None], jnp.asarray(x, dtype), 0)
    params = jax.tree.map(lambda array: jnp.asarray(array, dtype), dict(params))
    check_rotates(position, query_key.rotates)
    rotary = position if isinstance(position, QueryKeyPosition) else None

    def rotated(heads: Array, positions: Array) -> Array:
        return heads if rotary is None else rotary.rotate(heads, positions)

    def heads_of(name: str, inputs: Array, positions: Array) -> Array:
        if name == "value":
            return value_output.project(params, inputs, precision)
        return rotated(query_key.key(params, inputs, precision), positions)

    def read(name: str) -> Array:
        if name in cache.keeps:
            return jnp.swapaxes(seen.entries[name].astype(dtype), 1, 2)
        return heads_of(name, seen.entries["inputs"].astype(dtype), seen.positions)

    query = rotated(query_key.query(params, x, precision), positions)
    entries = {
        name: x if name == "inputs" else jnp.swapaxes(heads_of(name, x, positions), 1, 2)
        for name in cache.keeps
    }
    mask = _mask(mask, bias, cache)
    seen, cache = slots.append(cache, Tokens(entries, positions, valid))
    key, value = read("key"), read("value")
    attended = attention(
        query_key._replace(query=lambda *_: query, key=lambda *_: key),
        value_output._replace(project=lambda *_: value),
        params,
        x,
        # All is projected already; this says only how many keys there are.
        jnp.zeros((*seen.positions.shape, 1), dtype),
        mask=mask & segments(valid.astype(jnp.int32), seen.valid.astype(jnp.int32)),
        bias=bias,
        scale=scale,
        softcap=softcap,
        dtype=dtype,
        precision=precision,
        implementation=implementation,
        return_weights=return_weights,
        query_positions=positions,
        key_positions=seen.positions,
        position=None if rotary else position,
    )
    output, weights = attended if isinstance(attended, tuple) else (attended, None)
    output = jnp.where(slots.overflows(cache), jnp.nan, output)
    return (output, cache) if weights is None else (output, cache, weights)


def _check_form(query_key: QueryKey, value_output: ValueOutput, cache: Cache) -> None:
    expected = keeps_of(query_key, value_output)
    if cache.keeps != expected:
        raise checks.refuse(
            ValueError,
            "cache",
            f"one that keeps {' and '.join(expected)}",
            f"one that keeps {' and '.join(cache.keeps)}",
            "make it with this layer's init_cache",
        )


def _checked(
    x: QueryInputs, valid: Bool[Array, "B T"] | None, cache: Cache
) -> tuple[Array, Bool[Array, "B T"]]:
    checks.check_floating("x", x)
    rows = cache.positions.shape[0]
    if x.ndim != 3 or x.shape[0] != rows:
        raise checks.refuse(
            ValueError,
            "x",
            f"[B, T, D] with B={rows} rows, as the cache has",
            f"shape {x.shape}",
            "make the cache for this batch; for further batch axes use jax.vmap",
        )
    if valid is None:
        return x, jnp.ones(x.shape[:2], bool)
    if not checks.is_array(valid) or valid.dtype != jnp.bool_:
        raise checks.refuse(
            TypeError,
            "valid",
            "booleans, False at padding",
            valid.dtype if checks.is_array(valid) else type(valid).__name__,
            "compare the tokens with the one that stands at padding",
        )
    if valid.shape != x.shape[:2]:
        raise checks.refuse(
            ValueError, "valid", f"shape {x.shape[:2]}", f"shape {valid.shape}", "say it of each"
        )
    return x, jnp.asarray(valid)


def _positions(
    positions: Positions | None, valid: Bool[Array, "B T"], cache: Cache
) -> Int[Array, "B T"]:
    if positions is None:
        return cache.next_position[:, None] + jnp.cumsum(valid, axis=1, dtype=jnp.int32) - 1
    if cache.rolls:
        raise checks.refuse(
            NotImplementedError,
            "positions",
            "None with a window, because slots go round by position",
            "an array",
            "leave them out, or use a cache without a window and the mask aj.sliding_window",
        )
    known = positions
    positions = check_positions("positions", positions, valid.shape)
    if not jnp.issubdtype(positions.dtype, jnp.integer):
        raise checks.refuse(
            TypeError, "positions", "integers", positions.dtype, "cast them to jnp.int32"
        )
    if not isinstance(known, jax.core.Tracer):
        checks.check_int32("positions", known)
    return jnp.broadcast_to(
        positions.astype(jnp.int32).reshape((1,) * (2 - positions.ndim) + positions.shape),
        valid.shape,
    )


def _mask(mask: Mask | BooleanMask | None, bias: Array | None, cache: Cache) -> Mask:
    """Returns what the mask, causality and the window let see, padding aside."""
    rule = causal() if cache.window is None else causal() & sliding_window(cache.window)
    given = () if mask is None else parts(as_mask(mask))
    per_slot = [
        "mask"
        for part in given
        if isinstance(part, Segments)
        or (isinstance(part, Explicit) and part.array.shape[-1:] != (1,))
    ]
    if bias is not None and jnp.shape(bias)[-1:] != (1,):
        per_slot.append("bias")
    if cache.rolls and per_slot:
        raise checks.refuse(
            NotImplementedError,
            per_slot[0],
            "nothing that has an entry per key, because the tokens in a window move",
            "an array or segments",
            "use a mask object that is rendered from positions, or a cache without a window",
        )
    return rule if mask is None else rule & mask
