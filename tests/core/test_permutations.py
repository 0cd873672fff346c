"""Orders of tokens, keys and heads (C-59), with controls that must break."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attention_jax as aj
from tests.paths import PATHS, k_fill, q_fill, v_fill

ORDER = np.array([2, 0, 3, 1])


def c59():
    return q_fill(1, 4, 1, 4), k_fill(1, 4, 1, 4), v_fill(1, 4, 1, 4)


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_c59_permuted_tokens_permute_the_output(path):
    q, k, v = c59()
    output = path(q, k, v)
    permuted = path(q[:, ORDER], k[:, ORDER], v[:, ORDER])
    np.testing.assert_allclose(permuted, output[:, ORDER], atol=1e-6)
    row = [-0.623421, 0.126579, 0.604131, -1.123421]
    np.testing.assert_allclose(output[0, 0, 0], row, atol=2e-6)
    assert np.abs(permuted - output).max() > 0.01


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_c59_permuted_keys_change_nothing_in_cross_attention(path):
    q, k, v = c59()
    mask = np.array([True, True, False, True]).reshape(1, 1, 1, 4)
    output = path(q, k, v, mask=mask)
    permuted = path(q, k[:, ORDER], v[:, ORDER], mask=mask[..., ORDER])
    np.testing.assert_allclose(permuted, output, atol=1e-6)
    assert np.abs(path(q, k[:, ORDER], v[:, ORDER], mask=mask) - output).max() > 0.01


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_c59_the_causal_mask_breaks_it(path):
    q, k, v = c59()
    output = path(q, k, v, mask=aj.causal())
    permuted = path(q[:, ORDER], k[:, ORDER], v[:, ORDER], mask=aj.causal())
    assert np.abs(permuted - output[:, ORDER]).max() > 0.01


def test_c59_rotary_positions_break_it():
    q, k, v = c59()
    rotary, positions = aj.Rotary(), jnp.arange(4)

    def rotated(q, k, v):
        return aj.attend(rotary.rotate(q, positions), rotary.rotate(k, positions), v)

    output = rotated(q, k, v)
    assert np.abs(rotated(q[:, ORDER], k[:, ORDER], v[:, ORDER]) - output[:, ORDER]).max() > 0.01


def test_c59_in_float64_to_round_off():
    with jax.enable_x64(True):
        q, k, v = (jnp.asarray(x, jnp.float64) for x in c59())
        output = aj.attend(q, k, v)
        permuted = aj.attend(q[:, ORDER], k[:, ORDER], v[:, ORDER])
        np.testing.assert_allclose(permuted, output[:, ORDER], atol=4e-16)


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_c59_permuted_heads_permute_the_heads_whole_groups_together(path):
    q, k, v = q_fill(1, 3, 4, 2), k_fill(1, 5, 2, 2), v_fill(1, 5, 2, 2)
    output = path(q, k, v)
    groups, heads = [1, 0], [3, 2, 0, 1]
    permuted = path(q[:, :, heads], k[:, :, groups], v[:, :, groups])
    np.testing.assert_allclose(permuted, output[:, :, heads], atol=1e-6)
    torn = [1, 2, 3, 0]
    wrong = path(q[:, :, torn], k[:, :, groups], v[:, :, groups])
    assert np.abs(wrong - output[:, :, torn]).max() > 0.01
