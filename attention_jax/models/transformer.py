"""A transformer over tokens, from settings that cover the published architectures."""

from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike

from attention_jax import checks
from attention_jax.caches import Cache
from attention_jax.linen import LearnedPositions
from attention_jax.linen.cached import Kind
from attention_jax.masks import Mask, causal
from attention_jax.models.block import ACTIVATIONS, Block, attention, norm
from attention_jax.models.config import TransformerConfig
from attention_jax.models.head import Head
from attention_jax.models.tokens import checked_ids, checked_types, next_positions, without_padding
from attention_jax.positions import Learned, Sinusoidal
from attention_jax.types import Array, Bool, BooleanMask, Float, Int, Positions

Caches = tuple[Cache, ...]


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
            self.head = Head(config, self.param_dtype)

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
        x = self._embed(tokens, token_types, positions)
        if self.config.causal:
            mask = causal() if mask is None else causal() & mask
        for block in self._layers():
            x = block(
                x,
                mask=mask,
                positions=positions,
                deterministic=deterministic,
                sow_weights=sow_weights,
            )
        return self._last(x)

    @nn.nowrap
    def init_cache(
        self,
        batch_size: int,
        capacity: int,
        dtype: DTypeLike | None = None,
        *,
        window: int | None = None,
        kind: Kind | None = None,
    ) -> Caches:
        """Returns empty caches, one for each layer; layers that share parameters have their own.

        Args:
          batch_size: Number of rows B.
          capacity: Number of tokens that `extend` may take in all, padding included.
          dtype: Of the cached arrays; by default that of the computation.
          window: How many of the last tokens a token sees, or None for all; see the attention
            layers' `init_cache`.
          kind: What is cached, by default what suits the form; see there.

        Raises:
          ValueError: A size is not positive, or the kind is unknown or does not fit the form.
        """
        computed = self.param_dtype if self.dtype is None else self.dtype
        layer = attention(self.config, {"dtype": computed, "param_dtype": self.param_dtype})
        width = self.config.width
        return tuple(
            layer.init_cache(batch_size, capacity, dtype, features=width, window=window, kind=kind)
            for _ in range(self.config.num_layers)
        )

    def extend(
        self,
        tokens: Int[Array, "B T"],
        cache: Caches,
        *,
        valid: Bool[Array, "B T"] | None = None,
        token_types: Int[Array, "B T"] | None = None,
    ) -> tuple[Float[Array, "B T N"], Caches]:
        """Returns logits of further tokens, and the caches that hold them too.

        Any division of a text into calls gives the logits of one call with all of it, up to
        rounding. Positions count the tokens of each row, without padding.

        Args:
          tokens: `[B, T]`, any number of them.
          cache: From `init_cache`, or from an earlier call.
          valid: `[B, T]`, False at padding, which no token sees and whose logits mean nothing.
          token_types: Segments of the tokens, by default 0.

        Returns:
          `(logits [B, T, N], cache)`.

        Raises:
          ValueError: The model is not causal or has no head, arguments do not fit, a known token is
            outside the vocabulary, or a known position is past learned ones or the capacity; a
            traced one gives NaN.
          TypeError: Tokens are not integers.

        Example:
          >>> import jax, jax.numpy as jnp
          >>> model = Transformer(TransformerConfig(5, 8, 1, 2, 16))
          >>> tokens = jnp.array([[3, 1, 4]])
          >>> variables = model.init(jax.random.key(0), tokens)
          >>> cache = model.init_cache(batch_size=1, capacity=3)
          >>> first, cache = model.apply(variables, tokens[:, :2], cache, method="extend")
          >>> last, cache = model.apply(variables, tokens[:, 2:], cache, method="extend")
          >>> whole = model.apply(variables, tokens)
          >>> bool(jnp.allclose(last[0, 0], whole[0, 2], atol=1e-5))
          True
        """
        x, cache = self.extend_states(tokens, cache, valid=valid, token_types=token_types)
        return self.logits(x), cache

    def extend_states(
        self,
        tokens: Int[Array, "B T"],
        cache: Caches,
        *,
        valid: Bool[Array, "B T"] | None = None,
        token_types: Int[Array, "B T"] | None = None,
    ) -> tuple[Float[Array, "B T D"], Caches]:
        """Returns hidden states `[B, T, D]` instead of logits, otherwise as `extend`."""
        config = self.config
        if not config.causal:
            raise checks.refuse(
                ValueError, "config.causal", True, False,
                "without it earlier tokens see later ones: call encode with the whole text",
            )  # fmt: skip
        if len(cache) != config.num_layers:
            raise checks.refuse(
                ValueError, "cache", f"one for each of {config.num_layers} layers", len(cache),
                "make it with this model's init_cache",
            )  # fmt: skip
        tokens = without_padding(tokens, valid)
        first = cache[0].next_position
        if len(tokens) != len(first):
            raise checks.refuse(
                ValueError, "cache", f"{len(tokens)} rows as tokens", f"{len(first)} rows",
                "make it with init_cache(batch_size, ...) for this batch",
            )  # fmt: skip
        positions = next_positions(first, tokens.shape[1], valid)
        x = self._embed(tokens, token_types, positions)
        extended = []
        for block, entry in zip(self._layers(), cache, strict=True):
            x, entry = block.extend(x, entry, valid=valid)
            extended.append(entry)
        return self._last(x), tuple(extended)

    def _embed(
        self, tokens: Array, token_types: Array | None, positions: Positions | None
    ) -> Array:
        config = self.config
        x = self.embedding(checked_ids("tokens", tokens, config.vocab_size))
        if config.token_types is not None:
            types = checked_types(token_types, tokens, config.token_types)
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
        return x

    def _layers(self) -> list[Block]:
        groups, layers = self.config.groups, self.config.num_layers
        return [self.block[index * groups // layers] for index in range(layers)]

    def _last(self, x: Array) -> Array:
        return x if self.config.residual == "post" else self.final_norm(x)

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
