"""Queries, keys and values of different lengths and widths, and the mask on the right side."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attention_jax as aj
from tests.paths import k_fill, q_fill, variables_of

H, K = 3, 2


def c16_params(w_q=None):
    """W_v takes channel 0 of the keys' inputs to channel 0 of head 0, and W_o on to output 0."""
    w_v, w_o = np.zeros((10, H, K)), np.zeros((H, K, 6))
    w_v[0, 0, 0] = w_o[0, 0, 0] = 1
    return {
        "query": {"kernel": jnp.zeros((6, H, K)) if w_q is None else w_q},
        "key": {"kernel": jnp.asarray(k_fill(10, H, K))},
        "value": {"kernel": jnp.asarray(w_v, jnp.float32)},
        "out": {"kernel": jnp.asarray(w_o, jnp.float32)},
    }


def forms(params):
    settings = {"num_heads": H, "head_dim": K, "use_bias": False}
    for form, cls in (("separate", aj.SeparateAttention), ("merged", aj.MergedAttention)):
        for ov in ("separate", "merged"):
            made = params
            if form == "merged" or ov == "merged":
                made = aj.merge(params, qk=form == "merged", ov=ov == "merged")
            yield f"{form}, ov {ov}", cls(ov=ov, **settings), {"params": made}


@pytest.mark.parametrize(
    "lengths,key_lengths,means", [((3, 5), [5, 3], (3, 2)), ((3, 3), [3, 2], (2, 1.5))]
)
def test_c16_the_key_mask_hides_keys(lengths, key_lengths, means):
    queries, keys = lengths
    x = q_fill(2, queries, 6)
    y = k_fill(2, keys, 10)
    y[:, :, 0] = np.arange(1, keys + 1)
    changed = y.copy()
    changed[1, key_lengths[1] :] = 50.0
    mask = aj.padding(np.array(key_lengths))
    for name, module, variables in forms(c16_params()):
        apply = jax.jit(module.apply)
        output = apply(variables, x, y, mask=mask)
        np.testing.assert_allclose(output[0, :, 0], means[0], atol=2e-6, err_msg=name)
        np.testing.assert_allclose(output[1, :, 0], means[1], atol=2e-6, err_msg=name)
        np.testing.assert_array_equal(output, apply(variables, x, changed, mask=mask))
        assert np.any(apply(variables, x, y) != output)


def test_c16_query_padding_is_laid_on_the_queries():
    """With equal lengths a mix-up has a legal shape: only the numbers tell."""
    x, y = q_fill(2, 3, 6), k_fill(2, 3, 10)
    y[:, :, 0] = [1, 2, 3]
    real = np.arange(3) < np.array([[3], [2]])
    on_queries, on_keys = real[:, None, :, None], real[:, None, None, :]
    for name, module, variables in forms(c16_params()):
        apply = jax.jit(module.apply)
        output = apply(variables, x, y, mask=on_queries)
        np.testing.assert_allclose(output[real][:, 0], 2, atol=2e-6, err_msg=name)
        np.testing.assert_array_equal(output[1, 2], 0)
        mixed_up = apply(variables, x, y, mask=on_keys)
        np.testing.assert_allclose(mixed_up[1, :, 0], 1.5, atol=2e-6, err_msg=name)


def test_c16_shapes_of_the_kernels():
    params = aj.merge(c16_params(), ov=True)
    assert params["qk"]["kernel"].shape == (6, H, 10)
    assert params["ov"]["kernel"].shape == (H, 10, 6)
    x, y = jnp.ones((2, 3, 6)), jnp.ones((2, 5, 10))
    for form in (aj.SeparateAttention, aj.MergedAttention):
        init = form(H, K, ov="merged").init
        shapes = jax.tree.map(jnp.shape, jax.eval_shape(init, jax.random.key(0), x, y)["params"])
        if form is aj.SeparateAttention:
            assert shapes["query"] == {"kernel": (6, H, K), "bias": (H, K)}
            assert shapes["key"] == {"kernel": (10, H, K), "bias": (H, K)}
        else:
            assert shapes["qk"] == {"kernel": (6, H, 10), "bias": (H, 10)}
        assert shapes["ov"] == {"kernel": (H, 10, 6), "bias": (H, 6)}
        assert shapes["out"] == {"bias": (6,)}


@pytest.mark.parametrize("queries,keys", [(3, 5), (3, 3)])
def test_c16_the_merged_kernel_is_not_transposed(queries, keys):
    x, y = q_fill(2, queries, 6) / 2, k_fill(2, keys, 10) / 2
    params = c16_params(jnp.asarray(q_fill(6, H, K)))
    outputs = {n: jax.jit(m.apply)(v, x, y) for n, m, v in forms(params)}
    expected = outputs.pop("separate, ov separate")
    assert np.std(expected[..., 0]) > 0.01
    for name, output in outputs.items():
        np.testing.assert_allclose(output, expected, atol=5e-6, err_msg=name)


def test_three_inputs_of_three_widths():
    x, y, z = q_fill(2, 3, 6), k_fill(2, 5, 10), k_fill(2, 5, 7)
    separate = aj.SeparateAttention(H, K, bias_init=jax.nn.initializers.normal(1.0))
    variables = variables_of(separate, x, y, z)
    merged = {"params": aj.merge(variables["params"], ov=True)}
    assert merged["params"]["qk"]["kernel"].shape == (6, H, 10)
    assert merged["params"]["ov"]["kernel"].shape == (H, 7, 6)
    np.testing.assert_allclose(
        jax.jit(aj.MergedAttention(H, K, ov="merged").apply)(merged, x, y, z),
        jax.jit(separate.apply)(variables, x, y, z),
        atol=5e-6,
    )


def test_raw_attention_takes_values_of_another_width():
    x, y, z = q_fill(2, 3, 6), k_fill(2, 5, 6), k_fill(2, 5, 7)
    output = aj.RawAttention(scale=0.1).apply({}, x, y, z)
    expected = jax.nn.softmax(0.1 * np.einsum("btd,bsd->bts", x, y), axis=-1) @ z
    np.testing.assert_allclose(output, expected, atol=2e-6)
