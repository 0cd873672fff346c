"""How likely a language model finds a text."""

from typing import Any

import jax
import jax.numpy as jnp

from attention_jax import checks
from attention_jax.models.tokens import checked_ids
from attention_jax.models.transformer import Transformer
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
    check_language_model(model)
    tokens = checked_ids("tokens", tokens, model.config.vocab_size)
    if tokens.shape[-1] < 2:
        raise checks.refuse(
            ValueError, "tokens", "at least two", tokens.shape[-1], "the first is never predicted"
        )
    logits: Any = model.apply({"params": params}, tokens[:, :-1], deterministic=True)
    logs = jax.nn.log_softmax(logits, axis=-1)
    return jnp.take_along_axis(logs, tokens[:, 1:, None], axis=-1, mode="fill")[..., 0]


def check_language_model(model: Transformer) -> None:
    """Raises ValueError unless `model` predicts the next token."""
    config = model.config
    if not config.causal or config.head == "none":
        raise checks.refuse(
            ValueError,
            "model",
            "a causal model with a head",
            f"causal={config.causal}, head={config.head!r}",
            "use a decoder; encoders have method='encode' and, with a masked head, logits",
        )
