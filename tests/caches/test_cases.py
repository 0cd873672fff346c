"""The faults of other libraries' caches, in every form: one query, no room, padding, positions."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attention_jax as aj
from tests.caches.forms import UNIFORM, Case, D


def numbers(*values):
    return jnp.asarray(values, jnp.float32).reshape(1, -1, 1)


def steps(layer, tokens, capacity, **more):
    """A scan over single tokens: outputs, and the cache at the end."""
    module, params, init = layer

    def step(cache, token):
        output, cache = module.apply(
            {"params": params}, token.reshape(1, 1, 1), cache, method="extend"
        )
        return cache, output.ravel()[0]

    cache = module.init_cache(1, capacity, features=1, **init, **more)
    cache, outputs = jax.lax.scan(step, cache, tokens.ravel())
    return outputs, cache


@functools.cache
def decoded_numbers():
    """Of every form, the numbers of C-18 and C-20 in caches with and without a window."""

    @jax.jit
    def run():
        return {
            name: {
                "c18": steps(layer, numbers(1, 2, 3, 4), 8),
                "c20": steps(layer, numbers(1, 2, 3, 4, 5, 6), 4),
                "c20 rolling": steps(layer, numbers(1, 2, 3, 4, 5), 4, window=4),
            }
            for name, layer in UNIFORM.items()
        }

    return run()


@pytest.mark.parametrize("name", UNIFORM)
def test_c18_each_token_sees_all_so_far(name):
    outputs, _ = decoded_numbers()[name]["c18"]
    np.testing.assert_allclose(outputs, [1.0, 1.5, 2.0, 2.5], atol=1e-6)


@pytest.mark.parametrize("name", UNIFORM)
def test_c20_past_the_capacity(name):
    outputs, cache = decoded_numbers()[name]["c20"]
    np.testing.assert_allclose(outputs[:4], [1.0, 1.5, 2.0, 2.5], atol=1e-6)
    assert np.isnan(outputs[4:]).all()
    for array in jax.tree.leaves(cache.entries):
        assert array.ravel().tolist() == [1, 2, 3, 4]
    rolling, _ = decoded_numbers()[name]["c20 rolling"]
    np.testing.assert_allclose(rolling, [1.0, 1.5, 2.0, 2.5, 3.5], atol=1e-6)


CHUNKED = ("separate", "absorbed, merged OV", "raw")


@pytest.mark.parametrize("layer", [UNIFORM[name] for name in CHUNKED], ids=CHUNKED)
def test_c20_a_chunk_that_does_not_fit_is_not_shifted(layer):
    module, params, init = layer
    extend = functools.partial(module.apply, {"params": params}, method="extend")
    compiled = jax.jit(extend)
    _, cache = compiled(numbers(1, 2), module.init_cache(1, 4, features=1, **init))
    with pytest.raises(ValueError, match="x: expected at most 2 tokens more.* got 3.*capacity"):
        extend(numbers(3, 4, 5), cache)
    output, after = compiled(numbers(3, 4, 5), cache)
    assert np.isnan(output).all()
    for name in ("key", "value", "inputs", "positions", "valid"):
        before, now = getattr(cache, name), getattr(after, name)
        assert (before is None and now is None) or np.array_equal(before, now), name
    # The loss is not forgotten: later tokens, for which there would be room, are not answered.
    assert np.isnan(compiled(numbers(3, 4), after)[0]).all()
    with pytest.raises(ValueError, match="at most 0 tokens more"):
        extend(numbers(3), after)
    np.testing.assert_allclose(compiled(numbers(3, 4), cache)[0].ravel(), [2.0, 2.5], atol=1e-6)


def test_c20_more_tokens_than_slots_are_always_refused():
    module, params, _ = UNIFORM["raw"]
    cache = module.init_cache(1, 2)
    with pytest.raises(ValueError, match="at most 2 tokens more"):
        jax.eval_shape(
            functools.partial(module.apply, {"params": params}, method="extend"),
            numbers(1, 2, 3),
            cache,
        )


FORMS = {
    "rotary": Case("separate", position="rotary", groups=1),
    "absorbed": Case("separate", kind="inputs"),
    "merged QK and OV": Case("merged", ov="merged", position="alibi"),
    "raw": Case("raw", position="rotary"),
    "rolling": Case("separate", position="rotary", window=3),
    "rolling inputs": Case("merged", ov="merged", window=3),
}


def decoded(case, params, table, x, valid, filler):
    """Outputs of a prompt and two steps with learned positions, and where their tokens stand."""
    learned, module = aj.LearnedPositions(8), case.module()
    cache = module.init_cache(len(x), 8, features=D, window=case.window, kind=case.kind)
    outputs, positions = [], []
    for part in (slice(0, 4), slice(4, 5), slice(5, 6)):
        now = cache.next_position[:, None] + jnp.cumsum(valid[:, part], axis=1) - 1
        variables = {"params": {"embedding": table}}
        inputs = learned.apply(variables, x[:, part], jnp.maximum(now, 0))
        inputs = jnp.where(valid[:, part, None], inputs, filler)
        output, cache = module.apply(
            {"params": params}, inputs, cache, valid=valid[:, part], method="extend"
        )
        outputs.append(output)
        positions.append(now)
    return jnp.concatenate(outputs, axis=1), jnp.concatenate(positions, axis=1)


def test_c22_a_padded_row_is_the_unpadded_one():
    rng = np.random.default_rng(2)
    x, table = rng.normal(size=(2, 6, D)), rng.normal(size=(8, D))
    valid = np.array([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]], bool)
    params = [jax.tree.map(jnp.float32, case.params()) for case in FORMS.values()]

    @jax.jit
    def run(params, valid, filler):
        arrays = jnp.asarray(table, jnp.float32), jnp.asarray(x, jnp.float32)
        return [
            decoded(case, p, *arrays, valid, filler)
            for case, p in zip(FORMS.values(), params, strict=True)
        ]

    marked, poisoned = run(params, valid, 3.0), run(params, valid, jnp.nan)
    unmarked = run(params, np.ones_like(valid), 0.0)
    for (name, case), one, other, wrong in zip(
        FORMS.items(), marked, poisoned, unmarked, strict=True
    ):
        padded, positions = one
        alone = case.by_hand(x[:1, 2:] + table[:4], np.ones((1, 4), bool))
        np.testing.assert_allclose(padded[:1, 2:], alone, atol=1e-5, err_msg=name)
        np.testing.assert_array_equal(positions[0, 2:], [0, 1, 2, 3])
        np.testing.assert_array_equal(positions[1], np.arange(6))
        # What stands at padding matters to nobody, not even if it is NaN. Padding itself gets what
        # a token gets that sees nothing.
        np.testing.assert_array_equal(padded, other[0], err_msg=name)
        bias = np.zeros(D) if case.form == "raw" else case.params()["out"]["bias"]
        np.testing.assert_allclose(padded[0, :2], np.stack([bias, bias]), atol=1e-6)
        assert np.abs(wrong[0][:1, 2:] - alone).max() > 1e-2, name


def test_c25_a_step_past_the_learned_positions():
    learned, module = aj.LearnedPositions(8), aj.RawAttention()
    table = {"params": {"embedding": jnp.ones((8, D))}}

    def step(x, cache):
        x = learned.apply(table, x, cache.next_position[:, None])
        return module.apply({}, x, cache, method="extend")

    cache = module.init_cache(1, 16)
    cache = dataclasses.replace(cache, next_position=jnp.array([8]))
    with pytest.raises(ValueError, match="positions: expected between 0 and capacity - 1 = 7"):
        step(jnp.ones((1, 1, D)), cache)
    assert np.isnan(jax.jit(step)(jnp.ones((1, 1, D)), cache)[0]).all()
