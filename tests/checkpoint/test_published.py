"""Published checkpoints against what torch and transformers compute from the same files.

The references are in data/, with the script that makes them, which runs in float64. In float32
torch itself is 6e-6 away from them in ALBERT's hidden states, 1.2e-6 in its weights, and 3e-5 in
SmolLM2's logits.
"""

import dataclasses
import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attention_jax as aj
from attention_jax import checkpoint, models
from tests.checkpoint import packages

DATA = pathlib.Path(__file__).parent / "data"


SLOW = pytest.mark.slow


# The last one only: a few of these in each worker would fill a small machine.
@functools.lru_cache(maxsize=1)
def loaded(name, dtype="float32"):
    return checkpoint.load(packages.folder(name), dtype=dtype)


@functools.cache
def reference(name):
    with np.load(DATA / f"{name}.npz") as file:
        return dict(file)


def visible(stored):
    return np.arange(stored["tokens"].shape[1])[None] < stored["lengths"][:, None]


@functools.partial(jax.jit, static_argnums=0)
def encoded(model, params, tokens, lengths):
    return model.apply({"params": params}, tokens, mask=aj.padding(lengths), method="encode")


def hidden(config, params, stored, tokens=None):
    """Returns the hidden states of all tokens that are there."""
    model = models.Transformer(config)
    tokens = stored["tokens"] if tokens is None else tokens
    return np.asarray(encoded(model, params, tokens, stored["lengths"]))[visible(stored)]


@pytest.mark.parametrize("name", ["minilm", "albert"])
def test_encoders_give_the_hidden_states_of_transformers(name):
    config, params = loaded(name)
    stored = reference(name)
    expected = stored["hidden"][visible(stored)]
    found = hidden(config, params, stored)
    assert np.abs(found - expected).max() < 1e-5
    assert np.abs(expected).max() > 1
    # What stands at the padding is not seen; without the mask it would be.
    other = np.where(visible(stored), stored["tokens"], 7)
    np.testing.assert_array_equal(hidden(config, params, stored, other), found)
    everything = {**stored, "lengths": np.full(2, stored["tokens"].shape[1], np.int32)}
    leaky = encoded(models.Transformer(config), params, other, everything["lengths"])
    assert np.abs(np.asarray(leaky)[visible(stored)] - found).max() > 1e-2


def test_the_pooler_of_minilm():
    config, params = loaded("minilm")
    stored = reference("minilm")
    states = encoded(models.Transformer(config), params, stored["tokens"], stored["lengths"])
    pooled = models.Transformer(config).apply({"params": params}, states, method="pool")
    np.testing.assert_allclose(pooled, stored["pooled"], atol=1e-5)


@functools.partial(jax.jit, static_argnums=0)
def with_weights(model, params, tokens, lengths):
    return model.apply(
        {"params": params},
        tokens,
        mask=aj.padding(lengths),
        sow_weights=True,
        mutable=["intermediates"],
    )


@pytest.mark.parametrize(("dtype", "atol"), [("float32", 4e-6), ("float64", 1e-7)])
def test_the_attention_weights_and_logits_of_albert(dtype, atol):
    with jax.enable_x64(dtype == "float64"):
        config, params = loaded("albert", dtype)
        stored = reference("albert")
        model = models.Transformer(config)
        logits, state = with_weights(model, params, stored["tokens"], stored["lengths"])
        # The one block is applied twelve times; layer 10, head 5 maps atoms to atoms.
        layers = state["intermediates"]["block_0"]["attention"]["attention_weights"]
        assert len(layers) == 12
        seen = visible(stored)
        for layer, head, close in ((10, 5, True), (10, 4, False), (9, 5, False)):
            weights = np.asarray(layers[layer][:, head])[seen]
            difference = np.abs(weights - stored["weights_10_5"][seen]).max()
            assert (difference < atol) == close
        every_third = np.asarray(logits)[:, ::3][seen[:, ::3]]
        expected = stored["logits"][seen[:, ::3]]
        assert np.abs(every_third - expected).max() < 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("name", "dtype", "atol"),
    [
        ("minilm", "float32", 1e-5),
        pytest.param("albert", "float32", 1e-5, marks=SLOW),
        pytest.param("albert", "float64", 1e-11, marks=SLOW),
        pytest.param("minilm", "float64", 1e-11, marks=SLOW),
    ],
)
def test_merged_and_factored_models_are_the_same_function(name, dtype, atol):
    with jax.enable_x64(dtype == "float64"):
        config, params = loaded(name, dtype)
        stored = reference(name)
        separate = hidden(config, params, stored)
        merged_config, merged_params, report = models.merge(config, params)
        assert len(report.converted) == config.groups and not report.refused
        attention = merged_params["block_0"]["attention"]
        assert set(attention) == {"qk", "ov", "out"}
        merged = hidden(merged_config, merged_params, stored)
        assert 0 < np.abs(merged - separate).max() < atol
        again_config, again_params, again = models.factor(merged_config, merged_params)
        assert again.error < (1e-6 if dtype == "float32" else 1e-14)
        assert again_params["block_0"]["attention"]["query"]["kernel"].shape[2] == 32
        assert np.abs(hidden(again_config, again_params, stored) - separate).max() < atol
        if name == "albert":
            # A narrower factorisation is another function, so the comparison can fail.
            cut_config, cut_params, cut = models.factor(merged_config, merged_params, head_dim=31)
            assert cut.error > 1e-4
            assert np.abs(hidden(cut_config, cut_params, stored) - separate).max() > 10 * atol


