"""The base of the modules of all forms."""

import dataclasses
from typing import NamedTuple

from flax import linen as nn
from jax.typing import DTypeLike

from attention_jax import checks
from attention_jax.core import layer
from attention_jax.core.form import QueryKey, ValueOutput
from attention_jax.masks import Mask
from attention_jax.positions import InputPosition, Position, check_position
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


class Widths(NamedTuple):
    """Widths of the inputs of queries, keys and values: D, E and F."""

    query: int
    key: int
    value: int


class Projections(NamedTuple):
    """The two halves of a form."""

    query_key: QueryKey
    value_output: ValueOutput


class Prepared(NamedTuple):
    """What a form makes of its settings and the inputs' widths."""

    params: Parameters
    scale: float


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
        if self.deterministic is not None:
            checks.check_bool("deterministic", self.deterministic)
        position = self.position
        check_position(position)
        if isinstance(position, InputPosition):
            raise checks.refuse(
                ValueError,
                "position",
                "an encoding that acts inside attention",
                f"{type(position).__name__}, which acts on inputs",
                "add it to the inputs before the first layer",
            )
        layer.check_rotates(position, self._projections.query_key.rotates)
        super().__post_init__()

    @property
    def _projections(self) -> Projections:
        raise NotImplementedError

    def _prepare(self, widths: Widths) -> Prepared:
        """Returns what depends on the inputs' widths; creates the parameters."""
        raise NotImplementedError

    def __call__(
        self,
        inputs_q: QueryInputs,
        inputs_k: KeyInputs | None = None,
        inputs_v: ValueInputs | None = None,
        *,
        mask: Mask | BooleanMask | None = None,
        bias: Float[Array, "..."] | None = None,
        deterministic: bool | None = None,
        dropout_rng: DropoutKey | None = None,
        sow_weights: bool = False,
        query_positions: QueryPositions | None = None,
        key_positions: KeyPositions | None = None,
    ) -> Outputs:
        """Applies attention of `inputs_q` to `inputs_k` and `inputs_v`.

        Args:
          inputs_q: `[..., T, D]`.
          inputs_k: `[..., S, E]`; `inputs_q` if None (self-attention).
          inputs_v: `[..., S, F]`; `inputs_k` if None.
          mask: A mask object, booleans that broadcast to `[..., H, T, S]`, or None.
          bias: Floats that broadcast to `[..., H, T, S]`, added to the scores.
          deterministic: Whether dropout is off; beats the module's own flag. With a dropout rate
            above 0 one of the two must be given.
          dropout_rng: Key of the dropout; by default one of the stream "dropout".
          sow_weights: Whether to store the weights before dropout, `[..., H, T, S]`, as
            "attention_weights" in the collection "intermediates".
          query_positions: `[..., T]`; by default the last query stands at the last key. Where
            `inputs_k` is None one of the two is enough.
          key_positions: `[..., S]`; by default 0, 1, ..., S - 1.

        Returns:
          `[..., T, O]`.
        """
        checks.check_bool("sow_weights", sow_weights)
        inputs = layer.check_inputs(inputs_q, inputs_k, inputs_v)
        params, scale = self._prepare(Widths(*(x.shape[-1] for x in inputs)))
        deterministic = self._deterministic(deterministic)
        drops = self.dropout_rate > 0.0 and not deterministic
        if drops and dropout_rng is None:
            dropout_rng = self.make_rng("dropout")
        attended = layer.attention(
            *self._projections,
            params,
            inputs_q,
            inputs_k,
            inputs_v,
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
        if called_with is not None:
            checks.check_bool("deterministic", called_with)
        chosen = self.deterministic if called_with is None else called_with
        if chosen is None and self.dropout_rate > 0.0 and not self.is_initializing():
            raise checks.refuse(
                ValueError,
                "deterministic",
                f"True or False, because dropout_rate={self.dropout_rate}",
                None,
                "pass deterministic=False in training and True in evaluation",
            )
        return True if chosen is None else chosen
