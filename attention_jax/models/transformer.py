"""A transformer over tokens, from settings that cover the published architectures."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.typing import DTypeLike

from attention_jax import checks
from attention_jax.linen import LearnedPositions
from attention_jax.masks import Mask, causal
from attention_jax.models.block import ACTIVATIONS, Block, norm
from attention_jax.models.config import TransformerConfig
from attention_jax.positions import Learned, Sinusoidal
from attention_jax.types import Array, BooleanMask, Float, Int, Positions


class Transformer(nn.Module):
    """Tokens `[B, T]` to logits `[B, T, vocab_size]`, or to hidden states `[B, T, D]`.

    Parameters are `embedding`, `block_0`, `block_1`, ... (see `Block`), and where the settings ask
    for them `positions`, `token_types`, `embedding_norm`, `embedding_projection`, `final_norm`,
    `pooler`, `head_transform`, `head_norm` and `head`.

    Attributes:
      config: The settings.
      dtype: Of the computation; by default the promotion of inputs and parameters. Logits are
        float32 or wider.
      param_dtype: Of the parameters.

    Raises:
      ValueError: Settings do not fit, a known token is outside the vocabulary, or there are more
        tokens than learned positions. A traced token outside gives NaN.
      TypeError: Tokens are not integers.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> config = TransformerConfig(
      ...     vocab_size=11, width=8, num_layers=2, num_heads=2, mlp_width=16)
      >>> model = Transformer(config)
      >>> tokens = jnp.array([[3, 1, 4]])
      >>> variables = model.init(jax.random.key(0), tokens)
      >>> model.apply(variables, tokens).shape
      (1, 3, 11)
      >>> model.apply(variables, tokens, method="encode").shape
      (1, 3, 8)
    """

    config: TransformerConfig
    dtype: DTypeLike | None = None
    param_dtype: DTypeLike = jnp.float32

    def setup(self) -> None:
        """Creates the parts."""
        config = self.config
        dtypes: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        self.embedding = nn.Embed(config.vocab_size, config.embedded, **dtypes)
        if config.token_types is not None:
            self.token_types = nn.Embed(config.token_types, config.embedded, **dtypes)
        if isinstance(config.position, Learned):
            self.positions = LearnedPositions(config.position.capacity, self.param_dtype)
        if config.embedding_norm:
            self.embedding_norm = norm(config, dtypes)
        if config.embedding_width is not None:
            self.embedding_projection = nn.Dense(config.width, **dtypes)
        self.block = [Block(config, **dtypes) for _ in range(config.groups)]
        if config.residual != "post":
            self.final_norm = norm(config, dtypes)
        if config.pooler:
            self.pooler = nn.Dense(config.width, **dtypes)
        if config.head == "masked":
            self.head_transform = nn.Dense(config.embedded, **dtypes)
            self.head_norm = norm(config, dtypes)
        if config.head != "none":
            self.head = _Head(config, self.param_dtype)

    def __call__(
        self,
        tokens: Int[Array, "B T"],
        *,
        mask: Mask | BooleanMask | None = None,
        token_types: Int[Array, "B T"] | None = None,
        positions: Positions | None = None,
        deterministic: bool | None = None,
        sow_weights: bool = False,
    ) -> Float[Array, "B T N"]:
        """Returns logits, or hidden states where the model has no head.

        Args:
          tokens: `[B, T]`.
          mask: Which token may attend which, beside the causal mask of `config.causal`; for
            padding at the end `aj.padding(lengths)`.
          token_types: Segments of the tokens, by default 0.
          positions: Of the tokens, `[T]` or `[B, T]`, by default 0, 1, ...
          deterministic: Whether dropout is off; must be said with a dropout rate above 0.
          sow_weights: Whether to store the weights of each layer, `[B, H, T, S]`, as
            "attention_weights" in the collection "intermediates"; layers that share parameters
            append to one tuple.
        """
        x = self.encode(
            tokens,
            mask=mask,
            token_types=token_types,
            positions=positions,
            deterministic=deterministic,
            sow_weights=sow_weights,
        )
        if self.is_initializing() and self.config.pooler:
            self.pool(x)
        return x if self.config.head == "none" else self.logits(x)

    def encode(
        self,
        tokens: Int[Array, "B T"],
        *,
        mask: Mask | BooleanMask | None = None,
        token_types: Int[Array, "B T"] | None = None,
        positions: Positions | None = None,
        deterministic: bool | None = None,
        sow_weights: bool = False,
    ) -> Float[Array, "B T D"]:
        """Returns the hidden states after the last block (and norm); arguments as in a call."""
        config = self.config
        x = self.embedding(checked_ids("tokens", tokens, config.vocab_size))
        if config.token_types is not None:
            types = jnp.zeros_like(tokens) if token_types is None else token_types
            types = checked_ids("token_types", types, config.token_types)
            if types.shape != tokens.shape:
                raise checks.refuse(
                    ValueError,
                    "token_types",
                    f"shape {tokens.shape} as tokens",
                    f"shape {types.shape}",
                    "give each token its type",
                )
            x = x + self.token_types(types)
        elif token_types is not None:
            raise checks.refuse(
                ValueError, "token_types", "None, because the model embeds no token types",
                type(token_types).__name__, "leave them out",
            )  # fmt: skip
        if isinstance(config.position, Learned):
            x = self.positions(x, positions)
        if isinstance(config.position, Sinusoidal):
            where = jnp.arange(tokens.shape[-1]) if positions is None else positions
            x = config.position.apply(x, where)
        if config.embedding_norm:
            x = self.embedding_norm(x)
        if config.embedding_width is not None:
            x = self.embedding_projection(x)
        mask = _with_causal(mask) if config.causal else mask
        for index in range(config.num_layers):
            x = self.block[index * config.groups // config.num_layers](
                x,
                mask=mask,
                positions=positions,
                deterministic=deterministic,
                sow_weights=sow_weights,
            )
        return x if config.residual == "post" else self.final_norm(x)

    def logits(self, x: Float[Array, "B T D"]) -> Float[Array, "B T N"]:
        """Returns logits of the hidden states `x`, in float32 or wider."""
        if self.config.head == "none":
            raise checks.refuse(
                ValueError, "config.head", "'linear' or 'masked'", "'none'",
                "the model has hidden states only: use method='encode'",
            )  # fmt: skip
        if self.config.head == "masked":
            x = self.head_norm(ACTIVATIONS[self.config.activation](self.head_transform(x)))
        return self.head(x, self.embedding.embedding if self.config.tied else None)

    def pool(self, x: Float[Array, "B T D"]) -> Float[Array, "B D"]:
        """Returns `tanh(pooler(x[:, 0]))` of the hidden states `x`."""
        if not self.config.pooler:
            raise checks.refuse(
                ValueError, "config.pooler", True, False, "take the mean over tokens instead"
            )
        return jnp.tanh(self.pooler(x[:, 0]))


class _Head(nn.Module):
    """Logits: a matrix of its own unless one is given, and a bias after a masked head."""

    config: TransformerConfig
    param_dtype: DTypeLike

    @nn.compact
    def __call__(
        self, x: Float[Array, "B T E"], embedding: Float[Array, "N E"] | None
    ) -> Float[Array, "B T N"]:
        # A loss is a difference of large logits.
        wide = jnp.promote_types(jnp.promote_types(x.dtype, self.param_dtype), jnp.float32)
        size = self.config.vocab_size
        if embedding is None:
            shape = (x.shape[-1], size)
            kernel = self.param("kernel", nn.initializers.lecun_normal(), shape, self.param_dtype)
        else:
            kernel = embedding.T
        logits = x.astype(wide) @ kernel.astype(wide)
        if self.config.head == "masked":
            bias = self.param("bias", nn.initializers.zeros_init(), (size,), self.param_dtype)
            logits = logits + bias.astype(wide)[None, None]
        return logits


def _with_causal(mask: Mask | BooleanMask | None) -> Mask | BooleanMask:
    return causal() if mask is None else causal() & mask


def checked_ids(argument: str, ids: Array, size: int) -> Array:
    """Returns `ids` `[B, T]`, of at least 32 bits, traced ones outside 0 to `size` as `size`.

    Negative indices would count from the end; beyond the end a lookup gives NaN.
    """
    if not checks.is_array(ids) or not jnp.issubdtype(ids.dtype, jnp.integer):
        raise checks.refuse(
            TypeError,
            argument,
            "an array of integers",
            ids.dtype if checks.is_array(ids) else type(ids).__name__,
            "pass token numbers as jnp.int32",
        )
    if ids.ndim != 2:
        raise checks.refuse(
            ValueError, argument, "[B, T]", f"shape {ids.shape}", "add the axis of the batch"
        )
    if not isinstance(ids, jax.core.Tracer) and ids.size:
        known = np.asarray(ids)
        least, greatest = known.min(), known.max()
        if least < 0 or greatest >= size:
            raise checks.refuse(
                ValueError,
                argument,
                f"between 0 and {size - 1}",
                f"from {least} to {greatest}",
                "use the tokenizer that the model was trained with",
            )
    ids = checks.signed(ids)
    return jnp.where((ids < 0) | (ids >= size), size, ids)
