"""Choosing a token from logits."""

import jax
import jax.numpy as jnp
import numpy as np

from attention_jax import checks
from attention_jax.types import Array, DropoutKey, Float, Int

# A smaller temperature is zero to processors that flush subnormal numbers.
_LEAST_TEMPERATURE = float(np.finfo(np.float32).tiny)


def greedy(logits: Float[Array, "*B N"]) -> Int[Array, "*B"]:
    """Returns the likeliest token, the lowest of several that are equally likely.

    Args:
      logits: `[..., N]`.

    Returns:
      `[...]`, int32. A row with a logit that is not finite gives -1.

    Raises:
      TypeError: Logits are not floating.

    Example:
      >>> import jax.numpy as jnp
      >>> greedy(jnp.array([[0.0, 2.0, 2.0], [0.0, jnp.nan, 1.0]])).tolist()
      [1, -1]
    """
    checks.check_floating("logits", logits)
    return _known(logits, jnp.argmax(logits, axis=-1))


def sample(
    logits: Float[Array, "*B N"],
    key: DropoutKey | None = None,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Int[Array, "*B"]:
    """Draws a token from `softmax(logits / temperature)`, cut to its likeliest tokens.

    The settings apply in this order, each to what the one before has left, renormalised:

    1. `temperature` divides the logits; 0 takes the likeliest token (`greedy`) and needs no key.
    2. `top_k` keeps the k likeliest tokens.
    3. `top_p` keeps the fewest likeliest tokens whose probabilities reach p together: a token
       stays if those before it sum to less than p, so the one that crosses p is kept.

    Of equally likely tokens the lower one comes first. Rows are drawn independently.

    Args:
      logits: `[..., N]`; probabilities are computed in float32 or wider.
      key: Random key; may be None only at temperature 0.
      temperature: At least 0.
      top_k: Between 1 and N, or None for all.
      top_p: In (0, 1], or None for all.

    Returns:
      `[...]`, int32. A row with a logit that is not finite gives -1, infinities included: to forbid
      a token, give it `jnp.finfo(dtype).min`.

    Raises:
      ValueError: A setting is out of range, or the key is missing.
      TypeError: Logits are not floating, or a setting is not a Python number.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> logits = jnp.log(jnp.array([[0.5, 0.3, 0.1, 0.1]]))
      >>> drawn = {int(sample(logits, jax.random.key(i), top_p=0.7)[0]) for i in range(20)}
      >>> sorted(drawn), int(sample(logits, temperature=0.0)[0])
      ([0, 1], 0)

    Paper: Holtzman et al., The curious case of neural text degeneration, arXiv 1904.09751,
    section 3.1 (top-p).
    """
    checks.check_floating("logits", logits)
    check_settings(logits.shape[-1], temperature=temperature, top_k=top_k, top_p=top_p)
    if temperature == 0:
        return greedy(logits)
    if key is None:
        raise checks.refuse(
            ValueError, "key", f"a random key, because temperature={temperature}", None,
            "pass jax.random.key(seed), or temperature=0.0 for the likeliest tokens",
        )  # fmt: skip
    wide = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    # Subtracted first: a quotient of large numbers by a small one would overflow.
    scaled = (wide - wide.max(axis=-1, keepdims=True)) / temperature
    if top_k is None and top_p is None:
        return _known(logits, jax.random.categorical(key, scaled))
    scaled, tokens = jax.lax.top_k(scaled, logits.shape[-1] if top_k is None else top_k)
    # Sums of rounded probabilities reach 1 before the last token.
    if top_p is not None and top_p < 1:
        probabilities = jax.nn.softmax(scaled, axis=-1)
        before = jnp.roll(jnp.cumsum(probabilities, axis=-1), 1, axis=-1).at[..., 0].set(0)
        scaled = jnp.where(before < top_p, scaled, -jnp.inf)
    rank = jax.random.categorical(key, scaled)
    return _known(logits, jnp.take_along_axis(tokens, rank[..., None], axis=-1)[..., 0])


def check_settings(
    size: int, *, temperature: float, top_k: int | None, top_p: float | None
) -> None:
    """Raises unless the settings of `sample` fit each other and a vocabulary of `size` tokens."""
    checks.check_real("temperature", temperature)
    if temperature != 0 and not _LEAST_TEMPERATURE <= temperature <= checks.LARGEST:
        raise checks.refuse(
            ValueError, "temperature", "0, or a positive finite number", temperature,
            "0 takes the likeliest token, 1 samples from the model",
        )  # fmt: skip
    if top_k is not None:
        checks.check_positive_int("top_k", top_k)
        if top_k > size:
            raise checks.refuse(
                ValueError, "top_k", f"at most the {size} tokens there are", top_k,
                "None keeps all tokens",
            )  # fmt: skip
    if top_p is not None:
        checks.check_real("top_p", top_p)
        if not 0 < top_p <= 1:
            raise checks.refuse(
                ValueError, "top_p", "a probability in (0, 1]", top_p, "None keeps all tokens"
            )


def _known(logits: Array, tokens: Array) -> Array:
    # NaN is greater than nothing and would become token 0.
    known = jnp.all(jnp.isfinite(logits), axis=-1)
    return jnp.where(known, tokens, -1).astype(jnp.int32)
