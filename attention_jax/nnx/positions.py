"""Learned positions as an NNX module."""

from typing import Any

from flax import nnx

from attention_jax import linen
from attention_jax.nnx.twin import Twin
from attention_jax.types import Array, Float, Positions


class LearnedPositions(Twin):
    """`aj.LearnedPositions` for NNX: adds a learned row per position, `x + embedding[position]`.

    Args:
      capacity: Number of positions.
      in_features: Width D of the inputs.
      rngs: Stream "params".
      **settings: The attributes of `aj.LearnedPositions`; other names are refused.

    Raises:
      ValueError: The sequence is longer than `capacity`, or a known position is outside. A traced
        position outside gives NaN.
      TypeError: Positions are not integers, or there is no such setting.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> module = LearnedPositions(capacity=8, in_features=4, rngs=nnx.Rngs(0))
      >>> module.embedding.shape, module(jnp.zeros((3, 5, 4))).shape
      ((8, 4), (3, 5, 4))
    """

    linen_class = linen.LearnedPositions
    widths = {"in_features": {"embedding": 1}}

    def __init__(self, capacity: int, in_features: int, *, rngs: nnx.Rngs, **settings: Any) -> None:
        """Creates the table."""
        settings_module = self.linen_class(capacity, parent=None, **settings)
        super().__init__(settings_module, rngs, in_features=in_features)

    def __call__(
        self, x: Float[Array, "*B T D"], positions: Positions | None = None
    ) -> Float[Array, "*B T D"]:
        """Returns `x` `[..., T, D]` plus the rows at `positions`, by default 0, 1, ..."""
        output: Any = self.settings.apply({"params": self._parameters()}, x, positions)
        return output
