"""Where an encoding acts, and the checks of positions."""

from typing import ClassVar, Literal

import jax.numpy as jnp
from jax.typing import DTypeLike

from attention_jax import checks
from attention_jax.types import Array, Float, KeyPositions, Positions, QueryPositions


class Position:
    """Base of all position encodings.

    Attributes:
      acts_on: "inputs", "query_key" or "scores".
    """

    acts_on: ClassVar[Literal["inputs", "query_key", "scores"]]


class InputPosition(Position):
    """Added to the inputs before any projection."""

    acts_on = "inputs"


class QueryKeyPosition(Position):
    """Changes queries and keys by position, so that no single merged matrix exists."""

    acts_on = "query_key"

    def rotate(self, x: Float[Array, "*B T H K"], positions: Positions) -> Float[Array, "*B T H K"]:
        """Returns queries or keys `[..., T, H, K]` at `positions` `[..., T]`."""
        raise NotImplementedError


class ScorePosition(Position):
    """Added to the scores; merging is not touched."""

    acts_on = "scores"

    def bias(
        self,
        query_positions: QueryPositions,
        key_positions: KeyPositions,
        dtype: DTypeLike = jnp.float32,
    ) -> Float[Array, "*B H T S"]:
        """Returns what is added to the scores, `[..., H, T, S]`."""
        raise NotImplementedError


def check_theta(theta: float) -> None:
    """Raises unless `theta` is a positive real number."""
    checks.check_real("theta", theta)
    if not 0.0 < theta < float("inf"):
        raise checks.refuse(ValueError, "theta", "a positive finite base", theta, "use 10000.0")


def check_position(position: Position | None) -> None:
    """Raises TypeError unless `position` is an encoding or None."""
    if position is not None and not isinstance(position, Position):
        raise checks.refuse(
            TypeError,
            "position",
            "a position encoding or None",
            f"{position!r}",
            "pass aj.Rotary() or aj.ALiBi(num_heads)",
        )


def positions_or_default(
    query_positions: QueryPositions | None,
    key_positions: KeyPositions | None,
    query_shape: tuple[int, ...],
    key_shape: tuple[int, ...],
) -> tuple[Array, Array]:
    """Returns positions checked against `[..., T]` and `[..., S]`, with defaults where None.

    Keys count from 0, and the last query stands where the last key stands.
    """
    if key_positions is None:
        key_positions = jnp.arange(key_shape[-1])
    key_positions = check_positions("key_positions", key_positions, key_shape)
    if query_positions is None:
        before = jnp.arange(1 - query_shape[-1], 1).reshape((1,) * (key_positions.ndim - 1) + (-1,))
        query_positions = key_positions[..., -1:] + before
    return check_positions("query_positions", query_positions, query_shape), key_positions


def check_positions(name: str, positions: Positions, shape: tuple[int, ...]) -> Array:
    """Returns `positions` as an array, checked to broadcast to `shape` = `[..., length]`."""
    if not checks.is_array(positions):
        raise checks.refuse(
            TypeError, name, "an array of numbers", type(positions).__name__, "use jnp.arange(T)"
        )
    if not (
        jnp.issubdtype(positions.dtype, jnp.integer)
        or jnp.issubdtype(positions.dtype, jnp.floating)
    ):
        raise checks.refuse(
            TypeError, name, "an array of numbers", positions.dtype, "use jnp.arange(T)"
        )
    fits = 1 <= positions.ndim <= len(shape) and positions.shape[-1] == shape[-1]
    leading = zip(positions.shape[-2::-1], shape[-2::-1], strict=False)
    if not fits or any(size not in (1, full) for size, full in leading):
        raise checks.refuse(
            ValueError,
            name,
            f"one position per token, shape [length] or [..., length] = {shape}",
            f"shape {positions.shape}",
            "pass one position for each token of each row, or of one row for all",
        )
    return checks.signed(positions)
