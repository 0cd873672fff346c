"""The assertion that decoding with a cache is one call with the whole text."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from attention_jax import checks
from attention_jax.testing import compare
from attention_jax.types import Array


def assert_cache_consistent(
    parallel: Callable[[Array], Array],
    init: Callable[[], Any],
    extend: Callable[[Array, Any], tuple[Array, Any]],
    x: Array,
    *,
    chunkings: Sequence[Sequence[int]] | None = None,
    axis: int = 1,
    tolerance: float | None = None,
) -> None:
    """Asserts that chunks of tokens, one after the other, give the outputs of all at once.

    Args:
      parallel: From all tokens to their outputs, causal.
      init: Returns an empty cache.
      extend: From a chunk and a cache to the outputs of the chunk and the longer cache.
      x: Inputs `[B, T, ...]` or tokens `[B, T]`, with T of at least 3.
      chunkings: Numbers of tokens per call, each of which sums to T. By default all tokens at once,
        one by one, a prompt followed by single tokens, and two chunks.
      axis: Of the tokens, in `x` and in the outputs.
      tolerance: Relative to the largest output, or to 1; by default from the dtype.

    Raises:
      AssertionError: They differ; the message says in which chunking, for which tokens, where and
        by how much.
      ValueError: A cache that forgets would pass, or a chunking does not fit.

    Example:
      >>> import jax
      >>> import attention_jax as aj
      >>> x = jax.random.normal(jax.random.key(0), (2, 5, 4))
      >>> module = aj.RawAttention()
      >>> assert_cache_consistent(
      ...     lambda x: module.apply({}, x, mask=aj.causal()),
      ...     lambda: module.init_cache(2, 5),
      ...     lambda x, cache: module.apply({}, x, cache, method="extend"), x)
      >>> assert_cache_consistent(
      ...     lambda x: module.apply({}, x, mask=aj.causal()),
      ...     lambda: module.init_cache(2, 5),
      ...     lambda x, cache: (module.apply({}, x, mask=aj.causal()), cache), x)
      Traceback (most recent call last):
      AssertionError: chunks (1, 1, 1, 1, 1): the outputs of tokens 1 to 1 (call 2) differ...
    """
    length = x.shape[axis] if x.ndim > axis else 0
    if length < 3:
        raise compare.refuse_vacuous("x", f"at least 3 tokens on axis {axis}", f"shape {x.shape}")
    if chunkings is None:
        half = length // 2
        chunkings = [(length,), (1,) * length, (half, *(1,) * (length - half)), (length - 2, 2)]
    for chunks in chunkings:
        if sum(chunks) != length or min(chunks) < 1:
            raise checks.refuse(
                ValueError,
                "chunkings",
                f"positive numbers of tokens that sum to T={length}",
                tuple(chunks),
                "divide all tokens among the calls",
            )
    if all(len(chunks) < 2 for chunks in chunkings):
        raise compare.refuse_vacuous("chunkings", "one with at least two calls", list(chunkings))

    def tokens(y: Array, start: int, stop: int) -> Array:
        return jax.lax.slice_in_dim(y, start, stop, axis=axis)

    expected = parallel(x)
    last = tokens(x, length - 1, length)
    forgot = parallel(jnp.repeat(last, length, axis=axis))
    compare.check_differ(
        "x",
        "the last output depends on the tokens before it",
        tokens(expected, length - 1, length),
        tokens(forgot, length - 1, length),
        tolerance,
    )
    for chunks in chunkings:
        cache, start = init(), 0
        for call, size in enumerate(chunks, start=1):
            stop = start + size
            output, cache = extend(tokens(x, start, stop), cache)
            compare.assert_close(
                f"chunks {tuple(chunks)}: the outputs of tokens {start} to {stop - 1} "
                f"(call {call}) differ",
                tokens(expected, start, stop),
                output,
                tolerance,
            )
            start = stop
