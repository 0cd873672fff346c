"""What a transformer computes, apart from its weights."""

import dataclasses
import math
from typing import Literal

from attention_jax import checks
from attention_jax.positions import Position, check_position

Form = Literal["separate", "merged", "raw"]
Ov = Literal["separate", "merged"]
Residual = Literal["pre", "post", "parallel"]
Norm = Literal["layer", "rms"]
Activation = Literal["gelu", "gelu_tanh", "relu", "silu"]
Head = Literal["none", "linear", "masked"]


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
    """The settings of a `Transformer`, from which its parameters' shapes follow.

    Attributes:
      vocab_size: Number of tokens.
      width: Model width D.
      num_layers: Number of blocks that are applied.
      num_heads: Query heads H.
      mlp_width: Hidden width of the feed-forward part.
      head_dim: Width K of a separate head; by default D / H.
      num_kv_heads: Key and value heads G; by default H.
      form: Form of the attention: "separate", "merged" or "raw".
      ov: "separate" for W_v and W_o, "merged" for one W_ov per head.
      causal: Whether a token sees only itself and earlier ones.
      position: `aj.Rotary`, `aj.ALiBi`, `aj.Learned`, `aj.Sinusoidal` or None.
      residual: Where the norms stand. "pre": `x + f(norm(x))`, and a norm at the end. "post":
        `norm(x + f(x))`. "parallel": `x + attention(norm_1(x)) + mlp(norm_2(x))`, and a norm at
        the end.
      norm: "layer" (with gain and bias) or "rms" (with gain).
      norm_epsilon: Added to the variance.
      activation: "gelu" (by the error function), "gelu_tanh", "relu" or "silu".
      gated: Whether the hidden part is `activation(gate(x)) * in(x)`.
      attention_bias: Whether the projections of attention have biases.
      mlp_bias: Whether the feed-forward part has biases.
      scale: Factor of the scores; by default `head_dim ** -0.5`.
      softcap: Bound of the scores, or None.
      normalize_qk: Whether queries and keys are normalised.
      dropout_rate: Of the attention weights.
      qk_init: How a merged W_qk begins; see `MergedAttention`.
      token_types: Number of token types (segments) that are embedded, or None.
      embedding_width: Width of embeddings that a projection to D follows, or None.
      embedding_norm: Whether the sum of embeddings is normalised.
      layer_groups: Number of blocks with their own parameters, each applied to `num_layers /
        layer_groups` layers in a row; by default `num_layers`.
      head: What follows the last block. "none": the encoder alone. "linear": logits. "masked": a
        dense layer, activation and norm, then logits with a bias.
      tied: Whether the logits' matrix is the embedding.
      pooler: Whether there is a dense layer with tanh over the first token.

    Raises:
      ValueError: A setting is unknown or sizes do not fit.
      TypeError: A size is not an integer, or a flag is not a bool.

    Example:
      >>> import attention_jax as aj
      >>> config = TransformerConfig(
      ...     vocab_size=11, width=8, num_layers=2, num_heads=2, mlp_width=16, position=aj.Rotary())
      >>> config.causal, config.form
      (True, 'separate')
    """

    vocab_size: int
    width: int
    num_layers: int
    num_heads: int
    mlp_width: int
    _: dataclasses.KW_ONLY
    head_dim: int | None = None
    num_kv_heads: int | None = None
    form: Form = "separate"
    ov: Ov = "separate"
    causal: bool = True
    position: Position | None = None
    residual: Residual = "pre"
    norm: Norm = "layer"
    norm_epsilon: float = 1e-6
    activation: Activation = "gelu"
    gated: bool = False
    attention_bias: bool = True
    mlp_bias: bool = True
    scale: float | None = None
    softcap: float | None = None
    normalize_qk: bool = False
    dropout_rate: float = 0.0
    qk_init: Literal["product", "iid", "zero", "symmetric"] = "product"
    token_types: int | None = None
    embedding_width: int | None = None
    embedding_norm: bool = False
    layer_groups: int | None = None
    head: Head = "linear"
    tied: bool = False
    pooler: bool = False

    def __post_init__(self) -> None:
        """Checks the settings that no module checks for itself."""
        for name in ("vocab_size", "width", "num_layers", "num_heads", "mlp_width"):
            checks.check_positive_int(name, getattr(self, name))
        for name in ("token_types", "embedding_width", "layer_groups", "head_dim"):
            if getattr(self, name) is not None:
                checks.check_positive_int(name, getattr(self, name))
        checks.check_heads(
            self.num_heads, self.num_heads if self.num_kv_heads is None else self.num_kv_heads
        )
        for name in (
            "causal", "gated", "attention_bias", "mlp_bias", "embedding_norm", "tied", "pooler",
            "normalize_qk",
        ):  # fmt: skip
            checks.check_bool(name, getattr(self, name))
        checks.check_choice("form", self.form, ("separate", "merged", "raw"))
        checks.check_choice("residual", self.residual, ("pre", "post", "parallel"))
        checks.check_choice("norm", self.norm, ("layer", "rms"))
        checks.check_choice("activation", self.activation, ("gelu", "gelu_tanh", "relu", "silu"))
        checks.check_choice("head", self.head, ("none", "linear", "masked"))
        checks.check_choice("ov", self.ov, ("separate", "merged"))
        checks.check_choice("qk_init", self.qk_init, ("product", "iid", "zero", "symmetric"))
        checks.check_dropout_rate(self.dropout_rate)
        checks.check_softcap(self.softcap)
        for name in ("norm_epsilon", "scale"):
            value = getattr(self, name)
            if value is not None:
                checks.check_real(name, value)
                if not math.isfinite(value):
                    raise checks.refuse(ValueError, name, "a finite number", value, "choose one")
        if self.norm_epsilon < 0:
            raise checks.refuse(
                ValueError, "norm_epsilon", "at least 0", self.norm_epsilon, "use 1e-6"
            )
        check_position(self.position)
        if self.num_layers % self.groups:
            raise checks.refuse(
                ValueError,
                "layer_groups",
                f"a divisor of num_layers={self.num_layers}",
                self.layer_groups,
                "choose how many layers in a row share parameters",
            )

    @property
    def groups(self) -> int:
        """The number of blocks with their own parameters."""
        return self.num_layers if self.layer_groups is None else self.layer_groups

    @property
    def embedded(self) -> int:
        """The width of the embeddings."""
        return self.width if self.embedding_width is None else self.embedding_width
