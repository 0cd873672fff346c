"""What the forward and the backward pass share: arguments, parts of them, and tiles of scores."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp

from attention_jax.core.blockwise.plan import Plan
from attention_jax.masks import Mask
from attention_jax.types import Array, Precision


class Settings(NamedTuple):
    """What is known before running.

    Attributes:
      plan: Sizes of a tile.
      scale: Factor of the products, or None where it is an array with a derivative.
      softcap: Bound of the scaled products, or None.
      dropout_rate: Of the weights.
      precision: Of all products.
      position: `(arrays, query positions, key positions, dtype) -> bias`, or None.
    """

    plan: Plan
    scale: float | None
    softcap: float | None
    dropout_rate: float
    precision: Precision
    position: Callable[..., Array] | None


class Inputs(NamedTuple):
    """Arrays that have derivatives.

    Attributes:
      query: `[B, T, H, K]`.
      key: `[B, S, G, K]`.
      value: `[B, S, N, V]`.
      bias: `[B, H, T, S]`, each axis of full size or 1, or None.
      scale: Factor of the products `[]`, or None where the settings have it.
      position: The arrays of an encoding that acts on scores.
    """

    query: Array
    key: Array
    value: Array
    bias: Array | None
    scale: Array | None
    position: tuple[Array, ...]


class Given(NamedTuple):
    """Arrays without derivatives, each with a batch axis of size B or 1.

    Attributes:
      mask: A mask of `Mask._rows`, or None.
      query_positions: `[B, T]`.
      key_positions: `[B, S]`.
      seeds: Of the dropout, `[B, H, 2]`, or None.
    """

    mask: Mask | None
    query_positions: Array
    key_positions: Array
    seeds: Array | None


class Sizes(NamedTuple):
    """Sizes of the whole problem."""

    batch: int
    queries: int
    keys: int
    heads: int
    key_heads: int
    value_heads: int


def sizes(inputs: Inputs) -> Sizes:
    """Returns the sizes of `inputs`."""
    batch, queries, heads, _ = inputs.query.shape
    return Sizes(
        batch, queries, inputs.key.shape[1], heads, inputs.key.shape[2], inputs.value.shape[2]
    )


def scaled(products: Array, settings: Settings, inputs: Inputs) -> Array:
    """Returns the products times the scale."""
    scale = settings.scale if inputs.scale is None else inputs.scale
    return products * jnp.asarray(scale, products.dtype)


def zeros(shape: tuple[int, ...], inputs: Inputs, dtype: Any = None) -> Array:
    """Returns zeros that vary over the mesh axes that the inputs vary over, in `statistics`."""
    return jnp.zeros_like(inputs.query, statistics(inputs) if dtype is None else dtype, shape)


def statistics(inputs: Inputs) -> Any:
    """Returns the dtype of scores and sums: float32, or wider where the inputs are."""
    return jnp.promote_types(inputs.query.dtype, jnp.float32)
