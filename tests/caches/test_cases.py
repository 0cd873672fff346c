"""The faults of other libraries' caches, in every form: one query, no room, padding, positions."""

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
    """A compiled scan over single tokens: outputs, and the cache at the end."""
    module, params, init = layer

    @jax.jit
    def run(tokens):
        def step(cache, token):
            output, cache = module.apply(
                {"params": params}, token.reshape(1, 1, 1), cache, method="extend"
            )
            return cache, output.ravel()[0]

        cache = module.init_cache(1, capacity, features=1, **init, **more)
        return jax.lax.scan(step, cache, tokens)

    cache, outputs = run(tokens.ravel())
    return outputs, cache


ALL = pytest.mark.parametrize("layer", UNIFORM.values(), ids=UNIFORM)


@ALL
def test_c18_each_token_sees_all_so_far(layer):
    for window in (None, 8):
        outputs, _ = steps(layer, numbers(1, 2, 3, 4), 8, window=window)
        np.testing.assert_allclose(outputs, [1.0, 1.5, 2.0, 2.5], atol=1e-6)


@ALL
def test_c20_past_the_capacity(layer):
    outputs, cache = steps(layer, numbers(1, 2, 3, 4, 5, 6), 4)
    np.testing.assert_allclose(outputs[:4], [1.0, 1.5, 2.0, 2.5], atol=1e-6)
    assert np.isnan(outputs[4:]).all()
    for array in jax.tree.leaves(cache.entries):
        assert array.ravel().tolist() in ([1, 2, 3, 4], [0, 0, 0, 0])
    rolling, _ = steps(layer, numbers(1, 2, 3, 4, 5), 4, window=4)
    np.testing.assert_allclose(rolling, [1.0, 1.5, 2.0, 2.5, 3.5], atol=1e-6)


@ALL
def test_c20_a_chunk_that_does_not_fit_is_not_shifted(layer):
    module, params, init = layer
    extend = functools.partial(module.apply, {"params": params}, method="extend")
    _, cache = extend(numbers(1, 2), module.init_cache(1, 4, features=1, **init))
    with pytest.raises(ValueError, match="x: expected at most 2 tokens more.* got 3.*capacity"):
        extend(numbers(3, 4, 5), cache)
    output, after = jax.jit(extend)(numbers(3, 4, 5), cache)
    assert np.isnan(output).all()
    for name in ("key", "value", "inputs", "positions", "valid"):
        before, now = getattr(cache, name), getattr(after, name)
        assert (before is None and now is None) or np.array_equal(before, now), name
    # The loss is not forgotten: a later token, for which there would be room, is not answered.
    assert np.isnan(jax.jit(extend)(numbers(3), after)[0]).all()
    with pytest.raises(ValueError, match="at most 0 tokens more"):
        extend(numbers(3), after)
    np.testing.assert_allclose(extend(numbers(3, 4), cache)[0].ravel(), [2.0, 2.5], atol=1e-6)


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
    "separate": Case("separate"),
    "rotary": Case("separate", position="rotary", groups=1),
    "rotary, merged OV": Case("separate", ov="merged", position="rotary"),
    "absorbed": Case("separate", kind="inputs"),
    "merged": Case("merged"),
    "merged QK and OV": Case("merged", ov="merged", position="alibi"),
    "raw": Case("raw", position="rotary"),
    "rolling": Case("separate", position="rotary", window=3),
    "rolling inputs": Case("merged", ov="merged", window=3),
}


def decoded(case, params, table, x, valid, change):
    """Outputs of a prompt and of single tokens, with learned positions, and all positions."""
    learned, module = aj.LearnedPositions(8), case.module()
    cache = module.init_cache(len(x), 8, features=D, window=case.window, kind=case.kind)
    prompt = x.shape[1] - 2
    outputs, positions = [], []
    for start, stop in ((0, prompt), (prompt, prompt + 1), (prompt + 1, prompt + 2)):
        part = valid[:, start:stop]
        now = cache.next_position[:, None] + jnp.cumsum(part, axis=1) - 1
        inputs = learned.apply(
            {"params": {"embedding": table}}, x[:, start:stop], jnp.maximum(now, 0)
        )
        inputs = jnp.where(part[..., None], inputs, change)
        output, cache = module.apply(
            {"params": params}, inputs, cache, valid=part, method="extend"
        )
        outputs.append(output)
        positions.append(now)
    return jnp.concatenate(outputs, axis=1), jnp.concatenate(positions, axis=1)


def test_c22_a_padded_row_is_the_unpadded_one():
    rng = np.random.default_rng(2)
    tokens = jnp.asarray(rng.normal(size=(2, 6, D)), jnp.float32)
    table = jnp.asarray(rng.normal(size=(8, D)), jnp.float32)
    valid = jnp.array([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]], bool)
    params = [jax.tree.map(jnp.float32, case.params()) for case in FORMS.values()]

    @jax.jit
    def run(params):
        return [
            (
                decoded(case, p, table, tokens, valid, 3.0),
                decoded(case, p, table, tokens, valid, jnp.nan)[0],
                decoded(case, p, table, tokens[:1, 2:], valid[:1, 2:], 0.0)[0],
                decoded(case, p, table, tokens, jnp.ones_like(valid), 0.0)[0],
            )
            for case, p in zip(FORMS.values(), params, strict=True)
        ]

    for name, found in zip(FORMS, run(params), strict=True):
        (padded, positions), poisoned, alone, unmarked = found
        np.testing.assert_allclose(padded[:1, 2:], alone, atol=1e-5, err_msg=name)
        np.testing.assert_array_equal(positions[0, 2:], [0, 1, 2, 3])
        np.testing.assert_array_equal(positions[1], np.arange(6))
        # What stands at padding matters to nobody, not even if it is NaN.
        np.testing.assert_array_equal(padded, poisoned, err_msg=name)
        assert np.isfinite(padded).all()
        assert np.abs(unmarked[:1, 2:] - alone).max() > 1e-2, name


def test_c22_padding_gets_what_a_row_that_sees_nothing_gets():
    case = Case("separate")
    params = jax.tree.map(jnp.float32, case.params())
    module = case.module()
    output, _ = module.apply(
        {"params": params}, jnp.ones((1, 3, D)), module.init_cache(1, 3),
        valid=jnp.array([[False, True, False]]), method="extend",
    )  # fmt: skip
    np.testing.assert_allclose(output[0, 0], params["out"]["bias"], atol=1e-6)
    np.testing.assert_allclose(output[0, 2], params["out"]["bias"], atol=1e-6)
    assert np.abs(output[0, 1] - params["out"]["bias"]).max() > 0.1


def test_c25_a_step_past_the_learned_positions():
    learned, module = aj.LearnedPositions(8), aj.RawAttention()
    table = {"params": {"embedding": jnp.ones((8, D))}}

    def step(x, cache):
        x = learned.apply(table, x, cache.next_position[:, None])
        return module.apply({}, x, cache, method="extend")

    cache = module.init_cache(1, 16)
    _, cache = module.apply({}, jnp.ones((1, 8, D)), cache, method="extend")
    with pytest.raises(ValueError, match="positions: expected between 0 and capacity - 1 = 7"):
        step(jnp.ones((1, 1, D)), cache)
    assert np.isnan(jax.jit(step)(jnp.ones((1, 1, D)), cache)[0]).all()
