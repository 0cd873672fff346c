"""The loop of decoding: each token is chosen from the logits that the ones before it give."""

import numbers
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from attention_jax import checks
from attention_jax.decode.sampling import check_settings, sample
from attention_jax.types import Array, Bool, DropoutKey, Float, Int

Step = Callable[[Array, Any], tuple[Array, Any]]
"""From tokens `[B]` and a cache to logits `[B, N]` and the cache that holds these tokens too."""


class Sampling(NamedTuple):
    """The settings of `begin` and `loop` as one value that can be hashed; see `loop`."""

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    stop_token: int | None = None

    def check(self, size: int) -> None:
        """Raises unless the settings fit each other and a vocabulary of `size` tokens."""
        check_settings(size, temperature=self.temperature, top_k=self.top_k, top_p=self.top_p)
        if self.stop_token is not None:
            _check_stop_token(self.stop_token, size)


class State(NamedTuple):
    """Where decoding stands; what `loop` takes and returns.

    Attributes:
      token: The newest token of each row, `[B]`, which the cache does not hold yet.
      cache: The cache of the tokens before it.
      key: Random key of the tokens to come, or None.
      ended: Rows that go on with their newest token: the stop token, or -1.
    """

    token: Int[Array, " B"]
    cache: Any
    key: DropoutKey | None
    ended: Bool[Array, " B"]


def begin(
    logits: Float[Array, "B N"],
    cache: Any,
    key: DropoutKey | None = None,
    *,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    stop_token: int | None = None,
) -> State:
    """Chooses the first token from the logits of a prompt's last one; arguments as for `loop`.

    Example:
      >>> import jax.numpy as jnp
      >>> begin(jnp.array([[0.0, 3.0]]), None).token.tolist()
      [1]
    """
    Sampling(temperature, top_k, top_p, stop_token).check(logits.shape[-1])
    now, later = (None, None) if key is None else jax.random.split(key)
    token = sample(logits, now, temperature=temperature, top_k=top_k, top_p=top_p)
    ended = token < 0 if stop_token is None else (token < 0) | (token == stop_token)
    return State(token, cache, later, ended)


def loop(
    step: Step,
    state: State,
    *,
    num_tokens: int,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    stop_token: int | None = None,
) -> tuple[Int[Array, "B num_tokens"], State]:
    """Chooses `num_tokens` tokens after `state.token`, with a call of `step` for each.

    Several runs, each from the state that the last one left, give what one long run gives, random
    draws included.

    Args:
      step: `(tokens [B], cache) -> (logits [B, N], cache)`; the cache keeps its shapes.
      state: From `begin`, or from an earlier run.
      num_tokens: How many tokens follow.
      temperature: See `sample`; 0 takes the likeliest token.
      top_k: See `sample`.
      top_p: See `sample`.
      stop_token: A row that has produced it goes on with it, and `step` is not called once all
        rows have ended.

    Returns:
      `(tokens [B, num_tokens], state)`. Where logits are not finite the row goes on with -1.

    Raises:
      ValueError: A setting is out of range, or sampling has no key.
      TypeError: A setting has the wrong kind.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> def step(token, cache):  # the likeliest token is the next number
      ...     return jax.nn.one_hot(token + 1, 5), cache + 1
      >>> state = begin(jax.nn.one_hot(jnp.array([0, 2]), 5), jnp.int32(0))
      >>> tokens, state = loop(step, state, num_tokens=3, stop_token=4)
      >>> tokens.tolist(), int(state.cache), state.ended.tolist()
      ([[1, 2, 3], [3, 4, 4]], 3, [False, True])
    """
    checks.check_positive_int("num_tokens", num_tokens)

    def goes_on(carry: tuple[Array, Array, State]) -> Array:
        index, _, state = carry
        return (index < num_tokens) & ~jnp.all(state.ended)

    def advance(carry: tuple[Array, Array, State]) -> tuple[Array, Array, State]:
        index, tokens, state = carry
        logits, cache = step(state.token, state.cache)
        chosen = begin(
            logits,
            cache,
            state.key,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            stop_token=stop_token,
        )
        token = jnp.where(state.ended, state.token, chosen.token)
        state = chosen._replace(token=token, ended=state.ended | chosen.ended)
        return index + 1, tokens.at[:, index].set(token), state

    tokens = jnp.zeros((state.token.shape[0], num_tokens), jnp.int32)
    # A scan would go on when all rows have ended.
    count, tokens, state = jax.lax.while_loop(goes_on, advance, (jnp.int32(0), tokens, state))
    known = jnp.arange(num_tokens)[None] < count
    return jnp.where(known, tokens, state.token[:, None]), state


def _check_stop_token(stop_token: int, size: int) -> None:
    if isinstance(stop_token, bool) or not isinstance(stop_token, numbers.Integral):
        raise checks.refuse(
            TypeError, "stop_token", "an integer or None", f"{stop_token!r}", "pass one token"
        )
    if not 0 <= stop_token < size:
        raise checks.refuse(
            ValueError, "stop_token", f"between 0 and {size - 1}", stop_token,
            "None goes on to the last token",
        )  # fmt: skip
