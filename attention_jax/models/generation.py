"""How a language model goes on after a prompt: prefill, then a token at a time from caches."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from attention_jax import checks, decode
from attention_jax.linen.cached import Kind
from attention_jax.models.language import check_language_model
from attention_jax.models.tokens import checked_ids, without_padding
from attention_jax.models.transformer import Caches, Transformer
from attention_jax.positions import Learned
from attention_jax.types import Array, Bool, DropoutKey, Float, Int, Parameters


def generate(
    model: Transformer,
    params: Parameters,
    tokens: Int[Array, "B T"],
    *,
    num_tokens: int,
    valid: Bool[Array, "B T"] | None = None,
    key: DropoutKey | None = None,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    stop_token: int | None = None,
    chunk_size: int | None = None,
    window: int | None = None,
    cache_kind: Kind | None = None,
    cache_dtype: DTypeLike | None = None,
) -> Int[Array, "B N"]:
    """Returns `tokens` followed by `num_tokens` more, by default each the most likely one (greedy).

    The prompt is evaluated once, each further token once, with caches of those before it:
    `T + num_tokens - 1` token evaluations.

    Args:
      model: A causal model with a head.
      params: Its parameters.
      tokens: The prompts, `[B, T]`. Shorter ones are padded on the left.
      num_tokens: How many tokens follow.
      valid: `[B, T]`, False at padding, by default none. A row gives what it would give alone.
      key: Random key, needed above temperature 0.
      temperature: See `aj.decode.sample`.
      top_k: See there.
      top_p: See there.
      stop_token: A row that has produced it goes on with it, and nothing is computed once all
        rows have.
      chunk_size: How many tokens of the prompt are evaluated at a time, by default all. Fewer need
        less memory.
      window: See `Transformer.init_cache`.
      cache_kind: See there.
      cache_dtype: See there; by default that of the computation.

    Returns:
      `[B, T + num_tokens]`. Where logits are not finite, tokens are -1 from there on.

    Raises:
      ValueError: The model is not causal, has no head, or has too few learned positions; a setting
        is out of range; a known token is outside the vocabulary; or padding is known to be on the
        right. Tokens are -1 where a traced one is.
      TypeError: Tokens are not integers, or an argument has the wrong kind.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from attention_jax.models import TransformerConfig
      >>> model = Transformer(TransformerConfig(5, 8, 1, 2, 16))
      >>> tokens = jnp.array([[0, 3, 1], [2, 3, 4]])
      >>> params = model.init(jax.random.key(0), tokens)["params"]
      >>> generate(model, params, tokens, num_tokens=2, valid=jnp.array([[False, True, True],
      ...     [True, True, True]])).shape
      (2, 5)
    """
    sampling = decode.Sampling(temperature, top_k, top_p, stop_token)
    found = _generate(
        model,
        params,
        checked_prompt(model, tokens, sampling, valid=valid, num_tokens=num_tokens),
        valid,
        key,
        num_tokens=num_tokens,
        sampling=sampling,
        chunk_size=chunk_size,
        window=window,
        cache_kind=cache_kind,
        cache_dtype=cache_dtype,
    )
    return jnp.concatenate([checks.signed(tokens), found], axis=1)


# Compiled here, because a loop that is not is compiled again in every call.
@functools.partial(
    jax.jit,
    static_argnums=0,
    static_argnames=(
        "num_tokens",
        "sampling",
        "chunk_size",
        "window",
        "cache_kind",
        "cache_dtype",
    ),
)
def _generate(
    model: Transformer,
    params: Parameters,
    tokens: Array,
    valid: Array | None,
    key: DropoutKey | None,
    *,
    num_tokens: int,
    sampling: decode.Sampling,
    chunk_size: int | None,
    window: int | None,
    cache_kind: Kind | None,
    cache_dtype: DTypeLike | None,
) -> Array:
    # The last token is chosen and never evaluated.
    capacity = tokens.shape[1] + num_tokens - 1
    dtype = computed_dtype(model, params) if cache_dtype is None else cache_dtype
    cache = model.init_cache(tokens.shape[0], capacity, dtype, window=window, kind=cache_kind)
    logits, cache = prefill(model, params, tokens, cache, valid=valid, chunk_size=chunk_size)
    state = decode.begin(logits, cache, key, **sampling._asdict())
    if num_tokens == 1:
        return state.token[:, None]
    more, _ = decode.loop(
        step(model, params), state, num_tokens=num_tokens - 1, **sampling._asdict()
    )
    return jnp.concatenate([state.token[:, None], more], axis=1)


def prefill(
    model: Transformer,
    params: Parameters,
    tokens: Int[Array, "B T"],
    cache: Caches,
    *,
    valid: Bool[Array, "B T"] | None = None,
    chunk_size: int | None = None,
) -> tuple[Float[Array, "B N"], Caches]:
    """Returns the logits of the last token of each prompt, and the caches that hold the prompts.

    Args:
      model: A causal model with a head.
      params: Its parameters.
      tokens: The prompts, `[B, T]`, padded on the left.
      cache: From `model.init_cache`, or from an earlier call.
      valid: `[B, T]`, False at padding. Where the last one is False logits are NaN.
      chunk_size: How many tokens are evaluated at a time, by default all.

    Raises:
      ValueError: There is no token, or `Transformer.extend` refuses its arguments.
      TypeError: An argument has the wrong kind.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from attention_jax import decode
      >>> from attention_jax.models import TransformerConfig
      >>> model = Transformer(TransformerConfig(5, 8, 1, 2, 16))
      >>> tokens = jnp.array([[3, 1, 4]])
      >>> params = model.init(jax.random.key(0), tokens)["params"]
      >>> cache = model.init_cache(batch_size=1, capacity=9)
      >>> logits, cache = prefill(model, params, tokens, cache, chunk_size=2)
      >>> state = decode.begin(logits, cache)
      >>> decode.loop(step(model, params), state, num_tokens=6)[0].shape
      (1, 6)
    """
    tokens = without_padding(tokens, valid)
    batch, length = tokens.shape
    if not length:
        raise checks.refuse(ValueError, "tokens", "at least one", 0, "begin with some token")
    if chunk_size is not None:
        checks.check_positive_int("chunk_size", chunk_size)
    size = length if chunk_size is None else min(chunk_size, length)
    # The part that is left over comes first, so that the last token ends a whole chunk.
    first = length % size or size

    def part(tokens: Array, cache: Caches, valid: Array | None) -> tuple[Array, Caches]:
        states: Any = model.apply(
            {"params": params}, tokens, cache, valid=valid, method="extend_states"
        )
        x, cache = states
        return x[:, -1:], cache

    x, cache = part(tokens[:, :first], cache, None if valid is None else valid[:, :first])
    if first < length:

        def chunks(array: Array) -> Array:
            return array[:, first:].reshape(batch, -1, size).swapaxes(0, 1)

        def body(
            carry: tuple[Array, Caches], chunk: tuple[Array, Array | None]
        ) -> tuple[tuple[Array, Caches], None]:
            return part(chunk[0], carry[1], chunk[1]), None

        rest = (chunks(tokens), None if valid is None else chunks(valid))
        (x, cache), _ = jax.lax.scan(body, (x, cache), rest)
    logits: Any = model.apply({"params": params}, x, method="logits")
    logits = logits[:, 0]
    if valid is not None:
        logits = jnp.where(valid[:, -1:], logits, jnp.nan)
    return logits, cache


def step(model: Transformer, params: Parameters) -> decode.Step:
    """Returns `(tokens [B], cache) -> (logits [B, N], cache)` of a model, for `aj.decode.loop`."""

    def advance(token: Array, cache: Any) -> tuple[Array, Any]:
        extended: Any = model.apply({"params": params}, token[:, None], cache, method="extend")
        logits, cache = extended
        return logits[:, 0], cache

    return advance


def computed_dtype(model: Transformer, params: Parameters) -> Any:
    """Returns the dtype in which `model` computes with `params`, which a cache holds exactly."""
    return jnp.result_type(*jax.tree.leaves(params)) if model.dtype is None else model.dtype


def checked_prompt(
    model: Transformer,
    tokens: Int[Array, "B T"],
    sampling: decode.Sampling,
    *,
    valid: Bool[Array, "B T"] | None,
    num_tokens: int,
) -> Int[Array, "B T"]:
    """Returns `tokens` with 0 at padding, after the checks that `generate` makes."""
    check_language_model(model)
    sampling.check(model.config.vocab_size)
    checks.check_positive_int("num_tokens", num_tokens)
    tokens = checked_ids("tokens", without_padding(tokens, valid), model.config.vocab_size)
    if not tokens.shape[1]:
        raise checks.refuse(ValueError, "tokens", "at least one", 0, "begin with some token")
    longest = tokens.shape[1]
    if isinstance(valid, jax.core.Tracer):
        longest = 1
    elif valid is not None:
        known = np.asarray(valid)
        wrong = np.flatnonzero(~known[:, -1] | (known[:, :-1] > known[:, 1:]).any(axis=1))
        if wrong.size:
            raise checks.refuse(
                ValueError, "valid", "padding on the left only, and a last token in every row",
                f"row {wrong[0]} otherwise", "move the tokens of each row to its right end",
            )  # fmt: skip
        longest = int(known.sum(axis=1).max(initial=1))
    position = model.config.position
    if isinstance(position, Learned) and longest + num_tokens > position.capacity:
        raise checks.refuse(
            ValueError, "tokens and num_tokens", f"at most capacity={position.capacity} together",
            longest + num_tokens, "generate fewer, or shorten the prompt",
        )  # fmt: skip
    return tokens
