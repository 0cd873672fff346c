"""Assertions about weights: what passes, what must fail, and what is refused as vacuous."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attention_jax as aj
from attention_jax import testing
from tests.paths import variables_of

X = jax.random.normal(jax.random.key(0), (2, 5, 8))
Y = jax.random.normal(jax.random.key(1), (2, 3, 6))


@functools.cache
def made(cls=aj.SeparateAttention, heads=4, inputs=(8, 8), **settings):
    module = cls(heads, **settings)
    arguments = (X,) if inputs == (8, 8) else (X, Y)
    params = variables_of(module, *arguments)["params"]
    return jax.jit(lambda params, *inputs: module.apply({"params": params}, *inputs)), params


FORMS = {
    "separate": {"num_kv_heads": 2},
    "separate_ov": {"num_kv_heads": 2, "ov": "merged"},
    "merged": {"cls": aj.MergedAttention, "num_kv_heads": 2},
    "merged_ov": {"cls": aj.MergedAttention, "ov": "merged", "softcap": 2.0},
}


def tiled(params, x):
    """A user's grouped attention that shares key heads in the wrong order, in NumPy."""
    q, k, v = (
        np.einsum("btd,dhk->bthk", x, params[n]["kernel"]) for n in ("query", "key", "value")
    )
    order = np.arange(q.shape[2]) % k.shape[2]
    weights = np.exp(np.einsum("bthk,bshk->bhts", q, k[:, :, order]))
    weights /= weights.sum(-1, keepdims=True)
    heads = np.einsum("bhts,bshk->bthk", weights, v[:, :, order])
    return np.einsum("bthk,hko->bto", heads, params["out"]["kernel"])


@pytest.mark.parametrize("settings", FORMS.values(), ids=FORMS)
def test_heads_may_be_relabelled(settings):
    apply, params = made(**settings)
    testing.assert_head_permutation_invariant(apply, params, X)


def test_tiled_heads_fail():
    _, params = made(num_kv_heads=2)
    with pytest.raises(AssertionError, match=r"relabelling the heads as \[.*at output\["):
        testing.assert_head_permutation_invariant(tiled, params, X)


def test_a_function_of_one_head_fails():
    apply, params = made()

    def louder(params, x):
        kernel = params["out"]["kernel"].at[0].multiply(2.0)
        return apply({**params, "out": {**params["out"], "kernel": kernel}}, x)

    with pytest.raises(AssertionError, match="relabelling the heads"):
        testing.assert_head_permutation_invariant(louder, params, X)


def test_a_bias_per_head_fails():
    module = aj.SeparateAttention(4, position=aj.ALiBi(4))
    _, params = made()
    with pytest.raises(AssertionError, match="relabelling the heads"):
        testing.assert_head_permutation_invariant(
            lambda params, x: module.apply({"params": params}, x), params, X
        )


def test_one_head_or_equal_heads_are_refused():
    apply, params = made(heads=1)
    with pytest.raises(ValueError, match="at least 2 heads"):
        testing.assert_head_permutation_invariant(apply, params, X)
    apply, params = made()
    equal = jax.tree.map(jnp.ones_like, params)
    with pytest.raises(ValueError, match="heads' weights differ"):
        testing.assert_head_permutation_invariant(apply, equal, X)


@pytest.mark.parametrize("name", ["separate", "separate_ov", "merged"])
def test_a_change_of_gauge_passes(name):
    apply, params = made(**FORMS[name])
    testing.assert_gauge_invariant(apply, params, X)


@pytest.mark.parametrize(
    "settings", [{"position": aj.Rotary()}, {"normalize_qk": True}], ids=["rotary", "norm"]
)
def test_rotary_positions_and_norms_break_the_gauge(settings):
    apply, params = made(**settings)
    with pytest.raises(AssertionError, match=r"change of basis inside the heads.*at output\["):
        testing.assert_gauge_invariant(apply, params, X)


