"""Cross attention from a cache is the call with the inputs that it was made of."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attention_jax as aj
from tests.paths import variables_of

rng = np.random.default_rng(4)
SHAPES = (2, 3, 8), (2, 5, 6), (2, 5, 7), (2, 5, 8)
X, Y, Z, W = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in SHAPES)
CASES = {
    "separate": (aj.SeparateAttention(4, num_kv_heads=2), (Y, Z), None),
    "rotary": (aj.SeparateAttention(2, position=aj.Rotary()), (Y, None), None),
    "absorbed": (aj.SeparateAttention(4, num_kv_heads=1, softcap=1.0), (Y, Z), "inputs"),
    "merged OV": (aj.SeparateAttention(2, ov="merged"), (Y, None), None),
    "merged": (aj.MergedAttention(2, position=aj.ALiBi(2)), (Y, Z), None),
    "merged, absorbed OV": (aj.MergedAttention(2), (Y, None), "inputs"),
    "merged QK and OV": (aj.MergedAttention(2, ov="merged", softcap=2.0), (Y, Z), None),
    "raw": (aj.RawAttention(), (W, None), None),
}


def test_every_form_equals_the_plain_call():
    given = [variables_of(module, X, *inputs) for module, inputs, _ in CASES.values()]
    mask = aj.causal() & aj.padding(jnp.array([5, 2]))
    positions = {
        "query_positions": jnp.array([4, 1, 0]),
        "key_positions": jnp.array([[3, 1, 9, 0, 2], [0, 1, 2, 3, 4]]),
    }

    @jax.jit
    def run(given):
        found = []
        for (module, inputs, kind), variables in zip(CASES.values(), given, strict=True):
            call = functools.partial(module.apply, variables)
            cache_of = functools.partial(call, *inputs, kind=kind, method="cross_cache")
            extend = functools.partial(call, mask=mask, method="extend")
            cache = cache_of(key_positions=positions["key_positions"])
            whole, cache = extend(X, cache, positions=positions["query_positions"])
            found.append(
                (
                    (call(X, *inputs, mask=mask), extend(X, cache_of())[0]),
                    (call(X, *inputs, mask=mask, **positions), whole),
                )
            )
        return found

    for name, pairs in zip(CASES, run(given), strict=True):
        for expected, output in pairs:
            np.testing.assert_allclose(output, expected, atol=2e-5, err_msg=name)
        assert np.abs(pairs[0][0] - pairs[1][0]).max() > 1e-2, name


def test_inputs_are_kept_once():
    merged, separate = aj.MergedAttention(2, ov="merged"), aj.SeparateAttention(2)
    variables = variables_of(merged, X, Y)
    cache = merged.apply(variables, Y, method="cross_cache")
    assert [leaf.shape for leaf in jax.tree.leaves(cache)] == [Y.shape]
    cache = separate.apply(variables_of(separate, X, Y), Y, method="cross_cache")
    assert {leaf.shape for leaf in jax.tree.leaves(cache)} == {(2, 5, 2, 4)}


def test_weights_are_sown_and_refusals_named():
    module = aj.SeparateAttention(2)
    variables = variables_of(module, X, Y)
    cache = module.apply(variables, Y, method="cross_cache")
    _, state = module.apply(
        variables, X, cache, method="extend", sow_weights=True, mutable=["intermediates"]
    )
    (weights,) = state["intermediates"]["attention_weights"]
    np.testing.assert_allclose(weights.sum(-1), np.ones((2, 2, 3)), atol=1e-6)
    with pytest.raises(ValueError, match="valid: expected None with a CrossCache"):
        module.apply(variables, X, cache, valid=jnp.ones((2, 3), bool), method="extend")
    with pytest.raises(ValueError, match="variables: expected parameters"):
        module.apply({}, Y, method="cross_cache")
    merged = aj.MergedAttention(2)
    other = merged.apply(variables_of(merged, X, Y), Y, method="cross_cache")
    with pytest.raises(ValueError, match="cache: expected one with key and value"):
        module.apply(variables, X, other, method="extend")
    with pytest.raises(ValueError, match=r"params .*key/kernel"):
        module.apply(variables, Z, method="cross_cache")
