"""One layer of a transformer: attention and a feed-forward part around the residual stream."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike

from attention_jax.linen import MergedAttention, RawAttention, SeparateAttention
from attention_jax.masks import Mask
from attention_jax.models.config import TransformerConfig
from attention_jax.positions import InputPosition
from attention_jax.types import Array, BooleanMask, Float, Positions

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu": functools.partial(jax.nn.gelu, approximate=False),
    "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
}


def norm(config: TransformerConfig, dtypes: dict[str, Any], name: str | None = None) -> Any:
    """Returns the norm of `config`."""
    # The fast variance is a difference of large numbers where the mean is not small.
    kind: Any = {"layer": nn.LayerNorm, "rms": nn.RMSNorm}[config.norm]
    return kind(epsilon=config.norm_epsilon, use_fast_variance=False, name=name, **dtypes)


def attention(config: TransformerConfig, dtypes: dict[str, Any], name: str) -> Any:
    """Returns the attention layer of `config`."""
    inside = None if isinstance(config.position, InputPosition) else config.position
    shared: dict[str, Any] = {
        "position": inside,
        "softcap": config.softcap,
        "dropout_rate": config.dropout_rate,
        "dtype": dtypes["dtype"],
        "name": name,
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

    @nn.compact
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
        config = self.config
        dtypes: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        dense: Any = functools.partial(nn.Dense, use_bias=config.mlp_bias, **dtypes)

        def attend(x: Array) -> Array:
            self.sow("intermediates", "attention_inputs", x)
            return attention(config, dtypes, "attention")(
                x,
                mask=mask,
                deterministic=deterministic,
                sow_weights=sow_weights,
                query_positions=positions,
                key_positions=positions,
            )

        def feed_forward(x: Array) -> Array:
            hidden = dense(config.mlp_width, name="mlp_in")(x)
            activation = ACTIVATIONS[config.activation]
            if config.gated:
                hidden = activation(dense(config.mlp_width, name="mlp_gate")(x)) * hidden
            else:
                hidden = activation(hidden)
            return dense(config.width, name="mlp_out")(hidden)

        norm_attention = norm(config, dtypes, "norm_attention")
        norm_mlp = norm(config, dtypes, "norm_mlp")
        if config.residual == "post":
            x = norm_attention(x + attend(x))
            return norm_mlp(x + feed_forward(x))
        attended = x + attend(norm_attention(x))
        after = norm_mlp(x if config.residual == "parallel" else attended)
        return attended + feed_forward(after)
