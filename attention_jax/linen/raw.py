"""The raw form as a Flax module."""

from flax import linen as nn

from attention_jax import checks
from attention_jax.core import layer, raw
from attention_jax.core.form import QueryKey
from attention_jax.linen.module import Attention
from attention_jax.masks import Mask
from attention_jax.types import (
    Array,
    BooleanMask,
    DropoutKey,
    Float,
    KeyInputs,
    KeyPositions,
    Outputs,
    QueryInputs,
    QueryPositions,
    ValueInputs,
)


class RawAttention(Attention):
    """Attention without parameters: `y_i = sum_j softmax(scale x_i . x_j) x_j`.

    Attributes:
      scale: Factor of the scores, 1 by default.
      position: A rotary encoding of even input width, `aj.ALiBi(1)`, or None.
      softcap: Positive bound of the scores, or None.
      dropout_rate: Probability in [0, 1) of dropping a weight, independent everywhere.
      deterministic: Whether dropout is off, unless the call says so.
      dtype: Of the computation; by default that of the inputs.
      precision: Of both matrix products.
      implementation: See `attend`.

    Raises:
      ValueError: Sizes or settings do not fit; `inputs_k` must be as wide as `inputs_q`.
      TypeError: A mask is not boolean.

    Example:
      >>> import jax.numpy as jnp
      >>> x = jnp.array([[[1.0, 0.0], [0.0, 0.0]]])
      >>> RawAttention().apply({}, x)[0, 1].tolist()
      [0.5, 0.0]
    """

    scale: float = 1.0

    @property
    def _query_key(self) -> QueryKey:
        return raw.query_key

    @nn.compact
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
        """Applies attention; arguments as in `SeparateAttention`, with H = 1.

        Returns:
          `[..., T, E']`, as wide as `inputs_v`.
        """
        inputs = layer.check_inputs(inputs_q, inputs_k, inputs_v)
        if inputs[0].shape[-1] != inputs[1].shape[-1]:
            raise checks.refuse(
                ValueError,
                "inputs_k",
                f"width D={inputs[0].shape[-1]} as inputs_q, because nothing projects them",
                f"shape {inputs[1].shape}",
                "use MergedAttention, whose W_qk is rectangular",
            )
        return self._call(
            (raw.query_key, raw.value_output),
            {},
            inputs,
            self.scale,
            mask,
            bias,
            deterministic,
            dropout_rng,
            sow_weights,
            query_positions,
            key_positions,
        )
