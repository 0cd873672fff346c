"""What is asked of an implementation of attention: checked arrays and settings."""

from typing import NamedTuple

from attention_jax.masks import Mask
from attention_jax.positions import ScorePosition
from attention_jax.types import (
    Array,
    DropoutKey,
    Float,
    Key,
    KeyPositions,
    Precision,
    Query,
    QueryPositions,
    Value,
)


class Request(NamedTuple):
    """The arguments of `attend`, checked and with defaults filled in.

    Attributes:
      query: `[..., T, H, K]`.
      key: `[..., S, G, K]`.
      value: `[..., S, N, V]`.
      mask: A mask object that fits the scores, or None.
      bias: Floats with as many axes as the scores `[..., H, T, S]`, each of full size or 1.
      position: An encoding that acts on scores, or None.
      scale: Factor of the products.
      softcap: Bound of the scaled products, or None.
      dropout_rate: Of the weights; 0.0 without a key.
      dropout_key: Random key, or None.
      precision: Of both matrix products.
      query_positions: `[..., T]`.
      key_positions: `[..., S]`.
      aligned: Whether the positions are the default ones: keys at 0, 1, ..., S - 1, and the last
        query at the last key.
      return_weights: Whether the weights are wanted too.
    """

    query: Query
    key: Key
    value: Value
    mask: Mask | None
    bias: Float[Array, "..."] | None
    position: ScorePosition | None
    scale: float | Float[Array, ""]
    softcap: float | None
    dropout_rate: float
    dropout_key: DropoutKey | None
    precision: Precision
    query_positions: QueryPositions
    key_positions: KeyPositions
    aligned: bool
    return_weights: bool
