"""The Flax module of learned positions."""

import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike

from attention_jax import checks
from attention_jax.linen.initializers import Initializer
from attention_jax.positions import Learned
from attention_jax.types import Array, Float, Positions


class LearnedPositions(nn.Module):
    """Adds a learned row per position to the inputs: `x + embedding[position]`.

    Parameters are `embedding (capacity, D)`.

    Attributes:
      capacity: Number of positions.
      param_dtype: Of the table.
      embedding_init: Of the table; normal with standard deviation 0.02 by default.

    Raises:
      ValueError: The sequence is longer than `capacity`, or a known position is outside. A traced
        position outside gives NaN.
      TypeError: Positions are not integers.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> module = LearnedPositions(capacity=8)
      >>> x = jnp.zeros((3, 5, 4))
      >>> variables = module.init(jax.random.key(0), x)
      >>> variables["params"]["embedding"].shape, module.apply(variables, x).shape
      ((8, 4), (3, 5, 4))
    """

    capacity: int
    param_dtype: DTypeLike = jnp.float32
    embedding_init: Initializer = nn.initializers.normal(0.02)

    @nn.compact
    def __call__(
        self, x: Float[Array, "*B T D"], positions: Positions | None = None
    ) -> Float[Array, "*B T D"]:
        """Returns `x` `[..., T, D]` plus the rows at `positions`, by default 0, 1, ..."""
        encoding = Learned(self.capacity)
        length = x.shape[-2]
        if positions is None:
            if length > self.capacity:
                raise checks.refuse(
                    ValueError,
                    "x",
                    f"at most capacity={self.capacity} tokens",
                    length,
                    "raise the capacity, or shorten the sequence",
                )
            positions = jnp.arange(length)
        shape = (self.capacity, x.shape[-1])
        table = self.param("embedding", self.embedding_init, shape, self.param_dtype)
        return encoding.apply(x, positions, table)
