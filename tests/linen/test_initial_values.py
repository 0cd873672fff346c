"""Initial values of the merged form, and where they can be trained from."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import attention_jax as aj

D, H, K = 12, 48, 3
X = jnp.cos(jnp.arange(2.0 * 5 * D)).reshape(2, 5, D)


@functools.cache
def kernels(init, heads=H, kv=None, cls=aj.MergedAttention):
    settings = (
        {} if cls is aj.SeparateAttention else {"qk_init": init, "ov_init": init, "ov": "merged"}
    )
    module = cls(heads, K, num_kv_heads=kv, **settings)
    params = jax.jit(module.init)(jax.random.key(heads), X)["params"]
    return np.asarray(aj.circuits.qk(params).matrix()), np.asarray(aj.circuits.ov(params).matrix())


def norms(matrices):
    return np.sqrt(np.sum(matrices**2, axis=(1, 2)))


def test_a_product_has_rank_head_dim_and_the_norm_of_the_separate_one():
    separate = kernels(None, cls=aj.SeparateAttention)
    for got, expected in zip(kernels("product"), separate, strict=True):
        values = np.linalg.svd(got, compute_uv=False)
        assert np.all(values[:, K:] < 1e-5 * values[:, :1]) and np.all(values[:, K - 1] > 1e-3)
        assert np.abs(got - expected).max() > 0.01
        assert norms(got).mean() == pytest.approx(norms(expected).mean(), rel=0.1)
        assert norms(got).std() == pytest.approx(norms(expected).std(), rel=0.5)
        assert abs(got.mean()) < 4 * got.std() / np.sqrt(got.size / 4)


@pytest.mark.parametrize("init", ["iid", "symmetric"])
def test_full_rank_with_the_norm_of_the_product(init):
    for got, product in zip(kernels(init), kernels("product"), strict=True):
        assert np.all(np.linalg.matrix_rank(got) == D)
        np.testing.assert_allclose(norms(got).mean(), norms(product).mean(), rtol=0.1)
        is_symmetric = np.abs(got - got.swapaxes(1, 2)).max() < 1e-6
        assert is_symmetric == (init == "symmetric")


def test_grouped_heads_share_a_key_factor():
    qk, ov = kernels("product", heads=4, kv=2)
    for matrices in (np.concatenate(qk[:2], axis=0), np.concatenate(ov[:2], axis=1)):
        values = np.linalg.svd(matrices, compute_uv=False)
        assert values[K] < 1e-5 * values[0]
    torn = np.linalg.svd(np.concatenate(qk[1:3], axis=0), compute_uv=False)
    assert torn[K] > 1e-2 * torn[0]


def test_scales_of_initial_scores_are_those_of_the_separate_form():
    qk, separate = kernels("product")[0], kernels(None, cls=aj.SeparateAttention)[0]
    x = np.asarray(X).reshape(-1, D)
    spread = [np.einsum("td,hde,se->hts", x, w, x).std() for w in (qk, separate)]
    assert spread[0] == pytest.approx(spread[1], rel=0.25)


def test_symmetric_needs_equal_widths():
    for cls, settings in (
        (aj.MergedAttention, {"qk_init": "symmetric"}),
        (aj.SeparateAttention, {"ov": "merged", "ov_init": "symmetric"}),
    ):
        with pytest.raises(ValueError, match="symmetric initialisation.*12 and 7|7 and 12"):
            cls(4, K, **settings).init(jax.random.key(0), X, jnp.ones((2, 3, 7)))


def qk_gradient(module, variables):
    def loss(params):
        return jnp.sum(jnp.sin(module.apply({"params": params}, X)))

    return jax.jit(jax.grad(loss))(variables["params"])


def test_merged_zero_trains_whereas_two_zero_factors_are_a_saddle():
    merged = aj.MergedAttention(2, qk_init="zero")
    variables = merged.init(jax.random.key(0), X)
    assert not np.any(variables["params"]["qk"]["kernel"])
    assert np.abs(qk_gradient(merged, variables)["qk"]["kernel"]).max() > 1e-4
    separate = aj.SeparateAttention(2)
    params = separate.init(jax.random.key(0), X)["params"]
    zeros = {name: jax.tree.map(jnp.zeros_like, params[name]) for name in ("query", "key")}
    gradient = qk_gradient(separate, {"params": {**params, **zeros}})
    assert not np.any(gradient["query"]["kernel"]) and not np.any(gradient["key"]["kernel"])
    half = qk_gradient(separate, {"params": {**params, "query": zeros["query"]}})
    assert np.abs(half["query"]["kernel"]).max() > 1e-4


def test_a_function_of_key_shape_and_dtype_initialises():
    init = nn.initializers.constant(0.25)
    params = aj.MergedAttention(2, qk_init=init, ov="merged", ov_init=init).init(
        jax.random.key(0), X
    )["params"]
    assert np.all(params["qk"]["kernel"] == 0.25) and np.all(params["ov"]["kernel"] == 0.25)


@pytest.mark.parametrize("name", ["qk_init", "ov_init"])
def test_unknown_names_are_refused(name):
    with pytest.raises(ValueError, match=f"{name}: .*'product', 'iid', 'zero', 'symmetric'"):
        aj.MergedAttention(2, **{name: "orthogonal"})


def test_sixteen_bit_parameters_are_multiplied_in_float32():
    narrow = aj.MergedAttention(2, K, param_dtype=jnp.bfloat16).init(jax.random.key(0), X)
    wide = aj.MergedAttention(2, K).init(jax.random.key(0), X)
    kernel = narrow["params"]["qk"]["kernel"]
    assert kernel.dtype == jnp.bfloat16
    np.testing.assert_array_equal(kernel, wide["params"]["qk"]["kernel"].astype(jnp.bfloat16))


def test_row_terms_start_at_zero():
    params = aj.MergedAttention(2, softcap=2.0).init(jax.random.key(0), X)["params"]
    assert params["qk"]["row_kernel"].shape == (D, 2) and params["qk"]["row_bias"].shape == (2,)
    assert not np.any(params["qk"]["row_kernel"])


def test_raw_attention_is_the_formula():
    x = np.asarray(X) / 2
    products = 0.7 * np.einsum("btd,bsd->bts", x, x)
    weights = np.exp(products) / np.exp(products).sum(-1, keepdims=True)
    module = aj.RawAttention(scale=0.7)
    assert module.init(jax.random.key(0), x) == {}
    np.testing.assert_allclose(module.apply({}, x), weights @ x, atol=2e-6)
    triangle = np.tril(np.exp(products))
    causal = triangle / triangle.sum(-1, keepdims=True) @ x
    np.testing.assert_allclose(module.apply({}, x, mask=aj.causal()), causal, atol=2e-6)
    default = np.exp(products / 0.7)
    np.testing.assert_allclose(
        aj.RawAttention().apply({}, x), default / default.sum(-1, keepdims=True) @ x, atol=2e-6
    )
