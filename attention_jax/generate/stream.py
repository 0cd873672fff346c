"""Generation in short runs, so that a text can be read while it grows."""

import functools
from collections.abc import Iterable, Iterator

import jax
import jax.numpy as jnp

from attention_jax import checks, decode, models
from attention_jax.generate.vocabulary import Vocabulary
from attention_jax.linen.cached import Kind
from attention_jax.models.generation import checked_prompt, computed_dtype
from attention_jax.models.transformer import Caches
from attention_jax.types import Parameters

RUN = 8
"""Tokens of one run: fewer would be seen sooner, and wait for Python more often."""


def stream(
    model: models.Transformer,
    params: Parameters,
    prompt: list[int],
    *,
    num_tokens: int,
    seed: int = 0,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    stop_token: int | None = None,
    chunk_size: int | None = None,
    window: int | None = None,
    cache_kind: Kind | None = None,
) -> Iterator[list[int]]:
    """Yields what `models.generate` appends to a prompt, a few tokens at a time.

    It ends early after `stop_token`, which is yielded too.

    Args:
      model: A causal model with a head.
      params: Its parameters.
      prompt: Its tokens.
      num_tokens: How many tokens follow at most.
      seed: Of the random draws.
      temperature: See `models.generate`.
      top_k: See there.
      top_p: See there.
      stop_token: See there.
      chunk_size: See there.
      window: See there.
      cache_kind: See there.

    Raises:
      ValueError: As `models.generate`.
      FloatingPointError: Logits are not finite.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> model = models.Transformer(models.TransformerConfig(5, 8, 1, 2, 16))
      >>> tokens = jnp.array([[3, 1, 4]])
      >>> params = model.init(jax.random.key(0), tokens)["params"]
      >>> found = [*stream(model, params, [3, 1, 4], num_tokens=10)]
      >>> [len(part) for part in found]
      [1, 8, 1]
      >>> whole = models.generate(model, params, tokens, num_tokens=10)
      >>> whole[0, 3:].tolist() == sum(found, [])
      True
    """
    tokens = jnp.asarray(prompt, jnp.int32)[None]
    sampling = decode.Sampling(temperature, top_k, top_p, stop_token)
    checked_prompt(model, tokens, sampling, valid=None, num_tokens=num_tokens)
    runs = -(-(num_tokens - 1) // RUN)
    cache = model.init_cache(
        1,
        len(prompt) + RUN * runs,
        computed_dtype(model, params),
        window=window,
        kind=cache_kind,
    )
    key = jax.random.key(seed)
    state = _begin(model, params, tokens, cache, key, chunk_size=chunk_size, sampling=sampling)
    part = [int(state.token[0])]
    while True:
        if -1 in part:
            raise FloatingPointError(
                checks.message("logits", "finite numbers", "others", "check the parameters")
            )
        num_tokens -= len(part)
        yield part
        if not num_tokens or state.ended[0]:
            return
        found, state = _run(model, params, state, sampling=sampling)
        part = found[0, :num_tokens].tolist()
        if stop_token in part:
            part = part[: part.index(stop_token) + 1]


@functools.partial(jax.jit, static_argnums=0, static_argnames=("chunk_size", "sampling"))
def _begin(
    model: models.Transformer,
    params: Parameters,
    tokens: jax.Array,
    cache: Caches,
    key: jax.Array,
    *,
    chunk_size: int | None,
    sampling: decode.Sampling,
) -> decode.State:
    logits, cache = models.prefill(model, params, tokens, cache, chunk_size=chunk_size)
    return decode.begin(logits, cache, key, **sampling._asdict())


@functools.partial(jax.jit, static_argnums=0, static_argnames="sampling", donate_argnums=2)
def _run(
    model: models.Transformer, params: Parameters, state: decode.State, *, sampling: decode.Sampling
) -> tuple[jax.Array, decode.State]:
    step = models.step(model, params)
    return decode.loop(step, state, num_tokens=RUN, **sampling._asdict())


def growing_text(parts: Iterable[list[int]], vocabulary: Vocabulary) -> Iterator[str]:
    """Yields the text of `parts`, each piece when no later token can change it.

    Example:
      >>> [*growing_text([[79, 195], [185], [33]], Vocabulary.bytes())]
      ['O', 'ù', '!']
    """
    tokens: list[int] = []
    text, shown = "", 0
    for part in parts:
        tokens += part
        text = vocabulary.decode(tokens)
        # The tokens of a character may come in two parts.
        whole = len(text.rstrip("\ufffd"))
        if whole > shown:
            yield text[shown:whole]
            shown = whole
    if len(text) > shown:
        yield text[shown:]
