"""Neighbouring query heads share a key and value head."""

import numpy as np
import pytest

import attention_jax as aj
from attention_jax.testing import reference
from tests.paths import PATHS, k_fill, q_fill, v_fill


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_c13_heads_are_repeated_not_tiled(path):
    query = np.zeros((1, 2, 4, 3), np.float32)
    key = np.zeros((1, 3, 2, 3), np.float32)
    value = np.ones((1, 3, 2, 1), np.float32) * np.array([1, -1], np.float32).reshape(1, 1, 2, 1)
    output = path(query, key, value)
    np.testing.assert_allclose(output[0, :, :, 0], [[1, 1, -1, -1]] * 2, atol=1e-6)


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_c13_key_heads_are_repeated_too(path):
    query = np.ones((1, 1, 4, 1), np.float32)
    key = np.array([[0, 0], [60, -60]], np.float32).reshape(1, 2, 2, 1)
    value = np.array([1, 2], np.float32).reshape(1, 2, 1, 1).repeat(2, 2)
    np.testing.assert_allclose(path(query, key, value).ravel(), [2, 2, 1, 1], atol=1e-6)


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
@pytest.mark.parametrize("as_bias", [False, True], ids=["mask", "bias"])
def test_c15_per_head_masks_follow_the_query_heads(path, as_bias):
    query = np.zeros((1, 1, 4, 1), np.float32)
    key = np.zeros((1, 2, 2, 1), np.float32)
    value = np.array([[10, 100], [20, 200]], np.float32).reshape(1, 2, 2, 1)
    mask = np.array([[1, 0], [0, 1], [1, 1], [0, 1]], bool).reshape(1, 4, 1, 2)
    bias = np.where(mask, 0, -np.inf).astype(np.float32)
    output = path(query, key, value, **({"bias": bias} if as_bias else {"mask": mask}))
    np.testing.assert_allclose(output.ravel(), [10, 20, 150, 200], rtol=1e-6)


@pytest.mark.parametrize("heads,groups", [(4, 1), (6, 3)])
@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_equal_to_the_reference_with_masks_and_biases_per_head(path, heads, groups):
    q, k, v = q_fill(2, 3, heads, 2), k_fill(2, 5, groups, 2), v_fill(2, 5, groups, 2)
    mask = np.random.default_rng(0).random((2, heads, 3, 5)) < 0.6
    bias = k_fill(1, heads, 3, 1) * np.linspace(0, 1, 5, dtype=np.float32)
    expected, expected_weights = reference.attend(q, k, v, mask, bias)
    output, weights = path(q, k, v, mask=mask, bias=bias, return_weights=True)
    np.testing.assert_allclose(output, expected, atol=2e-6)
    np.testing.assert_allclose(weights, expected_weights, atol=2e-6)


@pytest.mark.parametrize("heads,groups", [(6, 4), (4, 8), (4, 0)])
def test_c15_head_counts_that_do_not_divide_are_refused_at_construction(heads, groups):
    for form in (aj.SeparateAttention, aj.MergedAttention):
        with pytest.raises(ValueError, match="num_kv_heads"):
            form(num_heads=heads, num_kv_heads=groups)
    with pytest.raises(ValueError, match="num_kv_heads"):
        aj.cost.attention(
            "separate", d_model=24, num_heads=heads, num_kv_heads=groups, query_length=2
        )
    with pytest.raises(ValueError, match=f"key: .*(heads|axes).*{groups}"):
        aj.attend(np.ones((1, 3, heads, 2)), np.ones((1, 3, groups, 2)), np.ones((1, 3, groups, 2)))