def test_a_nonlinearity_between_value_and_output_breaks_the_gauge():
    apply, params = made(ov="separate")

    def clipped(params, x):
        value = {**params["value"], "bias": jnp.maximum(params["value"]["bias"], 0)}
        return apply({**params, "value": value}, x)

    with pytest.raises(AssertionError, match="inside the heads"):
        testing.assert_gauge_invariant(clipped, params, X)


def test_a_layer_without_factors_has_no_gauge():
    apply, params = made(**FORMS["merged_ov"])
    with pytest.raises(ValueError, match="query and key, or value and out"):
        testing.assert_gauge_invariant(apply, params, X)


def test_zero_weights_are_refused_because_no_gauge_changes_them():
    apply, params = made()
    with pytest.raises(ValueError, match="params"):
        testing.assert_gauge_invariant(apply, jax.tree.map(jnp.zeros_like, params), X)


@pytest.mark.parametrize("settings", FORMS.values(), ids=FORMS)
def test_a_change_of_basis_passes(settings):
    apply, params = made(**settings)
    testing.assert_basis_change_invariant(apply, params, X)


def test_a_change_of_both_bases_passes_in_cross_attention():
    apply, params = made(cls=aj.MergedAttention, ov="merged", inputs=(8, 6))
    testing.assert_basis_change_invariant(apply, params, X, Y)
    testing.assert_basis_change_invariant(apply, params, X, Y, Y + 1)


def test_a_layer_norm_of_the_inputs_breaks_it():
    apply, params = made()

    def normed(params, x):
        centred = x - x.mean(-1, keepdims=True)
        return apply(params, centred / centred.std(-1, keepdims=True))

    with pytest.raises(AssertionError, match=r"inputs' basis.*at output\["):
        testing.assert_basis_change_invariant(normed, params, X)


def test_a_residual_breaks_it():
    apply, params = made()
    with pytest.raises(AssertionError, match="inputs' basis"):
        testing.assert_basis_change_invariant(lambda p, x: x + apply(p, x), params, X)


def test_functions_that_see_no_basis_are_refused():
    _, params = made()
    with pytest.raises(ValueError, match="basis of the inputs matters"):
        testing.assert_basis_change_invariant(lambda p, x: jnp.zeros_like(x), params, X)
    with pytest.raises(ValueError, match="one to three"):
        testing.assert_basis_change_invariant(lambda p: 0, params)


@pytest.mark.parametrize(
    "check",
    [
        testing.assert_head_permutation_invariant,
        testing.assert_gauge_invariant,
        testing.assert_basis_change_invariant,
    ],
)
def test_a_layer_that_ignores_its_parameters_shows_nothing(check):
    x = jax.random.normal(jax.random.key(0), (2, 5, 8))
    module = aj.SeparateAttention(4)
    variables = module.init(jax.random.key(1), x)

    def apply(params, x):
        return module.apply({"params": params}, x)

    check(apply, variables["params"], x)
    with pytest.raises(ValueError, match="expected inputs for which"):
        check(lambda params, x: module.apply(variables, x), variables["params"], x)
    with pytest.raises(ValueError, match="depends on query/kernel"):
        check(apply, variables["params"], x[:, :1])


@pytest.mark.parametrize("order", [[3, 2, 1, 0], [2, 3, 0, 1]], ids=["reversed", "shifted"])
def test_wrongly_shared_heads_fail(order):
    x = jax.random.normal(jax.random.key(0), (2, 5, 8))
    module = aj.SeparateAttention(4)
    params = module.init(jax.random.key(1), x)["params"]

    def wrong(params, x):
        key = {name: leaf[..., order, :] for name, leaf in params["key"].items()}
        return module.apply({"params": {**params, "key": key}}, x)

    with pytest.raises(AssertionError, match="relabelling the heads"):
        testing.assert_head_permutation_invariant(wrong, params, x)
