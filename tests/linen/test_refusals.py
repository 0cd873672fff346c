"""What the modules refuse rather than ignore or guess."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attention_jax as aj
from tests.paths import q_fill

X = q_fill(2, 5, 8)


@pytest.mark.parametrize("name", ["use_bias", "normalize_qk", "deterministic"])
def test_c47_strings_are_no_booleans(name):
    with pytest.raises(TypeError, match=f"{name}: expected True or False, got 'False'"):
        aj.SeparateAttention(2, **{name: "False"})


def test_c47_strings_are_no_booleans_in_a_call():
    variables = aj.SeparateAttention(2).init(jax.random.key(0), X)
    for name in ("deterministic", "sow_weights"):
        with pytest.raises(TypeError, match=f"{name}: expected True or False, got 'False'"):
            aj.SeparateAttention(2).apply(variables, X, **{name: "False"})


def test_one_kind_of_position_is_enough_where_the_keys_are_not_given():
    module = aj.SeparateAttention(2, position=aj.Rotary())
    variables = module.init(jax.random.key(0), X)
    positions = jnp.array([0, 3, 1, 2, 7])
    both = module.apply(variables, X, query_positions=positions, key_positions=positions)
    for name in ("query_positions", "key_positions"):
        one = module.apply(variables, X, **{name: positions})
        np.testing.assert_array_equal(one, both)
    # With keys given nothing is guessed, so that eager and compiled calls agree.
    eager = module.apply(variables, X, X, query_positions=positions)
    again = jax.jit(lambda x, y: module.apply(variables, x, y, query_positions=positions))(X, X)
    np.testing.assert_allclose(eager, again, atol=1e-6)
    assert np.abs(eager - both).max() > 1e-3


def test_missing_parameters_name_the_remedy():
    module = aj.MergedAttention(2, softcap=3.0)
    separate = aj.SeparateAttention(2, softcap=3.0).init(jax.random.key(0), X)
    poor = {"params": aj.merge(separate["params"])}
    with pytest.raises(ValueError, match="params qk: .*row_kernel.*only kernel, bias.*softcap="):
        module.apply(poor, X)
    module.apply({"params": aj.merge(separate["params"], softcap=3.0)}, X)


def test_raw_attention_ignores_no_parameters():
    variables = aj.SeparateAttention(2).init(jax.random.key(0), X)
    with pytest.raises(ValueError, match="params: expected none.*query"):
        aj.RawAttention().apply(variables, X)
    with pytest.raises(ValueError, match=r"position: expected ALiBi\(num_heads=1\)"):
        aj.RawAttention(position=aj.ALiBi(2))


@pytest.mark.parametrize("setting", ["broadcast_dropout", "decode", "attention_fn"])
def test_settings_that_do_not_exist_are_not_ignored(setting):
    with pytest.raises(TypeError, match=setting):
        aj.SeparateAttention(2, **{setting: None})
