"""Decoding with caches against full recomputation."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attention_jax as aj
from attention_jax import models

SIZE = 23
TOKENS = np.random.default_rng(0).integers(0, SIZE, (2, 11)).astype("i4")
BASE = models.TransformerConfig(SIZE, 12, 1, 3, 8)
CASES = {
    "pre, learned": {"position": aj.Learned(11)},
    "post, sinusoidal, types": {
        "residual": "post", "position": aj.Sinusoidal(12), "token_types": 2
    },
    "parallel, rotary, grouped": {
        "residual": "parallel", "position": aj.Rotary(), "num_kv_heads": 1, "norm": "rms",
        "gated": True, "tied": True,
    },
    "merged, alibi, shared": {
        "form": "merged", "ov": "merged", "position": aj.ALiBi(3), "num_layers": 2,
        "layer_groups": 1, "softcap": 3.0,
    },
    "narrow embedding, qk norm": {
        "normalize_qk": True, "embedding_width": 7, "embedding_norm": True, "head": "masked",
        "tied": True, "position": aj.Rotary(style="interleaved"),
    },
    "raw, two layers": {"form": "raw", "num_layers": 2, "position": aj.ALiBi(1)},
}  # fmt: skip


@functools.cache
def made(name):
    config = dataclasses.replace(BASE, **CASES[name])
    model = models.Transformer(config)
    params = jax.jit(model.init)(jax.random.key(0), TOKENS)["params"]
    rng = np.random.default_rng(1)
    moved = jax.tree.map(lambda x: x + 0.3 * rng.normal(size=x.shape).astype(x.dtype), params)
    return model, moved


def extended(model, params, tokens, cache, *, first, valid=None, types=None):
    """Returns the logits of `first` tokens at once and then one at a time, and the cache."""

    def extend(cache, part):
        tokens, valid, types = part
        logits, cache = model.apply(
            {"params": params}, tokens, cache, valid=valid, token_types=types, method="extend"
        )
        return cache, logits

    parts = (tokens, valid, types)
    cache, prefilled = extend(cache, [x if x is None else x[:, :first] for x in parts])
    rest = [x if x is None else x[:, first:].T[..., None] for x in parts]
    cache, decoded = jax.lax.scan(extend, cache, rest)
    decoded = decoded[:, :, 0].swapaxes(0, 1)
    return jnp.concatenate([prefilled, decoded], axis=1), cache


@pytest.mark.parametrize("name", CASES)
def test_a_text_in_parts_has_the_logits_of_the_whole(name):
    model, params = made(name)
    # Row 1 begins with two tokens of padding, which are in no vocabulary.
    valid = np.arange(13)[None] >= np.array([[0], [2]])
    padded = np.stack([np.pad(TOKENS[0], (0, 2)), np.pad(TOKENS[1], (2, 0), constant_values=-1)])
    types = padded_types = None
    if model.config.token_types:
        types, padded_types = TOKENS % 2, np.maximum(padded, 0) % 2
    if isinstance(model.config.position, aj.Learned):
        # Its table ends with the text.
        valid[0, 11:] = False

    @jax.jit
    def run(params):
        whole = model.apply({"params": params}, TOKENS, token_types=types)
        cache = model.init_cache(2, 13)
        found, cache = extended(
            model, params, padded, cache, first=5, valid=valid, types=padded_types
        )
        return whole, found, cache

    whole, found, cache = run(params)
    np.testing.assert_allclose(found[0, :11], whole[0], atol=3e-5)
    np.testing.assert_allclose(found[1, 2:], whole[1], atol=3e-5)
    assert cache[-1].next_position.tolist() == [valid[0].sum(), 11]
    # Rows and times differ, so that each logit is checked against its own.
    assert np.abs(np.diff(whole, axis=1)).max((0, 2)).min() > 1e-2
    assert np.abs(found[0, 2:] - found[1, 2:]).max() > 1e-2


@functools.partial(jax.jit, static_argnums=(0, 3))
def recomputed(model, params, tokens, num_tokens):
    """Generates greedily, with all tokens evaluated again for each."""
    length = tokens.shape[1]

    def step(index, padded):
        logits = model.apply({"params": params}, padded)
        return padded.at[:, index].set(jnp.argmax(logits[:, index - 1], axis=-1))

    padded = jnp.pad(tokens, ((0, 0), (0, num_tokens)))
    return jax.lax.fori_loop(length, length + num_tokens, step, padded)


@pytest.mark.parametrize("name", ["pre, learned", "parallel, rotary, grouped"])
def test_generate_is_full_recomputation_and_rows_are_alone_in_their_batch(name):
    model, params = made(name)
    long, short = TOKENS[:1, :6], TOKENS[1:, :3]
    expected = [recomputed(model, params, tokens, 5) for tokens in (long, short)]
    generate = functools.partial(models.generate, model, params, num_tokens=5)
    padded = np.concatenate([long, np.pad(short, ((0, 0), (3, 0)), constant_values=-1)])
    valid = np.arange(6)[None] >= np.array([[0], [3]])
    found = generate(padded, valid=valid)
    np.testing.assert_array_equal(found[:1], expected[0])
    np.testing.assert_array_equal(found[1:, :3], padded[1:, :3])
    np.testing.assert_array_equal(found[1:, 3:], expected[1])
    # With padding as a token the short row goes on otherwise.
    other = generate(np.where(valid, padded, 7), valid=np.ones((2, 6), bool))
    assert (other[1:, 6:] != found[1:, 6:]).any()


def test_prompts_come_in_chunks_of_any_size():
    model, params = made("merged, alibi, shared")
    valid = np.arange(11)[None] >= np.array([[0], [7]])

    @jax.jit
    def prefill(params):
        return [
            models.prefill(
                model, params, TOKENS, model.init_cache(2, 11), valid=valid, chunk_size=size
            )
            for size in (None, 4, 11)
        ]

    (logits, cache), *others = prefill(params)
    for found, other in others:
        np.testing.assert_allclose(found, logits, atol=3e-5)
        jax.tree.map(functools.partial(np.testing.assert_allclose, atol=3e-5), other, cache)


def test_sampling():
    model, params = made("pre, learned")
    generate = functools.partial(models.generate, model, params, TOKENS[:, :4], num_tokens=7)
    greedy = generate()
    np.testing.assert_array_equal(generate(key=jax.random.key(0), temperature=1.0, top_k=1), greedy)
    hot = {"temperature": 3.0, "top_p": 0.9}
    one, same, other = (generate(key=jax.random.key(seed), **hot) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, same)
    assert (one != other).any() and (one != greedy).any() and one.min() >= 0
    with pytest.raises(ValueError, match="key: expected a random key"):
        generate(**hot)


def test_a_row_ends_with_the_stop_token():
    model, params = made("pre, learned")
    generate = functools.partial(models.generate, model, params, TOKENS[:, :4], num_tokens=7)
    plain = np.asarray(generate())
    stop = int(plain[0, 6])
    expected = plain.copy()
    for row in expected[:, 4:]:
        row[(np.cumsum(row == stop)) > 0] = stop
    np.testing.assert_array_equal(generate(stop_token=stop), expected)
    assert (expected[0] != plain[0]).any() and (expected[1] != stop).all()


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"valid": np.array([[1, 1, 0, 0]] * 2, bool)}, ValueError, "valid: .* on the left only"),
        ({"valid": np.array([[0, 1, 0, 1]] * 2, bool)}, ValueError, "valid: .* row 0 otherwise"),
        ({"valid": np.ones((2, 3), bool)}, ValueError, r"valid: expected shape \(2, 4\)"),
        ({"valid": np.ones((2, 4))}, TypeError, "valid: expected an array of booleans"),
        ({"chunk_size": 0}, ValueError, "chunk_size: expected at least 1"),
        ({"num_tokens": 0}, ValueError, "num_tokens: expected at least 1"),
        ({"num_tokens": 8}, ValueError, "at most capacity=11 together, got 12"),
        ({"top_k": 0}, ValueError, "top_k: expected at least 1"),
        ({"stop_token": SIZE}, ValueError, "stop_token: expected between 0 and 22"),
        ({"temperature": jnp.float32(1)}, TypeError, "temperature: expected a real Python number"),
        ({"cache_kind": "none"}, ValueError, "kind: expected"),
    ],
)
def test_what_generate_refuses(options, error, match):
    model, params = made("pre, learned")
    with pytest.raises(error, match=match):
        models.generate(model, params, TOKENS[:, :4], **{"num_tokens": 2, **options})


def test_padding_leaves_room_among_learned_positions():
    model, params = made("pre, learned")
    valid = np.arange(11)[None] >= np.array([[5], [7]])
    found = models.generate(model, params, TOKENS, num_tokens=5, valid=valid)
    assert found.shape == (2, 16) and found.min() >= 0


@pytest.mark.slow
def test_positions_past_a_learned_table_are_loud():
    model, params = made("pre, learned")
    cache = model.init_cache(2, 12)
    apply = functools.partial(model.apply, {"params": params}, method="extend")
    _, full = apply(TOKENS, cache)
    with pytest.raises(ValueError, match="positions: expected between 0 and capacity - 1 = 10"):
        apply(TOKENS[:, :1], full)
    logits, _ = jax.jit(apply)(TOKENS[:, :1], full)
    assert np.isnan(logits).all()
    # How much is padding is not known here. Row 0 has positions for two tokens more, row 1 for all,
    # and row 2 ends with padding, which nothing goes on from.
    tokens = np.concatenate([TOKENS, TOKENS[:1]])
    valid = np.arange(11)[None] >= np.array([[2], [9], [0]])
    valid[2, -1] = False
    generate = jax.jit(functools.partial(models.generate, model, num_tokens=5))
    found = generate(params, tokens, valid=valid)
    assert (found[:, 11:] >= 0).sum(axis=1).tolist() == [3, 5, 0]


def test_what_extend_refuses():
    model, params = made("pre, learned")
    encoder = models.Transformer(dataclasses.replace(model.config, causal=False))
    cache = model.init_cache(2, 11)
    for asked, entry, tokens, error, match in (
        (encoder, cache, TOKENS, ValueError, "config.causal: expected True, got False"),
        (model, cache * 2, TOKENS, ValueError, "cache: expected one for each of 1 layers, got 2"),
        (model, cache, TOKENS.tolist(), TypeError, "tokens: expected an array of integers"),
        (model, cache, TOKENS + 20, ValueError, "tokens: expected between 0 and 22"),
        (model, cache, TOKENS[:1], ValueError, "cache: expected 1 rows as tokens, got 2 rows"),
    ):
        with pytest.raises(error, match=match):
            asked.apply({"params": params}, tokens, entry, method="extend")


# Width, layers and heads of MiniLM.
DECODER = models.TransformerConfig(SIZE, 384, 6, 12, 1536, position=aj.Learned(11))


def test_merged_caches_are_half_as_large():
    merged = dataclasses.replace(DECODER, form="merged", ov="merged")
    found = []
    for config in (DECODER, merged):
        cache = jax.eval_shape(lambda: models.Transformer(config).init_cache(2, 16))  # noqa: B023
        kept = [array for layer in cache for array in layer.entries.values()]
        found.append(sum(array.size * array.dtype.itemsize for array in kept))
    assert found == [6 * 2 * 16 * 2 * 384 * 4, 6 * 2 * 16 * 384 * 4]


@pytest.mark.slow
def test_decoding_merged_weights_is_decoding_separate_ones():
    params = jax.jit(models.Transformer(DECODER).init)(jax.random.key(0), TOKENS)["params"]
    logits = []
    for config, tree in ((DECODER, params), models.merge(DECODER, params)[:2]):
        model = models.Transformer(config)
        run = jax.jit(functools.partial(extended, model, first=7))
        logits.append(run(tree, TOKENS, model.init_cache(2, 16))[0])
    np.testing.assert_allclose(*logits, atol=1e-4)
    assert 0 < np.abs(logits[0] - logits[1]).max() and np.abs(logits[0]).max() > 1
