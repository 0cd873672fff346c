"""Linear biases of the distance."""

import dataclasses

import jax.numpy as jnp
from jax.typing import DTypeLike

from attention_jax import checks
from attention_jax.positions.position import ScorePosition
from attention_jax.types import Array, Float, KeyPositions, QueryPositions


@dataclasses.dataclass(frozen=True)
class ALiBi(ScorePosition):
    """Adds `-slope_h * |query position - key position|` to the scores of head h.

    Slopes are `2 ** (-8 h / H)` for h = 1..H when H is a power of two. Otherwise those of the next
    smaller power of two come first, then every second one of the next larger power.

    Attributes:
      num_heads: Number of query heads H.

    Example:
      >>> import jax.numpy as jnp
      >>> ALiBi(2).bias(jnp.array([2]), jnp.arange(3))[:, 0].tolist()
      [[-0.125, -0.0625, -0.0], [-0.0078125, -0.00390625, -0.0]]

    Paper: Press et al., Train short, test long, arXiv 2108.12409, section 3 (its m is `slope`).
    """

    num_heads: int

    def __post_init__(self) -> None:
        """Checks the number of heads."""
        checks.check_positive_int("num_heads", self.num_heads)

    def slopes(self) -> tuple[float, ...]:
        """Returns the H slopes."""
        power = 2 ** (self.num_heads.bit_length() - 1)
        slopes = [2.0 ** (-8.0 * h / power) for h in range(1, power + 1)]
        between = [2.0 ** (-4.0 * h / power) for h in range(1, 2 * power, 2)]
        return tuple((slopes + between)[: self.num_heads])

    def bias(
        self,
        query_positions: QueryPositions,
        key_positions: KeyPositions,
        dtype: DTypeLike = jnp.float32,
    ) -> Float[Array, "*B H T S"]:
        """Returns the bias `[..., H, T, S]` in `dtype`."""
        queries = checks.signed(query_positions)[..., :, None]
        keys = checks.signed(key_positions)[..., None, :]
        ndim = max(queries.ndim, keys.ndim)
        queries = queries.reshape((1,) * (ndim - queries.ndim) + queries.shape)
        keys = keys.reshape((1,) * (ndim - keys.ndim) + keys.shape)
        distance = jnp.abs(queries - keys).astype(dtype)[..., None, :, :]
        slopes = jnp.asarray(self.slopes(), dtype).reshape((1,) * (ndim - 2) + (-1, 1, 1))
        return -slopes * distance
