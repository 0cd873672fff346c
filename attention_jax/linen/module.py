"""The base of the modules of all forms."""

import dataclasses

from flax import linen as nn
from jax.typing import DTypeLike

from attention_jax import checks
from attention_jax.core import layer
from attention_jax.core.form import QueryKey, ValueOutput
from attention_jax.masks import Mask
from attention_jax.positions import InputPosition, Position
from attention_jax.types import (
    Array,
    BooleanMask,
    DropoutKey,
    Float,
    KeyInputs,
    KeyPositions,
    Outputs,
    Parameters,
    Precision,
    QueryInputs,
    QueryPositions,
    ValueInputs,
)


class Attention(nn.Module):
    """What the modules of all forms share: settings, checks, and the call of the pure function."""

    _: dataclasses.KW_ONLY
    position: Position | None = None
    softcap: float | None = None
    dropout_rate: float = 0.0
    deterministic: bool | None = None
    dtype: DTypeLike | None = None
    precision: Precision = None
    implementation: str = "auto"

    def __post_init__(self) -> None:
        """Checks the settings that need no inputs."""
        checks.check_dropout_rate(self.dropout_rate)
        checks.check_softcap(self.softcap)
        position = self.position
        if position is not None and not isinstance(position, Position):
            raise checks.refuse(
                TypeError,
                "position",
                "a position encoding or None",
                type(position).__name__,
                "pass aj.Rotary() or aj.ALiBi(num_heads)",
            )
        if isinstance(position, InputPosition):
            raise checks.refuse(
                ValueError,
                "position",
                "an encoding that acts inside attention",
                f"{type(position).__name__}, which acts on inputs",
                "add it to the inputs before the first layer",
            )
        if position is not None:
            layer.check_rotates(position, self._query_key.rotates)
        super().__post_init__()

    @property
    def _query_key(self) -> QueryKey:
        raise NotImplementedError

    def _call(
        self,
        forms: tuple[QueryKey, ValueOutput],
        params: Parameters,
        inputs: tuple[QueryInputs, KeyInputs, ValueInputs],
        scale: float | None,
        mask: Mask | BooleanMask | None,
        bias: Float[Array, "..."] | None,
        deterministic: bool | None,
        dropout_rng: DropoutKey | None,
        sow_weights: bool,
        query_positions: QueryPositions | None,
        key_positions: KeyPositions | None,
    ) -> Outputs:
        drops = self.dropout_rate > 0.0 and not self._deterministic(deterministic)
        if drops and dropout_rng is None:
            dropout_rng = self.make_rng("dropout")
        attended = layer.attention(
            *forms,
            params,
            *inputs,
            scale=scale,
            mask=mask,
            bias=bias,
            position=self.position,
            query_positions=query_positions,
            key_positions=key_positions,
            softcap=self.softcap,
            dropout_rate=self.dropout_rate if drops else 0.0,
            dropout_key=dropout_rng if drops else None,
            dtype=self.dtype,
            precision=self.precision,
            implementation=self.implementation,
            return_weights=sow_weights,
        )
        if not isinstance(attended, tuple):
            return attended
        output, weights = attended
        self.sow("intermediates", "attention_weights", weights)
        return output

    def _deterministic(self, called_with: bool | None) -> bool:
        chosen = self.deterministic if called_with is None else called_with
        if chosen is None and not self.is_initializing():
            raise checks.refuse(
                ValueError,
                "deterministic",
                f"True or False, because dropout_rate={self.dropout_rate}",
                None,
                "pass deterministic=False in training and True in evaluation",
            )
        return True if chosen is None else chosen
