"""One layer of a transformer: attention and a feed-forward part around the residual stream."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike

from attention_jax.caches import Cache
from attention_jax.linen import MergedAttention, RawAttention, SeparateAttention
from attention_jax.masks import Mask
from attention_jax.models.config import TransformerConfig
from attention_jax.positions import InputPosition
from attention_jax.types import Array, Bool, BooleanMask, Float, Positions

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu": functools.partial(jax.nn.gelu, approximate=False),
    "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
}


def norm(config: TransformerConfig, dtypes: dict[str, Any]) -> Any:
    """Returns the norm of `config`."""
    # The fast variance is a difference of large numbers where the mean is not small.
    kind: Any = {"layer": nn.LayerNorm, "rms": nn.RMSNorm}[config.norm]
    return kind(epsilon=config.norm_epsilon, use_fast_variance=False, **dtypes)


def attention(config: TransformerConfig, dtypes: dict[str, Any]) -> Any:
    """Returns the attention layer of `config`."""
    inside = None if isinstance(config.position, InputPosition) else config.position
    shared: dict[str, Any] = {
        "position": inside,
        "softcap": config.softcap,
        "dropout_rate": config.dropout_rate,
        "dtype": dtypes["dtype"],
    }
    if config.form == "raw":
        return RawAttention(scale=1.0 if config.scale is None else config.scale, **shared)
    shared |= {
        "num_heads": config.num_heads,
        "head_dim": config.head_dim,
        "num_kv_heads": config.num_kv_heads,
        "ov": config.ov,
        "use_bias": config.attention_bias,
        "normalize_qk": config.normalize_qk,
        "scale": config.scale,
        "param_dtype": dtypes["param_dtype"],
    }
    if config.form == "merged":
        return MergedAttention(qk_init=config.qk_init, **shared)
    return SeparateAttention(**shared)


class Block(nn.Module):
    """One layer, `[B, T, D]` to `[B, T, D]`; see `TransformerConfig.residual`.

    Parameters are `attention`, `norm_attention`, `norm_mlp`, `mlp_in`, `mlp_out` and, gated,
    `mlp_gate`. What attention reads is sown as "attention_inputs" in the collection
    "intermediates".

    Attributes:
      config: The model's settings.
      dtype: Of the computation; by default the promotion of inputs and parameters.
      param_dtype: Of the parameters.
    """

    config: TransformerConfig
    dtype: DTypeLike | None = None
    param_dtype: DTypeLike = jnp.float32

    def setup(self) -> None:
        """Creates the parts."""
        config = self.config
        dtypes: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        dense: Any = functools.partial(nn.Dense, use_bias=config.mlp_bias, **dtypes)
        self.attention = attention(config, dtypes)
        self.norm_attention = norm(config, dtypes)
        self.norm_mlp = norm(config, dtypes)
        self.mlp_in = dense(config.mlp_width)
        if config.gated:
            self.mlp_gate = dense(config.mlp_width)
        self.mlp_out = dense(config.width)

    def __call__(
        self,
        x: Float[Array, "B T D"],
        *,
        mask: Mask | BooleanMask | None = None,
        positions: Positions | None = None,
        deterministic: bool | None = None,
        sow_weights: bool = False,
    ) -> Float[Array, "B T D"]:
        """Applies the layer.

        Args:
          x: The residual stream.
          mask: Which token may attend which; see `attend`.
          positions: Of the tokens, by default 0, 1, ...
          deterministic: Whether dropout is off.
          sow_weights: Whether to store the attention weights.
        """
        inputs = self._attention_inputs(x)
        attended = self.attention(
            inputs,
            mask=mask,
            deterministic=deterministic,
            sow_weights=sow_weights,
            query_positions=positions,
            key_positions=positions,
        )
        return self._after_attention(x, attended)

    def extend(
        self,
        x: Float[Array, "B T D"],
        cache: Cache,
        *,
        valid: Bool[Array, "B T"] | None = None,
        mask: Mask | BooleanMask | None = None,
    ) -> tuple[Float[Array, "B T D"], Cache]:
        """Applies the layer to further tokens, which attend those in the cache too.

        Args:
          x: The residual stream of the new tokens.
          cache: Of the tokens before them.
          valid: False at padding; see the `extend` of the attention layers.
          mask: Of the new tokens against all keys; see there.

        Returns:
          `(x, cache)`; the cache holds the new tokens too.
        """
        inputs = self._attention_inputs(x)
        attended, cache = self.attention.extend(inputs, cache, valid=valid, mask=mask)
        return self._after_attention(x, attended), cache

    def _attention_inputs(self, x: Array) -> Array:
        inputs = x if self.config.residual == "post" else self.norm_attention(x)
        self.sow("intermediates", "attention_inputs", inputs)
        return inputs

    def _after_attention(self, x: Array, attended: Array) -> Array:
        if self.config.residual == "post":
            x = self.norm_attention(x + attended)
            return self.norm_mlp(x + self._feed_forward(x))
        after = self.norm_mlp(x if self.config.residual == "parallel" else x + attended)
        return x + attended + self._feed_forward(after)

    def _feed_forward(self, x: Array) -> Array:
        hidden = self.mlp_in(x)
        activation = ACTIVATIONS[self.config.activation]
        if self.config.gated:
            hidden = activation(self.mlp_gate(x)) * hidden
        else:
            hidden = activation(hidden)
        return self.mlp_out(hidden)