@functools.partial(jax.jit, static_argnums=0)
def logits(model, params, tokens):
    return model.apply({"params": params}, tokens)


@pytest.mark.parametrize(
    ("dtype", "atol"), [("float32", 2e-4), pytest.param("float64", 2e-5, marks=SLOW)]
)
def test_smollm2_gives_the_logits_of_transformers(dtype, atol):
    stored = reference("smollm2")
    with jax.enable_x64(dtype == "float64"):
        config, params = loaded("smollm2", dtype)
        found = logits(models.Transformer(config), params, stored["tokens"])
        difference = np.abs(found[..., stored["columns"]] - stored["logits"])
        assert difference.max() < atol
        # The rows of W_q and W_k are stored for interleaved pairs.
        half = dataclasses.replace(config, position=aj.Rotary(theta=config.position.theta))
        wrong = logits(models.Transformer(half), params, stored["tokens"])
        assert np.abs(wrong[..., stored["columns"]] - stored["logits"]).max() > 1


@functools.partial(jax.jit, static_argnums=0)
def extended(model, params, tokens):
    """Returns the logits of a text whose tokens come one at a time."""

    def step(cache, token):
        found, cache = model.apply({"params": params}, token[:, None], cache, method="extend")
        return cache, found[:, 0]

    cache = model.init_cache(*tokens.shape, dtype=params["embedding"]["embedding"].dtype)
    return jax.lax.scan(step, cache, tokens.T)[1].swapaxes(0, 1)


def decoding_error(model, params, tokens):
    """Returns how far decoding is from full recomputation, in differences between logits.

    They are all that probabilities depend on. Logits themselves are as large as 43 here, and either
    way of computing them in float32 is 1.2e-4 away from float64.
    """
    difference = np.asarray(extended(model, params, tokens) - logits(model, params, tokens))
    return np.abs(difference - difference.mean(axis=-1, keepdims=True)).max()


@SLOW
@pytest.mark.parametrize(("dtype", "atol"), [("float32", 1e-4), ("float64", 1e-11)])
def test_decoding_smollm2_is_full_recomputation_up_to_rounding(dtype, atol):
    with jax.enable_x64(dtype == "float64"):
        config, params = loaded("smollm2", dtype)
        tokens = reference("smollm2")["greedy"]
        model = models.Transformer(config)
        assert 0 < decoding_error(model, params, tokens) < atol


@pytest.mark.slow
def test_smollm2_goes_on_as_transformers_does():
    stored = reference("smollm2")
    config, params = loaded("smollm2")
    tokenizer = checkpoint.tokenizer(packages.folder("smollm2"))
    prompt = np.array([tokenizer.encode("The capital of France is").ids], np.int32)
    np.testing.assert_array_equal(prompt, stored["tokens"])
    model = models.Transformer(config)
    generate = jax.jit(functools.partial(models.generate, model, num_tokens=6))
    found = np.asarray(generate(params, prompt))
    np.testing.assert_array_equal(found, stored["greedy"])
    continuation = tokenizer.decode(found[0, prompt.shape[1] :].tolist())
    assert continuation == str(stored["continuation"]) and continuation.startswith(" Paris.")
    scores = jax.jit(functools.partial(models.score, model))(params, found)
    assert scores.shape == (1, found.shape[1] - 1)
    # Greedy tokens are the likeliest, so a change of one makes the text less likely.
    other = found.copy()
    other[0, 6] = 100
    changed = jax.jit(functools.partial(models.score, model))(params, other)
    assert changed[0, 5] < scores[0, 5]
    np.testing.assert_allclose(changed[0, :5], scores[0, :5], atol=1e-5)


