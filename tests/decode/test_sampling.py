"""Sampling against the distributions that its settings define."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax import decode

# Token 4 is as likely as token 1, tokens 3 and 5 as each other.
PROBABILITIES = np.array([0.05, 0.2, 0.4, 0.075, 0.2, 0.075])
LOGITS = jnp.log(jnp.asarray(PROBABILITIES, jnp.float32))
DRAWS = 20_000
# Five standard deviations of the most spread frequency.
TOLERANCE = 5 * 0.5 / DRAWS**0.5


def reference(temperature=1.0, top_k=None, top_p=None):
    """Returns the distribution by the definition, in float64."""
    tempered = np.exp(np.log(PROBABILITIES / PROBABILITIES.max()) / temperature)
    order = np.argsort(-tempered, kind="stable")
    kept = order[:top_k]
    shares = tempered[kept] / tempered[kept].sum()
    if top_p is not None:
        before = np.concatenate([[0], np.cumsum(shares)[:-1]])
        kept = kept[before < top_p]
    found = np.zeros(len(tempered))
    found[kept] = tempered[kept] / tempered[kept].sum()
    return found


CASES = {
    # What is left, by hand.
    "all": ({}, [0.05, 0.2, 0.4, 0.075, 0.2, 0.075]),
    "top_p of 1 is all": ({"top_p": 1.0}, [0.05, 0.2, 0.4, 0.075, 0.2, 0.075]),
    "top_k of all": ({"top_k": 6}, [0.05, 0.2, 0.4, 0.075, 0.2, 0.075]),
    "one of two equal ones": ({"top_k": 2}, [0, 1 / 3, 2 / 3, 0, 0, 0]),
    "the lower of equal ones": ({"top_k": 4}, [0, 8 / 35, 16 / 35, 3 / 35, 8 / 35, 0]),
    "the one that crosses": ({"top_p": 0.41}, [0, 1 / 3, 2 / 3, 0, 0, 0]),
    "reached before": ({"top_p": 0.39}, [0, 0, 1, 0, 0, 0]),
    "least": ({"top_p": 1e-9}, [0, 0, 1, 0, 0, 0]),
    # Of the first three, 0.4 / 0.8 reaches a half; of all it would not.
    "top_k comes before top_p": ({"top_k": 3, "top_p": 0.49}, [0, 0, 1, 0, 0, 0]),
    # The squares are 0.0025, 0.04, 0.16, 0.005625, 0.04, 0.005625: their first has 0.63.
    "temperature comes before top_p": (
        {"temperature": 0.5, "top_p": 0.6},
        [0, 0, 1, 0, 0, 0],
    ),
    "temperature": ({"temperature": 2.0, "top_k": 3}, [0, 0.29289, 0.41421, 0, 0.29289, 0]),
    "cold": ({"temperature": 1e-30}, [0, 0, 1, 0, 0, 0]),
    "hot": ({"temperature": 1e30}, [1 / 6] * 6),
}


@functools.cache
def all_drawn():
    @jax.jit
    def draw(rows, key):
        return {name: decode.sample(rows, key, **settings) for name, (settings, _) in CASES.items()}

    return jax.device_get(draw(jnp.broadcast_to(LOGITS, (DRAWS, 6)), jax.random.key(3)))


@pytest.mark.parametrize("name", CASES)
def test_frequencies_are_the_distribution(name):
    settings, expected = CASES[name]
    np.testing.assert_allclose(reference(**settings), expected, atol=1e-5)
    frequencies = np.bincount(all_drawn()[name], minlength=6) / DRAWS
    assert ((frequencies > 0) == (np.array(expected) > 0)).all()
    assert np.abs(frequencies - expected).max() < TOLERANCE


def test_the_tolerance_tells_the_order_of_settings_apart():
    # Without top_k first, and without temperature first, more is left.
    assert (reference(top_p=0.49) > 0).sum() == 2
    assert (reference(top_p=0.6) > 0).sum() == 2
    away = np.abs(reference(temperature=2.0) - reference()).max()
    assert away > TOLERANCE


def test_draws_are_independent_by_row_and_repeat_by_key():
    rows = jnp.broadcast_to(LOGITS, (3, 50, 6))
    one, two = (decode.sample(rows, jax.random.key(seed), top_k=4) for seed in (0, 1))
    assert one.shape == (3, 50) and one.dtype == jnp.int32
    assert (one[0] != one[1]).any() and (one != two).any()
    np.testing.assert_array_equal(one, decode.sample(rows, jax.random.key(0), top_k=4))


def test_greedy_is_temperature_0_and_takes_the_lower_of_equals():
    logits = jnp.array([[0.0, 3.0, 3.0], [-1e38, -2e38, -3e38]])
    assert decode.greedy(logits).tolist() == [1, 0]
    assert decode.sample(logits, temperature=0.0, top_k=2, top_p=0.5).tolist() == [1, 0]
    # Large logits neither overflow nor change the draw.
    many = jnp.broadcast_to(logits, (200, 2, 3))
    drawn = np.asarray(decode.sample(many, jax.random.key(0), temperature=1e-3))
    assert set(drawn[:, 0]) == {1, 2} and set(drawn[:, 1]) == {0}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_logits_have_wide_probabilities(dtype):
    # In 8 bits of precision a sum of 4096 equal shares stops growing at a half of it.
    logits = jnp.zeros((1, 4096), dtype)
    draw = jax.jit(jax.vmap(lambda key: decode.sample(logits, key, top_p=0.75)[0]))
    drawn = np.asarray(draw(jax.random.split(jax.random.key(0), 500)))
    assert 2600 < drawn.max() < 3072


def test_logits_that_are_not_finite_give_minus_one_in_their_row():
    logits = jnp.stack([LOGITS.at[3].set(bad) for bad in (jnp.nan, 0, jnp.inf, 0, -jnp.inf)])
    for settings in ({"temperature": 0.0}, {}, {"top_k": 2}, {"top_p": 0.5}):
        found = decode.sample(logits, jax.random.key(0), **settings)
        assert (found < 0).tolist() == [True, False, True, False, True]


SAMPLE = functools.partial(decode.sample, LOGITS)


@pytest.mark.parametrize(
    ("settings", "error", "match"),
    [
        ({"temperature": -0.1}, ValueError, "temperature: expected 0, or a positive finite"),
        ({"temperature": 1e-39}, ValueError, "temperature"),
        ({"temperature": float("nan")}, ValueError, "temperature"),
        ({"temperature": float("inf")}, ValueError, "temperature"),
        ({"temperature": None}, TypeError, "temperature: expected a real Python number"),
        ({"top_k": 0}, ValueError, "top_k: expected at least 1"),
        ({"top_k": 7}, ValueError, "top_k: expected at most the 6 tokens there are"),
        ({"top_k": 2.0}, TypeError, "top_k: expected an integer"),
        ({"top_p": 0.0}, ValueError, r"top_p: expected a probability in \(0, 1\]"),
        ({"top_p": 1.1}, ValueError, "top_p"),
        ({"top_p": float("nan")}, ValueError, "top_p"),
        ({"top_p": True}, TypeError, "top_p"),
        ({"key": None}, ValueError, r"key: expected a random key, because temperature=1.0"),
    ],
)
def test_settings_out_of_range(settings, error, match):
    with pytest.raises(error, match=match):
        SAMPLE(**{"key": jax.random.key(0), **settings})


def test_logits_are_floats():
    for choose in (decode.greedy, lambda logits: decode.sample(logits, jax.random.key(0))):
        with pytest.raises(TypeError, match="logits: expected a floating dtype"):
            choose(jnp.array([[1, 2]]))
