"""Rows without a visible key: zeros, zero weights, finite gradients, on every path."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attention_jax as aj
from attention_jax.testing import reference
from tests.paths import PATHS, k_fill, q_fill, v_fill, variables_of

EXPECTED = {
    (0, 0): [-0.590668, 0.159332, 0.593971, -1.090668],
    (0, 1): [-0.269292, 0.480708, 0.202186, -0.769292],
    (2, 0): [-0.093427, 0.656573, 0.254010, -0.593427],
}


def c01():
    mask = np.ones((1, 2, 3, 3), bool)
    mask[:, :, 1] = False
    mask[:, 1, 2] = False
    return q_fill(1, 3, 2, 4), k_fill(1, 3, 2, 4), v_fill(1, 3, 2, 4), mask


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_c01_rows_without_a_visible_key_are_zero(path):
    q, k, v, mask = c01()
    plain = path(q, k, v, mask=mask)
    output, weights = path(q, k, v, mask=mask, return_weights=True)
    np.testing.assert_array_equal(plain, output)
    for (t, h), row in EXPECTED.items():
        np.testing.assert_allclose(output[0, t, h], row, atol=2e-6)
    expected, expected_weights = reference.attend(q, k, v, mask)
    np.testing.assert_allclose(output, expected, atol=2e-6)
    np.testing.assert_allclose(weights, expected_weights, atol=2e-6)
    assert not np.any(output[0, 1]) and not np.any(output[0, 2, 1])
    assert not np.any(weights[0, :, 1]) and not np.any(weights[0, 1, 2])
    assert not np.any(np.asarray(weights)[~mask])


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
@pytest.mark.parametrize("replacement", [-7.0, 1e30])
def test_c01_values_at_hidden_positions_move_nothing(path, replacement):
    q, k, v, _ = c01()
    mask = np.ones((1, 1, 3, 3), bool)
    mask[..., 2] = False
    changed = v.copy()
    changed[:, 2] = replacement
    keys = k.copy()
    keys[:, 2] = 5.0
    visible = np.ones((1, 1, 3, 3), bool)
    assert np.any(path(q, k, v, mask=visible) != path(q, k, changed, mask=visible))
    np.testing.assert_array_equal(path(q, k, v, mask=mask), path(q, k, changed, mask=mask))
    np.testing.assert_array_equal(path(q, k, v, mask=mask), path(q, keys, v, mask=mask))


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_c01_also_with_other_scores(path):
    q, k, v, mask = c01()
    settings = {"softcap": 2.0, "scale": -3.0}
    output = path(q, k, v, mask=mask, **settings)
    expected, _ = reference.attend(q, k, v, mask, **settings)
    np.testing.assert_allclose(output, expected, atol=2e-6)
    assert not np.any(output[0, 1])


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_c01_a_bias_of_minus_infinity_hides_as_a_mask_does(path):
    q, k, v, mask = c01()
    bias = np.where(mask, 0.0, -np.inf).astype(np.float32)
    np.testing.assert_allclose(
        path(q, k, v, bias=bias), path(q, k, v, mask=mask), atol=1e-7, rtol=0
    )
    gradient = jax.grad(lambda q: jnp.sum(path(q, k, v, bias=bias) ** 2))(q)
    assert np.all(np.isfinite(gradient))


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_c01_in_sixteen_bits(path, dtype=jnp.bfloat16):
    q, k, v, mask = c01()
    arrays = [jnp.asarray(x, dtype) for x in (q, k, v)]
    output = path(*arrays, mask=mask)
    expected, _ = reference.attend(q, k, v, mask)
    assert output.dtype == dtype
    np.testing.assert_allclose(output.astype(jnp.float32), expected, atol=2.0**-7)
    assert not np.any(output[0, 1])


@pytest.mark.parametrize("form", [aj.SeparateAttention, aj.MergedAttention])
@pytest.mark.parametrize("ov", ["separate", "merged"])
def test_c01_after_w_o_such_a_row_is_the_output_bias(key, form, ov):
    normal = jax.nn.initializers.normal(1.0)
    module = form(num_heads=2, ov=ov, bias_init=normal)
    x = jax.random.normal(key, (1, 3, 4))
    variables = variables_of(module, x)
    output = jax.jit(module.apply)(variables, x, mask=c01()[-1])
    bias = variables["params"]["out"]["bias"]
    assert np.all(bias != 0)
    np.testing.assert_array_equal(output[0, 1], bias)
    assert np.all(np.abs(output[0, 0] - bias) > 1e-3)


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_c29_a_hidden_row_does_not_poison_gradients(path):
    q = np.zeros((1, 2, 1, 2), np.float32)
    v = np.array([[1, 2], [3, 5]], np.float32).reshape(1, 2, 1, 2)
    mask = np.array([[True, False], [False, False]])[None, None]

    def loss(q, k, v):
        return jnp.sum(path(q, k, v, mask=mask)[0, 0])

    value, gradients = jax.value_and_grad(loss, (0, 1, 2))(q, q, v)
    assert value == 3
    assert not np.any(gradients[0]) and not np.any(gradients[1])
    np.testing.assert_array_equal(gradients[2].reshape(2, 2), [[1, 1], [0, 0]])


def parameter_gradients(module, variables, x, mask, rows):
    def loss(variables):
        return jnp.sum(jnp.sin(module.apply(variables, x, x, x, mask=mask)[rows]))

    return jax.jit(jax.grad(loss))(variables)


@pytest.mark.parametrize("form", [aj.SeparateAttention, aj.MergedAttention])
@pytest.mark.parametrize("ov", ["separate", "merged"])
def test_c29_parameter_gradients_equal_those_without_the_hidden_query(key, form, ov):
    module = form(num_heads=2, ov=ov, bias_init=jax.nn.initializers.normal(1.0))
    x = jax.random.normal(key, (1, 3, 4))
    variables = variables_of(module, x)
    mask = np.ones((1, 1, 3, 3), bool)
    mask[:, :, 2] = False

    def loss(variables, inputs_q, mask):
        return jnp.sum(jnp.sin(module.apply(variables, inputs_q, x, mask=mask)[:, :2]))

    gradient = jax.jit(jax.grad(loss))
    with_hidden = gradient(variables, x, mask)
    without = gradient(variables, x[:, :2], mask[:, :, :2])
    for got, expected in zip(jax.tree.leaves(with_hidden), jax.tree.leaves(without), strict=True):
        assert np.all(np.isfinite(got))
        np.testing.assert_allclose(got, expected, atol=2e-6)


@pytest.mark.parametrize("form", [aj.SeparateAttention, aj.MergedAttention])
@pytest.mark.parametrize("ov", ["separate", "merged"])
def test_c29_an_example_of_padding_only_leaves_gradients_finite(key, form, ov):
    module = form(num_heads=2, ov=ov)
    x = jax.random.normal(key, (2, 3, 4))
    variables = variables_of(module, x)
    whole = parameter_gradients(module, variables, x, aj.padding(jnp.array([3, 0])), np.s_[:1])
    alone = parameter_gradients(module, variables, x[:1], None, np.s_[:1])
    for got, expected in zip(jax.tree.leaves(whole), jax.tree.leaves(alone), strict=True):
        assert np.all(np.isfinite(got))
        np.testing.assert_allclose(got, expected, atol=2e-6)


def test_second_derivatives_are_finite_and_right_with_hidden_rows():
    q, k, v, mask = c01()

    def loss(q):
        return jnp.sum(aj.attend(q, k, v, mask=mask)[..., 0])

    direction = k_fill(*q.shape)
    gradient = jax.jit(jax.grad(loss))
    _, product = jax.jit(lambda q: jax.jvp(jax.grad(loss), (q,), (direction,)))(q)
    step = 1e-2
    differences = (gradient(q + step * direction) - gradient(q - step * direction)) / (2 * step)
    assert np.any(np.abs(product) > 0.05)
    np.testing.assert_allclose(product, differences, atol=2e-3)