def test_the_tokenizer_of_smollm2_is_that_of_transformers():
    stored = reference("smollm2")
    tokenizer = checkpoint.tokenizer(packages.folder("smollm2"))
    for index, text in enumerate(stored["texts"]):
        assert tokenizer.encode(str(text)).ids == stored[f"text_{index}"].tolist()


@pytest.mark.slow
def test_smollm2_refuses_one_qk_matrix_and_merges_ov():
    config, params = loaded("smollm2")
    with pytest.raises(NotImplementedError, match="block_0/attention: position: .*Rotary"):
        models.merge(config, params)
    merged_config, merged_params, report = models.merge(config, params, qk=False)
    assert (merged_config.form, merged_config.ov) == ("separate", "merged")
    assert len(report.converted) == 30 and report.error < 1e-6
    attention = merged_params["block_0"]["attention"]
    assert attention["ov"]["kernel"].shape == (9, 576, 576)
    tokens = reference("smollm2")["tokens"]
    separate = logits(models.Transformer(config), params, tokens)
    merged = logits(models.Transformer(merged_config), merged_params, tokens)
    assert 0 < np.abs(merged - separate).max() < 2e-4 < 1e-4 * np.abs(separate).max()


def test_the_rotary_family_of_smollm2_gives_its_scores():
    config, params = loaded("smollm2")
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 576)).astype("f4")
    for layer in (0, 17):
        attention = params[f"block_{layer}"]["attention"]
        family = aj.circuits.rotary_qk(attention, config.position)
        query = np.einsum("d,dhk->hk", x, attention["query"]["kernel"])
        key = np.repeat(np.einsum("d,dhk->hk", y, attention["key"]["kernel"]), 3, axis=0)
        for offset in (0, 1, 7):
            # At other places of the same distance the scores are the same.
            at = [jnp.array([5 + offset]), jnp.array([5])]
            turned = [
                np.asarray(config.position.rotate(jnp.asarray(side)[None], where))[0]
                for side, where in zip((query, key), at, strict=True)
            ]
            scores = np.sum(turned[0] * turned[1], axis=-1)
            matrices = np.asarray(family.at(offset).matrix())
            found = np.einsum("d,hde,e->h", x, matrices, y)
            assert np.abs(found - scores).max() < 1e-5 * np.abs(scores).max()
            other = np.einsum("d,hde,e->h", x, np.asarray(family.at(-offset - 1).matrix()), y)
            assert np.abs(other - scores).max() > 1e-2 * np.abs(scores).max()


@SLOW
def test_ov_of_grouped_heads_is_merged_exactly():
    with jax.enable_x64(True):
        config, params = loaded("smollm2", "float64")
        few = dataclasses.replace(config, num_layers=3)
        params = {name: entry for name, entry in params.items() if name not in _blocks(3, 30)}
        tokens = reference("smollm2")["tokens"]
        separate = encoded_causal(models.Transformer(few), params, tokens)
        merged_config, merged_params, report = models.merge(few, params, qk=False)
        merged = encoded_causal(models.Transformer(merged_config), merged_params, tokens)
        assert 0 < np.abs(merged - separate).max() < 1e-11 * np.abs(separate).max()
        again_config, again_params, again = models.factor(merged_config, merged_params)
        assert again_params["block_0"]["attention"]["value"]["kernel"].shape == (576, 3, 64)
        assert again.error < 1e-13
        factored = encoded_causal(models.Transformer(again_config), again_params, tokens)
        assert np.abs(factored - separate).max() < 1e-11 * np.abs(separate).max()


def _blocks(first, last):
    return {f"block_{index}" for index in range(first, last)}


@functools.partial(jax.jit, static_argnums=0)
def encoded_causal(model, params, tokens):
    return model.apply({"params": params}, tokens, method="encode")
