"""The model: forms differ in attention only, and start as the same function."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attention_jax as aj
from train import config as config_lib
from train import model, start, summary

SMALL = config_lib.ModelConfig(num_layers=2, width=12, num_heads=3, context=7, vocab_size=17)
TOKENS = np.arange(14, dtype=np.int32).reshape(2, 7) % 17


def changed(**settings):
    return dataclasses.replace(SMALL, **settings)


@functools.partial(jax.jit, static_argnums=0)
def compiled_logits(config, params, tokens):
    return model.Decoder(config).apply({"params": params}, tokens, deterministic=True)


def logits(config, params, tokens=TOKENS):
    return compiled_logits(config, params, tokens)


initial_params = functools.cache(start.initial_params)


def with_biases(params):
    """Every leaf moved away from its special initial value (zero biases hide errors)."""
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    moved = [
        leaf + 0.1 * jax.random.normal(key, leaf.shape, leaf.dtype)
        for leaf, key in zip(leaves, keys, strict=True)
    ]
    return jax.tree.unflatten(tree, moved)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"ov": "merged"},
        {"num_kv_heads": 1, "head_dim": 5},
        {"position": "alibi", "use_bias": False},
        {"position": "sinusoidal", "softcap": 3.0},
    ],
    ids=str,
)
def test_separate_and_merged_start_as_the_same_function(settings):
    separate, merged = (changed(form=form, **settings) for form in ("separate", "merged"))
    params = {config.form: initial_params(config, 5) for config in (separate, merged)}
    assert "qk" in params["merged"]["block_1"]["attention"]
    assert "qk" not in params["separate"]["block_1"]["attention"]
    assert jax.tree.structure(params["merged"]) != jax.tree.structure(params["separate"])
    found = logits(merged, params["merged"])
    np.testing.assert_allclose(found, logits(separate, params["separate"]), atol=2e-6)


def test_merged_can_start_otherwise():
    same = logits(changed(form="merged"), initial_params(changed(form="merged"), 5))
    for name in ("product", "iid", "zero", "symmetric"):
        config = changed(form="merged", start=name)
        found = logits(config, initial_params(config, 5))
        assert jnp.abs(found - same).max() > 1e-4, name


def test_forms_share_every_draw_outside_attention():
    params = {form: initial_params(changed(form=form), 3) for form in config_lib.FORMS}
    other = initial_params(SMALL, 4)
    outside = {}
    for form, tree in params.items():
        outside[form] = {
            name: {part: leaf for part, leaf in block.items() if part != "attention"}
            for name, block in tree.items()
        }
    chex.assert_trees_all_equal(outside["separate"], outside["merged"], outside["raw"])
    assert jnp.any(other["head"]["kernel"] != params["raw"]["head"]["kernel"])


def test_layers_are_listed_by_number():
    names = [f"block_{index}" for index in (10, 2, 0)]
    params = {name: {"attention": {}} for name in names} | {"head": {}, "block_1": {}}
    assert list(summary._attention_layers(params)) == ["block_0", "block_2", "block_10"]


def test_merging_refuses_the_models_rotary_position():
    config = changed(position="rotary")
    params = initial_params(config, 0)["block_0"]["attention"]
    with pytest.raises((ValueError, NotImplementedError), match=r"[Rr]otary"):
        aj.merge(params, position=model.position(config))


def test_raw_has_no_attention_parameters():
    params = initial_params(changed(form="raw"), 0)
    assert "attention" in initial_params(SMALL, 0)["block_0"]
    assert "attention" not in params["block_0"]


@pytest.mark.parametrize("form", config_lib.FORMS)
@pytest.mark.parametrize("position", ["learned", "alibi"])
def test_nothing_is_seen_of_later_tokens(form, position):
    config = changed(form=form, position=position)
    params = with_biases(initial_params(config, 0))
    edited = TOKENS.copy()
    edited[:, 4] = (edited[:, 4] + 1) % 17
    difference = np.abs(logits(config, params) - logits(config, params, edited)).max((0, 2))
    assert (difference[:4] == 0).all()
    assert (difference[4:] > 1e-6).all()


def test_positions_do_something():
    for position in ("learned", "sinusoidal", "alibi", "rotary"):
        params = initial_params(changed(position=position), 0)
        bare = {name: leaf for name, leaf in params.items() if name != "positions"}
        found = logits(changed(position=position), params)
        assert jnp.abs(found - logits(changed(position="none"), bare)).max() > 1e-4, position


@pytest.mark.parametrize("form", config_lib.FORMS)
def test_bfloat16_computes_narrow_and_keeps_wide_parameters(form):
    config = changed(form=form, dtype="bfloat16")
    params = initial_params(config, 0)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    narrow, wide = logits(config, params), logits(changed(form=form), params)
    assert narrow.dtype == jnp.float32
    assert 0 < jnp.abs(narrow - wide).max() < 0.1


@pytest.mark.parametrize(
    ("form", "settings"),
    [
        ("separate", {"position": "learned", "softcap": 2.0, "num_kv_heads": 1, "head_dim": 5}),
        ("separate", {"position": "rotary", "normalize_qk": True}),
        ("merged", {"position": "sinusoidal", "softcap": 2.0}),
        ("merged", {"position": "alibi", "ov": "merged", "use_bias": False}),
        ("raw", {"position": "alibi"}),
        ("raw", {"position": "sinusoidal", "dtype": "bfloat16"}),
    ],
)
def test_the_transformer_with_caches_is_the_same_function(form, settings):
    config = changed(form=form, num_layers=1, **settings)
    params = with_biases(initial_params(config, 0))
    same = model.transformer(config)
    other = model.transformer(dataclasses.replace(config, position="none"))
    bare = {name: leaf for name, leaf in params.items() if name != "positions"}
    found, without = jax.jit(
        lambda: (same.apply({"params": params}, TOKENS), other.apply({"params": bare}, TOKENS))
    )()
    expected = logits(config, params)
    assert found.dtype == expected.dtype
    atol = 1e-5 if config.dtype == "float32" else 0.02
    np.testing.assert_allclose(found, expected, atol=atol)
    assert np.abs(without - expected).max() > 3 * atol


def test_dropout_needs_its_key_and_does_something():
    config = changed(dropout_rate=0.5)
    params = initial_params(config, 0)
    apply = functools.partial(model.Decoder(config).apply, {"params": params}, TOKENS)
    plain = apply(deterministic=True)
    dropped = [apply(deterministic=False, rngs={"dropout": jax.random.key(k)}) for k in (0, 0, 1)]
    np.testing.assert_array_equal(dropped[0], dropped[1])
    assert jnp.any(dropped[0] != dropped[2]) and jnp.any(dropped[0] != plain)
    np.testing.assert_array_equal(plain, apply(deterministic=True))


def test_refusals():
    with pytest.raises(ValueError, match=r"tokens: expected at most model.context=7 of them"):
        logits(SMALL, initial_params(SMALL, 0), np.zeros((1, 8), np.int32))
    with pytest.raises(ValueError, match=r"model.dtype: expected float64 to be enabled"):
        initial_params(changed(dtype="float64"), 0)
