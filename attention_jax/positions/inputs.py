"""Encodings that are added to the inputs."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from attention_jax import checks
from attention_jax.positions.position import InputPosition, check_positions, check_theta
from attention_jax.types import Array, Float, Positions


@dataclasses.dataclass(frozen=True)
class Sinusoidal(InputPosition):
    """Adds sines and cosines of the position to the inputs, before any projection.

    Channel `2 f` gets `sin(p w_f)` and channel `2 f + 1` gets `cos(p w_f)`, with
    `w_f = theta ** (-2 f / features)`.

    Attributes:
      features: Width of the inputs D, even.
      theta: Base of the frequencies.

    Example:
      >>> import jax.numpy as jnp
      >>> Sinusoidal(4).table(jnp.array([0, 1])).round(2).tolist()
      [[0.0, 1.0, 0.0, 1.0], [0.8399999737739563, 0.5399999618530273, 0.009999999776482582, 1.0]]

    Paper: Vaswani et al., Attention is all you need, arXiv 1706.03762, section 3.5.
    """

    features: int
    theta: float = 10000.0

    def __post_init__(self) -> None:
        """Checks the width."""
        checks.check_positive_int("features", self.features)
        check_theta(self.theta)
        if self.features % 2:
            raise checks.refuse(
                ValueError, "features", "an even width", self.features, "use an even model width"
            )

    def table(self, positions: Positions, dtype: DTypeLike = jnp.float32) -> Float[Array, "*B T D"]:
        """Returns what is added at `positions` `[..., T]`, in `dtype`, at least float32."""
        half = self.features // 2
        wide = jnp.promote_types(jnp.float32, dtype)
        frequencies = self.theta ** (-jnp.arange(half, dtype=wide) / half)
        angles = positions.astype(wide)[..., None] * frequencies.reshape(
            (1,) * positions.ndim + (half,)
        )
        pair = jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1)
        return pair.reshape(*positions.shape, self.features)

    def apply(self, x: Float[Array, "*B T D"], positions: Positions) -> Float[Array, "*B T D"]:
        """Returns `x` `[..., T, D]` with the encoding of `positions` `[..., T]` added.

        Raises:
          ValueError: The width of `x` is not `features`, or positions do not fit its length.
        """
        checks.check_floating("x", x)
        if x.shape[-1] != self.features:
            raise checks.refuse(
                ValueError, "x", f"width features={self.features}", x.shape[-1], "make them equal"
            )
        positions = check_positions("positions", positions, x.shape[:-1])
        return _add(x, self.table(positions, x.dtype))


@dataclasses.dataclass(frozen=True)
class Learned(InputPosition):
    """Adds a learned row of a table to the inputs: `x + table[position]`.

    A position outside the table never becomes another row: it raises where it is known before
    running, and gives NaN under `jax.jit`.

    Attributes:
      capacity: Number of rows of the table.

    Example:
      >>> import jax.numpy as jnp
      >>> table = jnp.array([[1.0], [2.0]])
      >>> Learned(2).apply(jnp.zeros((2, 1)), jnp.array([1, 0]), table).tolist()
      [[2.0], [1.0]]
    """

    capacity: int

    def __post_init__(self) -> None:
        """Checks the capacity."""
        checks.check_positive_int("capacity", self.capacity)

    def apply(
        self, x: Float[Array, "*B T D"], positions: Positions, table: Float[Array, "C D"]
    ) -> Float[Array, "*B T D"]:
        """Returns `x` `[..., T, D]` with the rows of `table` `[capacity, D]` at `positions` added.

        Raises:
          TypeError: Positions are not integers.
          ValueError: A known position is outside the table, or shapes do not fit.
        """
        checks.check_floating("x", x)
        checks.check_floating("table", table)
        if table.shape != (self.capacity, x.shape[-1]):
            raise checks.refuse(
                ValueError,
                "table",
                f"shape [capacity, D] = {(self.capacity, x.shape[-1])}",
                f"shape {table.shape}",
                "pass the table that this encoding's module created",
            )
        known = positions
        positions = check_positions("positions", positions, x.shape[:-1])
        if not jnp.issubdtype(positions.dtype, jnp.integer):
            raise checks.refuse(
                TypeError, "positions", "integers", positions.dtype, "cast them to jnp.int32"
            )
        if not isinstance(known, jax.core.Tracer) and positions.size:
            values = np.asarray(known)
            least, greatest = values.min(), values.max()
            if least < 0 or greatest >= self.capacity:
                raise checks.refuse(
                    ValueError,
                    "positions",
                    f"between 0 and capacity - 1 = {self.capacity - 1}",
                    f"from {least} to {greatest}",
                    "raise the capacity, or shorten the sequence",
                )
        inside = (positions >= 0) & (positions < self.capacity)
        rows = jnp.take(table, positions, axis=0, mode="clip")
        return _add(x, jnp.where(inside[..., None], rows, jnp.nan))


def _add(x: Array, encoding: Array) -> Array:
    encoding = encoding.reshape((1,) * (x.ndim - encoding.ndim) + encoding.shape)
    return x + encoding.astype(x.dtype)
