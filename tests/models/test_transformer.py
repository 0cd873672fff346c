"""Calls that do not fit, and what a language model is asked."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attention_jax as aj
from attention_jax import models

CONFIG = models.TransformerConfig(
    300, 12, 2, 3, 8, position=aj.Learned(9), token_types=2, layer_groups=1
)
TOKENS = np.array([[3, 1, 4, 1], [5, 9, 2, 6]], np.int32)


def made(config=CONFIG):
    model = models.Transformer(config)
    params = model.init(jax.random.key(0), TOKENS)["params"]
    return model, jax.tree.map(
        lambda x: x + 0.3 * jnp.sin(jnp.arange(x.size)).reshape(x.shape), params
    )


MODEL, PARAMS = made()


@functools.partial(jax.jit, static_argnums=0)
def run(model, params):
    return model.apply({"params": params}, TOKENS)


@pytest.mark.parametrize(
    ("tokens", "error", "match"),
    [
        (TOKENS + 297, ValueError, "tokens: expected between 0 and 299, got from 298 to 306"),
        (TOKENS - 2, ValueError, "tokens: .*from -1"),
        (TOKENS.astype("f4"), TypeError, "tokens: expected an array of integers, got float32"),
        (TOKENS.tolist(), TypeError, "tokens: .*got list"),
        (TOKENS[0], ValueError, r"tokens: expected \[B, T\], got shape \(4,\)"),
        (np.zeros((1, 10), np.int32), ValueError, "at most capacity=9 tokens"),
    ],
)
def test_tokens_that_do_not_fit(tokens, error, match):
    with pytest.raises(error, match=match):
        MODEL.apply({"params": PARAMS}, tokens)
    if "capacity" not in match:
        for ask in (models.score, lambda *a: models.generate(*a, num_tokens=2)):
            with pytest.raises(error, match=match):
                ask(MODEL, PARAMS, tokens)


def test_traced_tokens_outside_give_nan_and_no_other_row():
    run = jax.jit(lambda tokens: MODEL.apply({"params": PARAMS}, tokens))
    for outside in (-1, 300):
        tokens = TOKENS.copy()
        tokens[0, 2] = outside
        found = np.asarray(run(tokens))
        assert np.isnan(found[0, 2]).all() and np.isfinite(found[1]).all()
    score = jax.jit(lambda tokens: models.score(MODEL, PARAMS, tokens))
    last = TOKENS.copy()
    last[0, -1] = -1
    found = np.asarray(score(last))
    assert np.isnan(found[0, -1]) and np.isfinite(found[:, :-1]).all()


@pytest.mark.parametrize("shape", [(4,), (2,), (2, 1), (2, 4, 1), (1, 4)])
def test_token_types_have_the_shape_of_the_tokens(shape):
    with pytest.raises(ValueError, match="token_types: expected"):
        MODEL.apply({"params": PARAMS}, TOKENS, token_types=np.ones(shape, np.int32))
    types = np.array([[0, 0, 1, 1]] * 2, np.int32)
    plain = MODEL.apply({"params": PARAMS}, TOKENS)
    assert np.any(MODEL.apply({"params": PARAMS}, TOKENS, token_types=types) != plain)
    np.testing.assert_array_equal(
        MODEL.apply({"params": PARAMS}, TOKENS, token_types=0 * types), plain
    )


def test_score_is_the_log_probability_of_each_next_token():
    logits = np.asarray(MODEL.apply({"params": PARAMS}, TOKENS), "f8")
    logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    expected = np.take_along_axis(logs[:, :-1], TOKENS[:, 1:, None], -1)[..., 0]
    np.testing.assert_allclose(models.score(MODEL, PARAMS, TOKENS), expected, atol=1e-5)
    with pytest.raises(ValueError, match="tokens: expected at least two"):
        models.score(MODEL, PARAMS, TOKENS[:, :1])


def test_generate_takes_the_likeliest_token_each_time():
    tokens = TOKENS
    for _ in range(3):
        logits = MODEL.apply({"params": PARAMS}, tokens)
        tokens = np.concatenate([tokens, np.argmax(logits[:, -1:], -1).astype(np.int32)], axis=1)
    assert tokens.max() > 127
    for dtype in (np.int32, np.uint8, np.int8):
        found = models.generate(MODEL, PARAMS, TOKENS.astype(dtype), num_tokens=3)
        np.testing.assert_array_equal(found, tokens)


def test_generate_says_what_it_cannot():
    broken = jax.tree.map(lambda x: x * jnp.nan, PARAMS)
    found = models.generate(MODEL, broken, TOKENS, num_tokens=2)
    assert np.asarray(found)[:, 4:].tolist() == [[-1, -1]] * 2
    with pytest.raises(ValueError, match="tokens: expected at least one"):
        models.generate(MODEL, PARAMS, TOKENS[:, :0], num_tokens=2)
    with pytest.raises(ValueError, match="at most capacity=9"):
        models.generate(MODEL, PARAMS, TOKENS, num_tokens=6)
    encoder = models.Transformer(dataclasses.replace(CONFIG, causal=False))
    for ask in (models.score, lambda *a: models.generate(*a, num_tokens=1)):
        with pytest.raises(ValueError, match="model: expected a causal model with a head"):
            ask(encoder, PARAMS, TOKENS)


def test_left_padding_with_positions_is_the_unpadded_run():
    for position in (aj.Rotary(), aj.Learned(9)):
        model, params = made(dataclasses.replace(CONFIG, position=position, token_types=None))
        short = TOKENS[:, 1:]
        padded = np.concatenate([np.zeros((2, 2), np.int32), short], axis=1)
        mask = (np.arange(5) >= 2)[None, None, None]
        positions = np.maximum(np.arange(5) - 2, 0)[None].repeat(2, 0)
        found = model.apply({"params": params}, padded, mask=mask, positions=positions)[:, 2:]
        expected = model.apply({"params": params}, short)
        np.testing.assert_allclose(found, expected, atol=1e-5)
        without = model.apply({"params": params}, padded)[:, 2:]
        assert np.abs(without - expected).max() > 1e-2


@pytest.mark.parametrize(
    ("settings", "error", "match"),
    [
        ({"norm_epsilon": -1e-5}, ValueError, "norm_epsilon: expected at least 0"),
        ({"norm_epsilon": float("nan")}, ValueError, "norm_epsilon: expected a finite number"),
        ({"scale": float("inf")}, ValueError, "scale: expected a finite number"),
        ({"num_kv_heads": 2}, ValueError, "num_kv_heads: expected a divisor of num_heads=3"),
        ({"head_dim": 0}, ValueError, "head_dim: expected at least 1"),
        ({"form": "both"}, ValueError, "form: expected one of"),
        ({"ov": "joined"}, ValueError, "ov: expected one of"),
        ({"residual": "none"}, ValueError, "residual: expected one of"),
        ({"softcap": -1.0}, ValueError, "softcap"),
        ({"dropout_rate": 1.0}, ValueError, "dropout_rate"),
        ({"causal": "False"}, TypeError, "causal: expected True or False"),
        ({"layer_groups": 3}, ValueError, "layer_groups: expected a divisor of num_layers=2"),
        ({"position": "rotary"}, TypeError, "position: expected a position encoding"),
    ],
)
def test_settings_are_refused_when_they_are_made(settings, error, match):
    with pytest.raises(error, match=match):
        dataclasses.replace(CONFIG, **settings)


def test_a_part_that_stays_separate_keeps_its_width():
    config, params, _ = models.merge(*_separate(), ov=False)
    with pytest.raises(NotImplementedError, match="head_dim, num_kv_heads: .*not merged"):
        models.factor(config, params, head_dim=3)
    again, _, report = models.factor(config, params)
    assert (again.form, again.ov) == ("separate", "separate") and report.error < 1e-6


def _separate():
    model, params = made()
    return model.config, params


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"softcap": 2.0}, marks=pytest.mark.slow),
        {"position": aj.ALiBi(3)},
        {"num_kv_heads": 1},
    ],
)
def test_merge_and_factor_keep_the_function(settings):
    with jax.enable_x64(True):
        config = dataclasses.replace(CONFIG, **settings)
        model = models.Transformer(config, param_dtype=jnp.float64)
        params = jax.jit(model.init)(jax.random.key(0), TOKENS)["params"]
        params = jax.tree.map(
            lambda x: x + 0.1 * jnp.sin(jnp.arange(x.size)).reshape(x.shape), params
        )
        expected = run(model, params)
        merged_config, merged, _ = models.merge(config, params)
        for changed, tree in (
            (merged_config, merged),
            models.factor(merged_config, merged)[:2],
            models.factor(merged_config, merged, head_dim=7)[:2],
        ):
            found = run(models.Transformer(changed, param_dtype=jnp.float64), tree)
            np.testing.assert_allclose(found, expected, atol=1e-11)
