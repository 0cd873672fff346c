"""Blocks of arrays, and the layouts of a tile."""

import jax.numpy as jnp
from jax import lax

from attention_jax.types import Array


def block(x: Array, index: Array, size: int, axis: int) -> Array:
    """Returns block `index` of `axis`."""
    return lax.dynamic_slice_in_dim(x, index * size, size, axis)


def add_block(x: Array, update: Array, start: Array, axis: int) -> Array:
    """Returns `x` with `update` added from `start` on along `axis`."""
    old = lax.dynamic_slice_in_dim(x, start, update.shape[axis], axis)
    return lax.dynamic_update_slice_in_dim(x, old + update, start, axis)


def shared(positions: Array) -> Array:
    """Returns positions `[1 or B, length]` as `[length]` where all rows have the same."""
    return positions[0] if positions.shape[0] == 1 else positions


def fill(x: Array, axis: int, size: int, mode: str) -> Array:
    """Returns `x` with `axis` filled up to `size`, by zeros ("constant") or the last ("edge")."""
    padding = [(0, 0)] * x.ndim
    padding[axis] = (0, size - x.shape[axis])
    return x if size == x.shape[axis] else jnp.pad(x, padding, mode=mode)


def add_slice(x: Array, update: Array, starts: list[Array | int]) -> Array:
    """Returns `x` with `update` added from `starts` on along all axes."""
    old = lax.dynamic_slice(x, starts, update.shape)
    return lax.dynamic_update_slice(x, old + update, starts)


def summed_to(x: Array, shape: tuple[int, ...]) -> Array:
    """Returns `x` summed over the axes that have size 1 in `shape`."""
    axes = tuple(axis for axis, size in enumerate(shape) if size == 1)
    return jnp.sum(x, axes, keepdims=True)


def grouped(x: Array, groups: int) -> Array:
    """Returns a tile `[rows or 1, heads or 1, T, S]` as `[rows, groups or 1, J or 1, T, S]`."""
    rows, heads = x.shape[:2]
    return x.reshape(rows, groups if heads > 1 else 1, -1, *x.shape[2:])


def flipped(x: Array, groups: int) -> Array:
    """Returns a tile `[rows or 1, heads or 1, T, S]` as `[rows, groups or 1, S, J or 1, T]`."""
    return jnp.transpose(grouped(x, groups), (0, 1, 4, 2, 3))


def unflipped(x: Array) -> Array:
    """Returns a flipped tile `[rows, G, S, J, T]` as `[rows, heads, T, S]`."""
    x = jnp.transpose(x, (0, 1, 3, 4, 2))
    return x.reshape(x.shape[0], -1, *x.shape[3:])


def regrouped(x: Array, groups: int) -> Array:
    """Returns a flipped tile `[rows, G, S, J, T]` of the same heads in `groups` groups."""
    if x.shape[1] == groups:
        return x
    rows, _, keys, _, queries = x.shape
    heads_first = jnp.transpose(x, (0, 1, 3, 2, 4)).reshape(rows, groups, -1, keys, queries)
    return jnp.transpose(heads_first, (0, 1, 3, 2, 4))
