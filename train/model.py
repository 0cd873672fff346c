"""A decoder language model in which only the form of the attention changes."""

import functools
import typing

import jax
import jax.numpy as jnp
from flax import linen as nn

import attention_jax as aj
from train import config as config_lib


def position(config: config_lib.ModelConfig) -> typing.Any:
    """What acts inside attention: an encoding of the scores, or None."""
    if config.position == "rotary":
        return aj.Rotary()
    if config.position == "alibi":
        return aj.ALiBi(1 if config.form == "raw" else config.num_heads)
    return None


def attention(config: config_lib.ModelConfig) -> nn.Module:
    """The attention layer of the config's form, named `attention`."""
    shared = functools.partial(
        _module(config.form),
        position=position(config),
        softcap=config.softcap,
        dropout_rate=config.dropout_rate,
        dtype=jnp.dtype(config.dtype),
        name="attention",
    )
    if config.form == "raw":
        return shared()
    weighted = functools.partial(
        shared,
        num_heads=config.num_heads,
        head_dim=config.head_dim,
        num_kv_heads=config.num_kv_heads,
        ov=config.ov,
        use_bias=config.use_bias,
        normalize_qk=config.normalize_qk,
        param_dtype=_param_dtype(config),
    )
    if config.form == "merged":
        return weighted(qk_init="product" if config.start == "separate" else config.start)
    return weighted()


def _module(form: config_lib.Form) -> type[nn.Module]:
    if form == "separate":
        return aj.SeparateAttention
    return aj.MergedAttention if form == "merged" else aj.RawAttention


def _param_dtype(config: config_lib.ModelConfig) -> jnp.dtype:
    return jnp.promote_types(jnp.float32, jnp.dtype(config.dtype))


def transformer(config: config_lib.ModelConfig) -> aj.models.Transformer:
    """The function of `Decoder` with the same parameters, without dropout, and with caches.

    Learned positions end with the context; other encodings go on beyond it.
    """
    where = position(config)
    if config.position == "learned":
        where = aj.Learned(config.context)
    if config.position == "sinusoidal":
        where = aj.Sinusoidal(config.width)
    settings = aj.models.TransformerConfig(
        config.vocab_size,
        config.width,
        config.num_layers,
        config.num_heads,
        config.mlp_ratio * config.width,
        head_dim=config.head_dim,
        num_kv_heads=config.num_kv_heads,
        form=config.form,
        ov=config.ov,
        position=where,
        activation="gelu_tanh",
        attention_bias=config.use_bias,
        softcap=config.softcap,
        normalize_qk=config.normalize_qk,
    )
    return aj.models.Transformer(settings, jnp.dtype(config.dtype), _param_dtype(config))


class Block(nn.Module):
    """`x + attention(norm(x))`, then `x + mlp(norm(x))`."""

    config: config_lib.ModelConfig

    @nn.compact
    def __call__(self, x: jax.Array, deterministic: bool) -> jax.Array:
        """Applies the block to `x` `[B, T, D]`."""
        config = self.config
        norm = functools.partial(
            nn.LayerNorm, dtype=jnp.dtype(config.dtype), param_dtype=_param_dtype(config)
        )
        dense = functools.partial(
            nn.Dense, dtype=jnp.dtype(config.dtype), param_dtype=_param_dtype(config)
        )
        attended = attention(config)(
            norm(name="norm_attention")(x), mask=aj.causal(), deterministic=deterministic
        )
        x = x + attended
        hidden = dense(config.mlp_ratio * config.width, name="mlp_in")(norm(name="norm_mlp")(x))
        return x + dense(config.width, name="mlp_out")(nn.gelu(hidden))


class Decoder(nn.Module):
    """Tokens `[B, T]` to next-token logits `[B, T, vocab_size]`.

    Parameter names outside `attention` are the same for every form, so one seed draws the same
    numbers for all of them.
    """

    config: config_lib.ModelConfig

    @nn.compact
    def __call__(self, tokens: jax.Array, *, deterministic: bool) -> jax.Array:
        """Applies the model; dropout needs the rng stream "dropout" unless deterministic."""
        config = self.config
        if tokens.shape[-1] > config.context:
            raise ValueError(
                f"tokens: expected at most model.context={config.context} of them, "
                f"got {tokens.shape[-1]}; raise the context or shorten the window"
            )
        x = nn.Embed(
            config.vocab_size,
            config.width,
            dtype=jnp.dtype(config.dtype),
            param_dtype=_param_dtype(config),
            name="embedding",
        )(tokens)
        if config.position == "learned":
            x = aj.LearnedPositions(
                config.context, param_dtype=_param_dtype(config), name="positions"
            )(x)
        if config.position == "sinusoidal":
            positions = jnp.arange(tokens.shape[-1])
            x = aj.Sinusoidal(config.width).apply(x, positions)
        for index in range(config.num_layers):
            x = Block(config, name=f"block_{index}")(x, deterministic)
        x = nn.LayerNorm(
            dtype=jnp.dtype(config.dtype), param_dtype=_param_dtype(config), name="final_norm"
        )(x)
        # Logits in float32 or wider: the loss is a difference of large numbers.
        return nn.Dense(
            config.vocab_size,
            use_bias=False,
            dtype=_param_dtype(config),
            param_dtype=_param_dtype(config),
            name="head",
        )(x)
