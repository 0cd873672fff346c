"""Rotary positions."""

import dataclasses
from typing import Literal

import jax.numpy as jnp

from attention_jax import checks
from attention_jax.positions.position import QueryKeyPosition, check_positions, check_theta
from attention_jax.types import Array, Float, Positions


@dataclasses.dataclass(frozen=True)
class Rotary(QueryKeyPosition):
    """Rotates pairs of channels of queries and keys by angles that grow with the position.

    Pair `f` at position `p` turns by `p * theta ** (-2 f / width)`, where `width` is the number of
    rotated channels. Scores then depend on positions through their differences only.

    Attributes:
      theta: Base of the frequencies.
      style: Which channels form a pair. "half": `f` and `f + width / 2` (GPT-NeoX, Llama in
        transformers). "interleaved": `2 f` and `2 f + 1` (the paper, GPT-J, Llama as published).
        Weights made for one are wrong for the other: `half(P x) = P interleaved(x)`, where P
        gathers even channels first.
      fraction: Share of the head's channels that is rotated, the first ones; the others pass.

    Raises:
      ValueError: `theta` or `fraction` is out of range, or `style` is unknown.

    Example:
      >>> import jax.numpy as jnp
      >>> x = jnp.array([1.0, 0.0, 0.0, 0.0]).reshape(1, 1, 4)  # [T, H, K]
      >>> Rotary().rotate(x, jnp.array([1]))[0, 0].round(3).tolist()
      [0.5400000214576721, 0.0, 0.8410000205039978, 0.0]

    Paper: Su et al., RoFormer, arXiv 2104.09864, equation 15 (its d is `width`, its m and n are
    positions).
    """

    theta: float = 10000.0
    style: Literal["half", "interleaved"] = "half"
    fraction: float = 1.0

    def __post_init__(self) -> None:
        """Checks the settings."""
        checks.check_choice("style", self.style, ("half", "interleaved"))
        check_theta(self.theta)
        checks.check_real("fraction", self.fraction)
        if not 0 < self.fraction <= 1:
            raise checks.refuse(
                ValueError, "fraction", "a share in (0, 1]", self.fraction, "1.0 rotates the head"
            )

    def width(self, head_dim: int) -> int:
        """Returns the number of rotated channels of a head of width `head_dim`.

        Raises:
          ValueError: It is not a positive even integer.
        """
        width = round(self.fraction * head_dim)
        # Fractions such as 0.14 have no exact binary form.
        if abs(width - self.fraction * head_dim) > 1e-9 * head_dim or width % 2 or width < 2:
            raise checks.refuse(
                ValueError,
                "head_dim",
                f"fraction={self.fraction} of it to be a positive even number of channels",
                f"head_dim={head_dim}, {self.fraction * head_dim:g} channels",
                "choose an even head width, or another fraction",
            )
        return width

    def rotate(self, x: Float[Array, "*B T H K"], positions: Positions) -> Float[Array, "*B T H K"]:
        """Returns queries or keys `[..., T, H, K]` rotated to their `positions` `[..., T]`.

        Angles are computed in float32, or in the precision of `x` when that is wider.

        Raises:
          TypeError: `x` is not floating, or positions are not numbers.
          ValueError: The rotated width is odd, or positions do not fit the lengths of `x`.
        """
        checks.check_floating("x", x)
        positions = check_positions("positions", positions, x.shape[:-2])
        width, half = self.width(x.shape[-1]), self.width(x.shape[-1]) // 2
        wide = jnp.promote_types(x.dtype, jnp.float32)
        frequencies = self.theta ** (-jnp.arange(half, dtype=wide) / half)
        angles = positions.astype(wide)[..., None, None] * frequencies.reshape(
            (1,) * (positions.ndim + 1) + (half,)
        )
        cos, sin = (
            turn.reshape((1,) * (x.ndim - turn.ndim) + turn.shape)
            for turn in (jnp.cos(angles), jnp.sin(angles))
        )
        rotated = x[..., :width].astype(wide)
        if self.style == "half":
            first, second = rotated[..., :half], rotated[..., half:]
        else:
            first, second = rotated[..., 0::2], rotated[..., 1::2]
        pair = (first * cos - second * sin, second * cos + first * sin)
        if self.style == "half":
            turned = jnp.concatenate(pair, axis=-1)
        else:
            turned = jnp.stack(pair, axis=-1).reshape(rotated.shape)
        return jnp.concatenate([turned.astype(x.dtype), x[..., width:]], axis=-1)
