"""Numbers per token as rows and columns of the scores, and as blocks of tokens."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from attention_jax.types import Array, Int

Start = int | Int[Array, ""]


class Extents(NamedTuple):
    """The least and the greatest number of each of n blocks of tokens, `[..., n]`."""

    least: Array
    greatest: Array


def grid_axes(rows: Array, columns: Array) -> tuple[Array, Array]:
    """Returns `[..., T]` as `[..., 1, T, 1]` and `[..., S]` as `[..., 1, 1, S]`, of equal rank."""
    ndim = max(rows.ndim, columns.ndim) + 2
    return with_ndim(rows[..., None, :, None], ndim), with_ndim(columns[..., None, None, :], ndim)


def with_ndim(x: Array, ndim: int) -> Array:
    """Returns `x` with leading axes of size 1 up to `ndim` axes."""
    return x.reshape((1,) * (ndim - x.ndim) + x.shape)


def one_batch_axis(x: Array, batch: tuple[int, ...], ndim: int) -> Array:
    """Returns `x` with one batch axis, 1 or the product of `batch`, before its last `ndim` axes."""
    x = with_ndim(x, ndim)
    own = x.shape[x.ndim - ndim :]
    if x.size == math.prod(own):
        return x.reshape(1, *own)
    return jnp.broadcast_to(x, (*batch, *own)).reshape(-1, *own)


def extents(x: Array, size: int) -> Extents:
    """Returns the least and greatest of each `size` numbers on the last axis, the end included."""
    x = with_ndim(x, 1)
    missing = -x.shape[-1] % size
    # Repeating the last number leaves the extents as they are.
    padded = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, missing)], mode="edge")
    blocks = padded.reshape(*x.shape[:-1], -1, size)
    return Extents(blocks.min(axis=-1), blocks.max(axis=-1))


def split_blocks(x: Array, size: int, axis: int) -> Array:
    """Returns `x` with `axis` in blocks of `size`, filled up with False; size 1 stays."""
    axis %= x.ndim
    length = x.shape[axis]
    if length == 1:
        return jnp.expand_dims(x, axis + 1)
    padding = [(0, 0)] * x.ndim
    padding[axis] = (0, -length % size)
    return jnp.pad(x, padding).reshape(*x.shape[:axis], -1, size, *x.shape[axis + 1 :])


def take(x: Array, start: Start, positions: Array, axis: int) -> Array:
    """Returns an entry per position, from `start` on; past the end False, or id 0, which hides."""
    length, size = positions.shape[-1], x.shape[axis]
    if size == 1 or (isinstance(start, int) and start == 0 and size == length):
        return x
    # A slice that reaches past the end is shifted back into the array: the shift is undone.
    within = jnp.clip(start, 0, max(size - length, 0))
    part = jax.lax.dynamic_slice_in_dim(x, within, min(length, size), axis)
    padding = [(0, 0)] * x.ndim
    padding[axis] = (0, length)
    return jax.lax.dynamic_slice_in_dim(jnp.pad(part, padding), start - within, length, axis)
