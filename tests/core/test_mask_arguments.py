"""What a mask or a bias may be: kinds, shapes, layouts."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

import attention_jax as aj
from attention_jax.testing import reference
from tests.paths import EAGER_MODULE, PATHS, k_fill, q_fill, v_fill

B, H, T, S, K = 2, 2, 3, 4, 5
SHAPES = [
    (1, 1, T, S),
    (B, 1, 1, S),
    (B, 1, T, S),
    (1, H, T, S),
    (B, H, 1, S),
    (B, H, T, 1),
    (B, H, T, S),
]
BOOLEAN_ROWS = [
    [-0.75, 0, 0.75, -1.25],
    [-0.523837, 0.226163, 0.976163, -1.023837],
    [-0.557246, 0.192754, 0.942754, -1.057246],
]


def hidden(shape, seed):
    return np.random.default_rng(seed).random(shape) < 0.6


def arrays(*batch):
    return (
        q_fill(*batch, T, H, K),
        k_fill(*batch, S, H, K),
        v_fill(*batch, S, H, K),
    )


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_c03_boolean_masks_hide_and_numeric_ones_are_refused(path):
    q, k, v = (fill(1, 3, 1, 4) for fill in (q_fill, k_fill, v_fill))
    triangle = np.tril(np.ones((1, 1, 3, 3)))
    np.testing.assert_allclose(path(q, k, v, mask=triangle != 0)[0, :, 0], BOOLEAN_ROWS, atol=2e-6)
    np.testing.assert_allclose(path(q, k, v, mask=aj.causal())[0, :, 0], BOOLEAN_ROWS, atol=2e-6)
    for dtype in (np.int32, np.float32, np.uint8):
        with pytest.raises(TypeError, match="mask: expected booleans.*bias"):
            path(q, k, v, mask=triangle.astype(dtype))


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_c03_a_float_bias_without_zeros_stays_additive(path):
    q, k, v = (fill(1, 3, 1, 4) for fill in (q_fill, k_fill, v_fill))
    bias = np.where(np.tril(np.ones((1, 1, 3, 3))) != 0, 1.0, 0.5).astype(np.float32)
    expected, _ = reference.attend(q, k, v, bias=bias)
    output = path(q, k, v, bias=bias)
    np.testing.assert_allclose(output, expected, atol=2e-6)
    assert np.abs(output - path(q, k, v)).max() > 0.01
    np.testing.assert_allclose(path(q, k, v, bias=bias + 3), expected, atol=2e-6)
    with pytest.raises(TypeError, match="bias: .*mask"):
        path(q, k, v, bias=bias > 0.75)
    with pytest.raises(TypeError, match="bias: expected a floating dtype"):
        path(q, k, v, bias=np.ones((1, 1, 3, 3), np.int32))


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_c12_every_broadcastable_mask_and_bias(path):
    q, k, v = arrays(B)
    for i, (mask_shape, bias_shape) in enumerate(zip(SHAPES, SHAPES[::-1], strict=True)):
        mask = hidden(mask_shape, i)
        bias = k_fill(*bias_shape)
        assert not mask.all()
        expected, expected_weights = reference.attend(q, k, v, mask, bias)
        output, weights = path(q, k, v, mask=mask, bias=bias, return_weights=True)
        np.testing.assert_allclose(output, expected, atol=2e-6, err_msg=f"{mask_shape}")
        np.testing.assert_allclose(weights, expected_weights, atol=2e-6, err_msg=f"{mask_shape}")


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_c12_unbatched_inputs(path):
    q, k, v = arrays()
    for shape in [(T, S), (H, T, 1), (1, 1, S)]:
        mask, bias = hidden(shape, 2), k_fill(*shape)
        expected, _ = reference.attend(q, k, v, mask, bias)
        np.testing.assert_allclose(path(q, k, v, mask=mask, bias=bias), expected, atol=2e-6)


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_c12_five_axes_equal_a_loop_over_the_leading_ones(path):
    q, k, v = arrays(5, 2)
    masks = hidden((5, 2, H, T, S), 3)
    output = path(q, k, v, mask=masks)
    shared = path(q, k, v, mask=masks[0])
    for i, j in itertools.product(range(5), range(2)):
        one = q[i, j], k[i, j], v[i, j]
        np.testing.assert_allclose(output[i, j], reference.attend(*one, masks[i, j])[0], atol=2e-6)
        np.testing.assert_allclose(shared[i, j], reference.attend(*one, masks[0, j])[0], atol=2e-6)


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
@pytest.mark.parametrize("argument", ["mask", "bias"])
def test_c12_wrong_sizes_and_ambiguous_ranks_are_refused(path, argument):
    q, k, v = arrays(B)
    dtype = bool if argument == "mask" else np.float32
    wrong = [(B, H, S, T), (B, H, T, S + 1), (B + 1, 1, T, S), (1, H + 1, T, S), (H, B, T, S, 1)]
    wrong += [(1, B, H, T, S), (B, 2 * H, T, S), (B, H, 2, S), (B, H, T, 0)]
    for shape in wrong:
        with pytest.raises(ValueError, match=f"{argument}: .*broadcast"):
            path(q, k, v, **{argument: np.ones(shape, dtype)})
    for shape in [(T, S), (H, T, S), (1, T, S), (B, T, S)]:
        with pytest.raises(ValueError, match=f"{argument}: .*ambiguous"):
            path(q, k, v, **{argument: np.ones(shape, dtype)})


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_c12_parts_of_a_combined_mask_are_checked_one_by_one(path):
    q, k, v = arrays(B)
    with pytest.raises(ValueError, match="mask: .*ambiguous"):
        path(q, k, v, mask=aj.causal() & np.ones((T, S), bool))
    with pytest.raises(ValueError, match="mask: .*broadcast"):
        path(q, k, v, mask=aj.causal() & np.ones((1, 1, S, T), bool))
    with pytest.raises(ValueError, match="mask: .*broadcast"):
        path(q, k, v, mask=aj.causal() & aj.padding(np.array([1, 2, 3])))
    with pytest.raises(ValueError, match="segments key_ids"):
        path(q, k, v, mask=aj.causal() & aj.segments(np.ones((B, T), np.int32)))


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_c10_length_comes_before_heads(path):
    q, k, v = (fill(1, 2, 2, 2) for fill in (q_fill, k_fill, v_fill))
    length_first = [-0.672253, 0.077747, 0.756496, -1.243504]
    length_first += [-0.641476, 0.108524, 0.992286, -1.007714]
    np.testing.assert_allclose(path(q, k, v).ravel(), length_first, atol=2e-6)
    heads_first = [-0.147220, -0.502317, 0.178794, -0.773995]
    heads_first += [-0.004642, -0.162798, 0.953719, -0.961432]
    swapped = path(*(x.swapaxes(1, 2) for x in (q, k, v))).swapaxes(1, 2)
    np.testing.assert_allclose(swapped.ravel(), heads_first, atol=2e-6)


def test_c10_heads_first_arrays_raise_where_sizes_tell():
    q = q_fill(1, 3, 2, 4)
    heads_first = k_fill(1, 2, 3, 4)
    with pytest.raises(ValueError, match="key: expected heads.*axis -2.*swap axes -3 and -2"):
        aj.attend(q, heads_first, heads_first)
    with pytest.raises(ValueError, match="value: .*heads.*swap axes"):
        aj.attend(q, q, v_fill(1, 3, 3, 4))
    with pytest.raises(ValueError, match="value: expected length S=3"):
        aj.attend(q, q, v_fill(1, 2, 2, 4))


def test_the_module_path_is_the_same_without_jit():
    q, k, v = arrays(B)
    mask, bias = hidden((B, H, T, S), 1), k_fill(1, H, T, S)
    output, weights = EAGER_MODULE(q, k, v, mask=mask, bias=bias, return_weights=True)
    expected, expected_weights = reference.attend(q, k, v, mask, bias)
    np.testing.assert_allclose(output, expected, atol=2e-6)
    np.testing.assert_allclose(weights, expected_weights, atol=2e-6)


def test_keys_and_values_may_have_other_widths_and_head_counts():
    q, k, v = q_fill(1, T, 6, 3), k_fill(1, S, 2, 3), v_fill(1, S, 3, 7)
    expected, weights = reference.attend(q, k, v)
    output, got = aj.attend(q, k, v, return_weights=True)
    assert output.shape == (1, T, 6, 7)
    np.testing.assert_allclose(output, expected, atol=2e-6)
    np.testing.assert_allclose(got, weights, atol=2e-6)


def test_an_empty_batch_stays_empty():
    assert aj.attend(jnp.ones((0, 3, 2, 4)), jnp.ones((0, 5, 1, 4)), jnp.ones((0, 5, 1, 3))).shape \
        == (0, 3, 2, 3)  # fmt: skip
