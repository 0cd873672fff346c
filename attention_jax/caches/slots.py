"""Where new tokens go in a cache, and what they attend."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from attention_jax import checks
from attention_jax.caches.cache import Cache
from attention_jax.types import Array, Bool, Int

Put = Callable[[Array, Array], Array]


class Tokens(NamedTuple):
    """Tokens with what is kept of each.

    Attributes:
      entries: Arrays by name, shaped as in a cache: the tokens are on the axis before the last.
      positions: `[B, n]`.
      valid: False at padding and in empty slots, `[B, n]`.
    """

    entries: Mapping[str, Array]
    positions: Int[Array, "B n"]
    valid: Bool[Array, "B n"]


def append(cache: Cache, new: Tokens) -> tuple[Tokens, Cache]:
    """Returns the tokens that `new` ones attend, themselves among them, and the longer cache.

    Raises:
      ValueError: What is kept of a token has another shape than in the cache.
      TypeError: Numbers are wider than those of the cache, which was not asked to round.
    """
    cache, entries = _fitted(cache, new.entries)
    new = new._replace(entries=entries)
    if not cache.rolls:
        cache = _filled(cache, new)
        return _tokens(cache), cache
    old = _tokens(cache)
    cache = _rolled(cache, new)
    # A single token takes the place of one that it does not see. More of them would take the places
    # of tokens that the first of them still see.
    if new.positions.shape[1] == 1:
        return _tokens(cache), cache
    joined = jax.tree.map(lambda a, b: jnp.concatenate([a, b], axis=_axis(a)), old, new)
    return joined, cache


def overflows(cache: Cache) -> Bool[Array, ""]:
    """Tells whether a cache was given more tokens than it has slots for."""
    return cache.length > cache.capacity


def check_room(cache: Cache, length: int) -> None:
    """Raises ValueError if it is known that there is no room for `length` tokens more."""
    if cache.rolls:
        return
    known = not isinstance(cache.length, jax.core.Tracer)
    filled = int(cache.length) if known else 0
    if filled + length > cache.capacity:
        raise checks.refuse(
            ValueError,
            "x",
            f"at most {max(cache.capacity - filled, 0)} tokens more, because the cache has "
            f"{cache.capacity} slots" + (f", {filled} of them filled" if known else ""),
            length,
            "raise the capacity in init_cache",
        )


def _axis(array: Array) -> int:
    """Returns the axis of the tokens: the only one after the rows', or the one before the last."""
    return max(array.ndim - 2, 1)


def _tokens(cache: Cache) -> Tokens:
    entries = {name: array for name, array in cache.entries.items() if array is not None}
    return Tokens(entries, cache.positions, cache.valid)


def _fitted(cache: Cache, entries: Mapping[str, Array]) -> tuple[Cache, dict[str, Array]]:
    """Returns a cache that has its arrays, and `entries` in its dtype."""
    made, cast = {}, {}
    for name, array in entries.items():
        kept = getattr(cache, name)
        if not cache.rounds and jnp.promote_types(array.dtype, cache.dtype) != cache.dtype:
            raise checks.refuse(
                TypeError,
                f"{name} of the new tokens",
                f"numbers that the cache's {cache.dtype} holds exactly",
                array.dtype,
                "pass init_cache(..., dtype=...): this dtype, or a narrower one to round to",
            )
        shape = (*array.shape[:-2], cache.capacity, array.shape[-1])
        if kept is None:
            kept = jnp.zeros(shape, cache.dtype)
        elif kept.shape != shape:
            raise checks.refuse(
                ValueError,
                f"cache {name}",
                f"shape {shape} for these inputs and settings",
                f"shape {kept.shape}",
                "make the cache with this layer's init_cache and features= the width of x",
            )
        made[name], cast[name] = kept, array.astype(cache.dtype)
    return dataclasses.replace(cache, **made), cast


def _filled(cache: Cache, new: Tokens) -> Cache:
    start, length = cache.length, new.positions.shape[1]

    def put(array: Array, update: Array) -> Array:
        return jax.lax.dynamic_update_slice_in_dim(array, update, start, _axis(array))

    # One more than the capacity is remembered for ever, and cannot wrap around.
    filled = jnp.minimum(start + length, cache.capacity + 1)
    return _written(cache, new, put, start + length <= cache.capacity, filled)


def _rolled(cache: Cache, new: Tokens) -> Cache:
    rows = jnp.arange(new.positions.shape[0])[:, None]
    newest = jnp.max(jnp.where(new.valid, new.positions, -1), axis=1, keepdims=True)
    stays = new.valid & (new.positions > newest - cache.capacity)
    # Padding, and what later tokens of the same call push out, goes past the end and is dropped.
    slots = jnp.where(stays, new.positions % cache.capacity, cache.capacity)

    def put(array: Array, update: Array) -> Array:
        if array.ndim < 4:
            return array.at[rows, slots].set(update, mode="drop")
        # Indices on both sides of a slice put their axes before those of the slice.
        return array.at[rows, :, slots].set(jnp.swapaxes(update, 1, 2), mode="drop")

    filled = jnp.minimum(cache.length + new.positions.shape[1], cache.capacity)
    return _written(cache, new, put, jnp.any(stays), filled)


def _written(cache: Cache, new: Tokens, put: Put, writes: Array, length: Array) -> Cache:
    def arrays(tokens: Tokens) -> dict[str, Any]:
        return {**tokens.entries, "positions": tokens.positions, "valid": tokens.valid}

    # Behind a condition the write happens once and in place. Elsewhere the compiler merges it with
    # what reads the result, once for each reader, which takes copies of the whole cache.
    written = jax.lax.cond(
        writes,
        lambda old, update: jax.tree.map(put, old, update),
        lambda old, update: old,
        arrays(_tokens(cache)),
        arrays(new),
    )
    ahead = jnp.max(jnp.where(new.valid, new.positions + 1, 0), axis=1)
    next_position = jnp.where(jnp.any(new.valid, axis=1), ahead, cache.next_position)
    return dataclasses.replace(cache, length=length, next_position=next_position, **written)
