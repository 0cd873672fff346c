"""What a language model is asked: how likely a text is, and how it goes on."""

from typing import Any

import jax
import jax.numpy as jnp

from attention_jax import checks
from attention_jax.models.transformer import Transformer, checked_ids
from attention_jax.types import Array, Float, Int, Parameters


def score(
    model: Transformer, params: Parameters, tokens: Int[Array, "B T"]
) -> Float[Array, "B T-1"]:
    """Returns `log p(token t + 1 | tokens up to t)`, in nats.

    Args:
      model: A causal model with a head.
      params: Its parameters.
      tokens: `[B, T]`, at least two of them.

    Raises:
      ValueError: The model is not causal, or has no head, there is nothing to predict, or a known
        token is outside the vocabulary; a traced one gives NaN.
      TypeError: Tokens are not integers.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from attention_jax.models import TransformerConfig
      >>> model = Transformer(TransformerConfig(5, 8, 1, 2, 16))
      >>> tokens = jnp.array([[3, 1, 4]])
      >>> params = model.init(jax.random.key(0), tokens)["params"]
      >>> score(model, params, tokens).shape
      (1, 2)
    """
    _check_language_model(model)
    tokens = checked_ids("tokens", tokens, model.config.vocab_size)
    if tokens.shape[-1] < 2:
        raise checks.refuse(
            ValueError, "tokens", "at least two", tokens.shape[-1], "the first is never predicted"
        )
    logits: Any = model.apply({"params": params}, tokens[:, :-1], deterministic=True)
    logs = jax.nn.log_softmax(logits, axis=-1)
    return jnp.take_along_axis(logs, tokens[:, 1:, None], axis=-1, mode="fill")[..., 0]


def generate(
    model: Transformer, params: Parameters, tokens: Int[Array, "B T"], *, num_tokens: int
) -> Int[Array, "B N"]:
    """Returns `tokens` followed by `num_tokens` more, each the most likely one (greedy).

    Every step evaluates the whole sequence again: `num_tokens * (T + num_tokens)` token
    evaluations.

    Args:
      model: A causal model with a head.
      params: Its parameters.
      tokens: The prompts, `[B, T]`, all of one length.
      num_tokens: How many tokens follow.

    Raises:
      ValueError: The model is not causal, has no head, or has too few learned positions; or a
        known token is outside the vocabulary. Where logits are not finite, tokens are -1.
      TypeError: Tokens are not integers.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from attention_jax.models import TransformerConfig
      >>> model = Transformer(TransformerConfig(5, 8, 1, 2, 16))
      >>> tokens = jnp.array([[3, 1, 4]])
      >>> params = model.init(jax.random.key(0), tokens)["params"]
      >>> generate(model, params, tokens, num_tokens=2).shape
      (1, 5)
    """
    _check_language_model(model)
    checks.check_positive_int("num_tokens", num_tokens)
    tokens = checked_ids("tokens", tokens, model.config.vocab_size)
    length = tokens.shape[-1]
    if not length:
        raise checks.refuse(ValueError, "tokens", "at least one", 0, "begin with some token")
    padded = jnp.pad(tokens, ((0, 0), (0, num_tokens)))

    def step(index: Array, padded: Array) -> Array:
        x: Any = model.apply({"params": params}, padded, deterministic=True, method="encode")
        last = jax.lax.dynamic_slice_in_dim(x, index - 1, 1, axis=1)
        logits: Any = model.apply({"params": params}, last, method="logits")
        likeliest = jnp.argmax(logits[:, 0], axis=-1).astype(padded.dtype)
        # NaN is greater than nothing and would become token 0.
        known = jnp.all(jnp.isfinite(logits[:, 0]), axis=-1)
        return padded.at[:, index].set(jnp.where(known, likeliest, -1))

    return jax.lax.fori_loop(length, length + num_tokens, step, padded)


def _check_language_model(model: Transformer) -> None:
    config = model.config
    if not config.causal or config.head == "none":
        raise checks.refuse(
            ValueError,
            "model",
            "a causal model with a head",
            f"causal={config.causal}, head={config.head!r}",
            "use a decoder; encoders have method='encode' and, with a masked head, logits",
        )
