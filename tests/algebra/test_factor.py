"""From one matrix to two: Eckart-Young, groups, biases, ranks."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attention_jax as aj
from tests.algebra.layers import layer, ov_matrices, qk_matrices
from tests.paths import q_fill

factor = functools.partial(jax.jit, static_argnames=("head_dim", "num_kv_heads"))(aj.factor)


def qk_layer(matrix):
    """A layer whose only head has the given W_qk, and values that do not matter."""
    kernel = np.asarray(matrix, np.float32)[:, None]
    width = kernel.shape[-1]
    value = {"kernel": np.ones((width, 1, 2), "f4")}
    return {"qk": {"kernel": kernel}, "value": value, "out": {"kernel": np.ones((1, 2, 3), "f4")}}


def product(params):
    query, key = (np.asarray(params[n]["kernel"], np.float64)[:, 0] for n in ("query", "key"))
    return query @ key.T


C55 = {
    "diag(2,2,1) at 2": (np.diag([2.0, 2, 1]), 2, 1.0),
    "identity at 1": (np.eye(3), 1, 2.0),
    "zero": (np.zeros((3, 3)), 2, 0.0),
    "fill at 4": (q_fill(6, 10), 4, 0.621221),
    "fill at 6": (q_fill(6, 10), 6, 0.0),
    "fill at 9, beyond the rank": (q_fill(6, 10), 9, 0.0),
}


@pytest.mark.parametrize("case", C55.values(), ids=C55)
def test_c55_products_and_errors(case):
    matrix, rank, squared = case
    factors, relative = factor(qk_layer(matrix), head_dim=rank)
    assert factors["query"]["kernel"].shape == (len(matrix), 1, rank)
    error = np.sum((product(factors) - matrix) ** 2)
    assert error == pytest.approx(squared, abs=1e-5)
    norm = np.linalg.norm(matrix)
    assert float(relative) * norm == pytest.approx(np.sqrt(squared), abs=2e-5)
    values = np.linalg.svd(matrix, compute_uv=False)
    assert squared == pytest.approx(np.sum(values[rank:] ** 2), abs=1e-5)


def test_c55_the_cut_of_a_diagonal_matrix():
    factors, _ = factor(qk_layer(np.diag([2.0, 2, 1])), head_dim=2)
    np.testing.assert_allclose(product(factors), np.diag([2, 2, 0]), atol=1e-6)


def test_beyond_the_rank_columns_are_zero():
    factors, _ = factor(qk_layer(q_fill(6, 10)), head_dim=9)
    for name in ("query", "key"):
        assert not np.any(factors[name]["kernel"][..., 6:])
        assert np.all(np.abs(factors[name]["kernel"][..., :5]).max(0) > 0.1)


def test_factors_are_balanced_and_their_signs_fixed():
    factors, _ = factor(qk_layer(q_fill(6, 10)), head_dim=4)
    query, key = (np.asarray(factors[name]["kernel"])[:, 0] for name in ("query", "key"))
    np.testing.assert_allclose(query.T @ query, key.T @ key, atol=1e-4)
    assert np.all(query[np.abs(query).argmax(0), np.arange(4)] > 0)


@pytest.mark.parametrize("rank", [1, 2, 3, 4])
def test_no_factorisation_of_that_rank_is_nearer(rank):
    params = aj.merge(layer(bias=False, d=6, heads=1, groups=1, width=5), ov=True)
    factors, relative = factor(params, head_dim=rank)
    errors = []
    for name, got in (("qk", qk_matrices(factors)), ("ov", ov_matrices(factors))):
        kernel = np.asarray(params[name]["kernel"], np.float64)
        matrix = kernel[:, 0] if name == "qk" else kernel[0]
        values = np.linalg.svd(matrix, compute_uv=False)
        best = np.sqrt(np.sum(values[rank:] ** 2) / np.sum(values**2))
        assert np.linalg.norm(got[0] - matrix) / np.linalg.norm(matrix) == pytest.approx(
            best, rel=1e-4
        )
        errors.append(best)
    assert float(relative) == pytest.approx(max(errors), rel=1e-4)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_round_trip_of_grouped_heads_with_biases(groups, softcap):
    params = layer(groups=groups)
    merged = aj.merge(params, ov=True, softcap=softcap)
    factors, error = factor(merged, head_dim=3, num_kv_heads=groups)
    assert float(error) < 1e-6
    assert jax.tree.map(jnp.shape, factors) == jax.tree.map(jnp.shape, params)
    again = aj.merge(factors, ov=True, softcap=softcap)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), again, merged)
    assert np.abs(factors["query"]["kernel"] - params["query"]["kernel"]).max() > 0.1


def test_round_trip_is_the_same_function():
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(2, 3, 7)).astype("f4"), rng.normal(size=(2, 5, 5)).astype("f4")
    params = layer()
    factors, _ = factor(aj.merge(params, ov=True), head_dim=3, num_kv_heads=2)
    module = aj.SeparateAttention(4, 3, num_kv_heads=2, out_features=6)
    apply = jax.jit(module.apply)
    np.testing.assert_allclose(
        apply({"params": factors}, x, y), apply({"params": params}, x, y), atol=2e-5
    )


def test_another_width_keeps_the_function_with_the_old_scale():
    x = np.random.default_rng(1).normal(size=(2, 5, 6)).astype("f4")
    params = layer(d=6, e=6)
    factors, error = factor(aj.merge(params, ov=True), head_dim=5, num_kv_heads=2)
    assert float(error) < 1e-6
    one = aj.SeparateAttention(4, 3, num_kv_heads=2).apply({"params": params}, x)
    other = aj.SeparateAttention(4, 5, num_kv_heads=2, scale=3**-0.5)
    np.testing.assert_allclose(other.apply({"params": factors}, x), one, atol=2e-5)
    wrong = aj.SeparateAttention(4, 5, num_kv_heads=2).apply({"params": factors}, x)
    assert np.abs(wrong - one).max() > 1e-3


def test_ungrouped_matrices_do_not_fit_into_groups():
    merged = aj.merge(layer(groups=4), ov=True)
    assert float(factor(merged, head_dim=3, num_kv_heads=4)[1]) < 1e-6
    assert float(factor(merged, head_dim=3, num_kv_heads=2)[1]) > 0.1


def test_heads_of_the_other_part_are_the_default():
    merged = aj.merge(layer())
    factors, error = factor(merged, head_dim=3)
    assert factors["key"]["kernel"].shape == (5, 2, 3) and float(error) < 1e-6
    half = aj.merge(layer(), qk=False, ov=True)
    factors, error = factor(half, head_dim=3)
    assert factors["value"]["kernel"].shape == (5, 2, 3) and float(error) < 1e-6


def test_c55_a_derivative_is_refused_rather_than_nan():
    def loss(matrix):
        params = qk_layer(np.zeros((3, 3))) | {"qk": {"kernel": matrix[:, None]}}
        factors, _ = aj.factor(params, head_dim=2)
        return jnp.sum(factors["query"]["kernel"])

    matrix = jnp.diag(jnp.array([2.0, 2, 1]))
    assert jnp.isfinite(loss(matrix))
    with pytest.raises(NotImplementedError, match="factor: expected no differentiation"):
        jax.grad(loss)(matrix)


@pytest.mark.parametrize(
    "call,error,match",
    [
        (lambda: aj.factor(layer(), head_dim=3), ValueError, "qk or ov.*separate already"),
        (lambda: aj.factor(aj.merge(layer()), head_dim=0), ValueError, "head_dim"),
        (lambda: aj.factor(aj.merge(layer()), head_dim=2.0), TypeError, "head_dim"),
        (
            lambda: aj.factor(aj.merge(layer()), head_dim=3, num_kv_heads=3),
            ValueError,
            "num_kv_heads",
        ),
        (
            lambda: aj.factor(aj.merge(layer()), head_dim=3, num_kv_heads=4),
            ValueError,
            "2, the heads of value",
        ),
        (lambda: aj.factor({"a": 1}, head_dim=3), ValueError, "one attention layer"),
    ],
)
def test_refusals(call, error, match):
    with pytest.raises(error, match=match):
        call()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_weights_that_are_not_finite_have_no_error_of_zero(bad):
    merged = aj.merge(layer())
    merged["qk"]["kernel"] = merged["qk"]["kernel"].at[0, 0, 0].set(bad)
    factors, error = aj.factor(merged, head_dim=3)
    assert np.isnan(error) and np.isnan(factors["query"]["kernel"]).any()


@pytest.mark.parametrize("size", [1e-24, 1e15])
def test_the_error_does_not_depend_on_the_size_of_the_weights(size):
    merged = aj.merge(layer(bias=False))
    expected = float(aj.factor(merged, head_dim=2)[1])
    assert expected > 0.05
    merged["qk"] = {"kernel": merged["qk"]["kernel"] * size}
    np.testing.assert_allclose(aj.factor(merged, head_dim=2)[1], expected, rtol=1e-4)
