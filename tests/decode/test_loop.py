"""The loop, with step functions whose answers are known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax import decode

SIZE = 11


def next_number(token, cache):
    """The likeliest token is the next number; the cache counts calls."""
    return 3 * jax.nn.one_hot(token + 1, SIZE), cache + 1


def started(numbers, key=None, **settings):
    logits = 3 * jax.nn.one_hot(jnp.array(numbers), SIZE)
    return decode.begin(logits, jnp.int32(0), key, **settings)


def test_each_token_follows_from_the_one_before():
    tokens, state = decode.loop(next_number, started([2, 5]), num_tokens=4)
    assert tokens.tolist() == [[3, 4, 5, 6], [6, 7, 8, 9]]
    assert state.token.tolist() == [6, 9] and state.cache == 4


SETTINGS = {"temperature": 0.9, "top_k": 7, "stop_token": 10}


def test_runs_in_parts_are_one_run():
    start = started([0, 1, 2], jax.random.key(5), **SETTINGS)
    whole, last = decode.loop(next_number, start, num_tokens=12, **SETTINGS)
    other, _ = decode.loop(next_number, start._replace(key=jax.random.key(6)), num_tokens=12,
                           **SETTINGS)  # fmt: skip
    assert (other != whole).any()
    state, found = start, []
    for _ in range(3):
        tokens, state = decode.loop(next_number, state, num_tokens=4, **SETTINGS)
        found.append(tokens)
    np.testing.assert_array_equal(np.concatenate(found, axis=1), whole)
    np.testing.assert_array_equal(state.token, last.token)


def test_a_row_that_has_stopped_goes_on_with_the_stop_token():
    tokens, state = decode.loop(next_number, started([2, 6]), num_tokens=4, stop_token=8)
    assert tokens.tolist() == [[3, 4, 5, 6], [7, 8, 8, 8]]
    assert state.ended.tolist() == [False, True] and state.cache == 4
    # All rows have ended after two more.
    tokens, state = decode.loop(next_number, state, num_tokens=5, stop_token=8)
    assert tokens.tolist() == [[7, 8, 8, 8, 8], [8] * 5]
    assert state.ended.all() and state.cache == 6
    first = started([8, 8], stop_token=8)
    tokens, state = decode.loop(next_number, first, num_tokens=2, stop_token=8)
    assert tokens.tolist() == [[8, 8]] * 2 and state.cache == 0


def test_a_row_that_is_not_finite_goes_on_with_minus_one():
    def breaks_at_5(token, cache):
        logits, cache = next_number(token, cache)
        return jnp.where((token == 5)[:, None], jnp.nan, logits), cache

    tokens, state = decode.loop(breaks_at_5, started([1, 4]), num_tokens=4)
    assert tokens.tolist() == [[2, 3, 4, 5], [5, -1, -1, -1]]
    assert state.ended.tolist() == [False, True]


@pytest.mark.parametrize(
    ("settings", "error", "match"),
    [
        ({"num_tokens": 0}, ValueError, "num_tokens: expected at least 1"),
        ({"stop_token": 11}, ValueError, "stop_token: expected between 0 and 10, got 11"),
        ({"stop_token": -1}, ValueError, "stop_token"),
        ({"stop_token": 1.0}, TypeError, "stop_token: expected an integer or None"),
        ({"temperature": 1.0}, ValueError, "key: expected a random key"),
        ({"top_p": 2.0}, ValueError, "top_p"),
    ],
)
def test_settings_out_of_range(settings, error, match):
    with pytest.raises(error, match=match):
        decode.loop(next_number, started([1]), **{"num_tokens": 2, **settings})
