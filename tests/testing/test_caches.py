"""The assertion that a cache is consistent, and caches that it must find out."""

import functools

import jax
import jax.numpy as jnp
import pytest

import attention_jax as aj
from attention_jax.testing import assert_cache_consistent
from tests.paths import variables_of

X = jax.random.normal(jax.random.key(0), (2, 4, 8))
MODULE = aj.SeparateAttention(2, position=aj.Rotary())
VARIABLES = variables_of(MODULE, X)
parallel = jax.jit(functools.partial(MODULE.apply, VARIABLES, mask=aj.causal()))
apply = jax.jit(functools.partial(MODULE.apply, VARIABLES, method="extend"))
plain = jax.jit(functools.partial(MODULE.apply, VARIABLES))


def init():
    return MODULE.init_cache(2, 4, features=8)


def forgets(x, cache):
    return apply(x, init())[0], cache


def all_at_the_same_position(x, cache):
    return apply(x, cache, positions=jnp.zeros(x.shape[1], int))


def causal_from_the_left_corner(x, seen):
    """Each chunk's first query sees the first key alone."""
    seen = x if seen is None else jnp.concatenate([seen, x], axis=1)
    corner = jnp.tril(jnp.ones((x.shape[1], seen.shape[1]), bool))[None, None]
    return plain(x, seen, mask=corner), seen


def one_row_for_all(x, cache):
    output, cache = apply(x, cache)
    return output.at[1].set(output[0]), cache


def test_a_cache_that_is_right():
    assert_cache_consistent(parallel, init, apply, X)
    assert_cache_consistent(parallel, init, apply, X, chunkings=[(1, 3)])


@pytest.mark.parametrize(
    ("start", "extend", "match"),
    [
        (init, forgets, r"chunks \(1, 1, 1, 1\): the outputs of tokens 1 to 1 \(call 2\)"),
        (init, all_at_the_same_position, r"chunks \(4,\): the outputs of tokens 0 to 3 \(call 1\)"),
        (lambda: None, causal_from_the_left_corner, r"tokens 1 to 1 \(call 2\) differ. Largest"),
        (init, one_row_for_all, r"at output\[1, "),
    ],
)
def test_caches_that_are_wrong(start, extend, match):
    with pytest.raises(AssertionError, match=match):
        assert_cache_consistent(parallel, start, extend, X)


def test_tokens_are_integers_on_another_axis():
    x = jnp.array([3, 1, 4, 1, 5])

    def extend(x, total):
        sums = total + jnp.cumsum(x)
        return sums, sums[-1]

    assert_cache_consistent(jnp.cumsum, lambda: 0, extend, x, axis=0)
    with pytest.raises(AssertionError, match=r"\(call 2\)"):
        assert_cache_consistent(jnp.cumsum, lambda: 0, lambda x, _: extend(x, 0), x, axis=0)


def test_what_could_not_fail_is_refused():
    with pytest.raises(ValueError, match="x: expected at least 3 tokens"):
        assert_cache_consistent(parallel, init, apply, X[:, :2])
    with pytest.raises(ValueError, match="the last output depends on the tokens before it"):
        assert_cache_consistent(lambda x: 2 * x, init, lambda x, c: (2 * x, c), X)
    with pytest.raises(ValueError, match="at least two calls"):
        assert_cache_consistent(parallel, init, apply, X, chunkings=[(4,)])
    with pytest.raises(ValueError, match=r"sum to T=4, got \(3, 2\)"):
        assert_cache_consistent(parallel, init, apply, X, chunkings=[(3, 2)])
