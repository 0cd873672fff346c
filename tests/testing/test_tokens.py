"""Assertions about tokens: what passes, what must fail, and what is refused as vacuous."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attention_jax as aj
from attention_jax import testing
from tests.paths import variables_of

X = jax.random.normal(jax.random.key(0), (2, 5, 4))
Y = jax.random.normal(jax.random.key(1), (2, 7, 4))


def raw(**settings):
    return jax.jit(lambda *inputs: aj.RawAttention().apply({}, *inputs, **settings))


def plain(x):
    """Self-attention of a user, in NumPy."""
    x = np.asarray(x)
    weights = np.exp(x @ x.swapaxes(-1, -2))
    return weights / weights.sum(-1, keepdims=True) @ x


def cumulative(x):
    """Means of the past, in NumPy."""
    x = np.asarray(x)
    return np.cumsum(x, -2) / np.arange(1, x.shape[-2] + 1)[:, None]


def learned(x):
    return raw()(x + jax.random.normal(jax.random.key(2), (1, *x.shape[1:])))


def rotary(x):
    return aj.RawAttention(position=aj.Rotary()).apply({}, x)


def circular(x):
    return x + 0.5 * jnp.roll(x, 1, axis=-2)


class TestPermutations:
    @pytest.mark.parametrize("function", [raw(), plain], ids=["layer", "numpy"])
    @pytest.mark.parametrize("permutation", [None, [1, 0, 2, 3, 4]])
    def test_passes(self, function, permutation):
        testing.assert_permutation_equivariant(function, X, permutation=permutation)

    @pytest.mark.parametrize(
        "function",
        [raw(mask=aj.causal()), learned, rotary, cumulative, circular],
        ids=["causal", "learned", "rotary", "numpy", "circular"],
    )
    def test_fails(self, function):
        with pytest.raises(AssertionError, match=r"f\(P x\) is not P f\(x\).*Largest.*at output\["):
            testing.assert_permutation_equivariant(function, X)

    @pytest.mark.parametrize("length", range(2, 9))
    @pytest.mark.parametrize("special", [0, -1])
    def test_fails_for_one_special_token_whatever_the_length(self, length, special):
        x = np.random.default_rng(0).normal(size=(length, 3))

        def function(x):
            output = plain(x)
            output[special] += 1
            return output

        with pytest.raises(AssertionError):
            testing.assert_permutation_equivariant(function, x)

    @pytest.mark.parametrize("permutation", [[0, 1, 2, 3, 4], [0, 0, 1, 2, 3], [1, 0]])
    def test_refuses_what_permutes_nothing(self, permutation):
        with pytest.raises(ValueError, match="permutation"):
            testing.assert_permutation_equivariant(raw(), X, permutation=permutation)

    def test_refuses_equal_tokens(self):
        with pytest.raises(ValueError, match="x: "):
            testing.assert_permutation_equivariant(raw(), jnp.ones((2, 5, 4)))

    def test_refuses_one_token(self):
        with pytest.raises(ValueError, match="permutation"):
            testing.assert_permutation_equivariant(raw(), X[:, :1])


class TestRotations:
    @pytest.mark.parametrize(
        "function", [raw(), plain, circular], ids=["layer", "numpy", "circular"]
    )
    @pytest.mark.parametrize("shift", [1, 2, -1])
    def test_passes(self, function, shift):
        testing.assert_rotation_equivariant(function, X, shift=shift)

    def test_four_tokens_by_two(self):
        testing.assert_rotation_equivariant(raw(), X[:, :4], shift=2)

    @pytest.mark.parametrize(
        "function", [raw(mask=aj.causal()), learned], ids=["causal", "learned"]
    )
    def test_fails(self, function):
        with pytest.raises(AssertionError, match="rotating the tokens by 2.*at output"):
            testing.assert_rotation_equivariant(function, X, shift=2)

    @pytest.mark.parametrize("shift", [0, 5, -10])
    def test_refuses_full_turns(self, shift):
        with pytest.raises(ValueError, match="shift"):
            testing.assert_rotation_equivariant(raw(), X, shift=shift)


class TestCrossAttention:
    def test_passes(self):
        testing.assert_cross_attention_symmetries(raw(), X, Y)

    def test_passes_with_a_key_mask_permuted_along(self):
        mask = (jnp.arange(7) < 4)[None, :, None] & jnp.ones((2, 7, 1), bool)

        def function(x, memory):
            y, mask = memory
            return aj.RawAttention().apply({}, x, y, mask=mask[..., 0][:, None, None])

        testing.assert_cross_attention_symmetries(function, X, (Y, mask))

    def test_fails_where_the_mask_stays_behind(self):
        mask = (jnp.arange(7) < 4)[None, None, None]
        with pytest.raises(AssertionError, match=r"f\(x, P y\) is not f\(x, y\).*keys"):
            testing.assert_cross_attention_symmetries(raw(mask=mask), X, Y)

    def test_fails_where_keys_have_positions(self):
        position = jax.random.normal(jax.random.key(3), (1, 7, 4))
        with pytest.raises(AssertionError, match=r"f\(x, P y\) is not f\(x, y\)"):
            testing.assert_cross_attention_symmetries(lambda x, y: raw()(x, y + position), X, Y)

    def test_fails_where_queries_have_positions(self):
        position = jax.random.normal(jax.random.key(3), (1, 5, 4))
        with pytest.raises(AssertionError, match=r"f\(P x, y\) is not P f\(x, y\).*queries"):
            testing.assert_cross_attention_symmetries(lambda x, y: raw()(x + position, y), X, Y)

    def test_refuses_a_function_that_ignores_the_keys(self):
        with pytest.raises(ValueError, match="inputs_kv"):
            testing.assert_cross_attention_symmetries(lambda x, y: x, X, Y)

    def test_refuses_equal_queries(self):
        with pytest.raises(ValueError, match="inputs_q"):
            testing.assert_cross_attention_symmetries(raw(), jnp.ones_like(X), Y)

    def test_keys_and_values_of_two_lengths_are_an_error_of_the_inputs(self):
        with pytest.raises(ValueError, match="inputs_kv"):
            testing.assert_cross_attention_symmetries(lambda x, y: raw()(x, y[0]), X, (Y, X))


class TestCausality:
    @pytest.mark.parametrize(
        "function", [raw(mask=aj.causal()), cumulative], ids=["layer", "numpy"]
    )
    def test_passes(self, function):
        testing.assert_causal(function, X)

    @pytest.mark.parametrize("cls", [aj.SeparateAttention, aj.MergedAttention])
    def test_passes_for_modules(self, cls):
        module = cls(2)
        variables = variables_of(module, X)
        apply = jax.jit(lambda x: module.apply(variables, x, mask=aj.causal()))
        testing.assert_causal(apply, X)
        with pytest.raises(AssertionError, match="outputs before position 1 change"):
            testing.assert_causal(lambda x: module.apply(variables, x), X)

    @pytest.mark.parametrize("at", range(4))
    def test_fails_for_a_leak_at_a_single_position(self, at):
        mask = np.tril(np.ones((1, 1, 5, 5), bool))
        mask[..., at, at + 1] = True
        with pytest.raises(AssertionError, match=f"outputs before position {at + 1} change"):
            testing.assert_causal(raw(mask=mask), X)

    def test_fails_for_a_leak_through_one_row_of_the_batch(self):
        def function(x):
            return cumulative(x) + np.array([0, 1.0])[:, None, None] * np.asarray(x)[:, -1:]

        with pytest.raises(AssertionError, match=r"at output\[1, 0, "):
            testing.assert_causal(function, X)

    def test_fails_for_a_leak_that_is_not_finite(self):
        def function(x):
            return jnp.where(x[:, -1:, :1] == X[:, -1:, :1], raw(mask=aj.causal())(x), jnp.nan)

        with pytest.raises(AssertionError, match="outputs before position"):
            testing.assert_causal(function, X)

    def test_refuses_a_constant_and_one_token(self):
        with pytest.raises(ValueError, match="function: "):
            testing.assert_causal(lambda x: jnp.zeros_like(x), X)
        with pytest.raises(ValueError, match="x: .*2 tokens"):
            testing.assert_causal(raw(), X[:, :1])

    def test_inputs_that_were_drawn_with_the_default_key_do_change(self):
        x = jax.random.normal(jax.random.key(0), X.shape)
        with pytest.raises(AssertionError):
            testing.assert_causal(raw(), x)


def test_a_large_channel_hides_no_leak_into_the_past():
    x = jax.random.normal(jax.random.key(0), (2, 5, 4))
    sizes = jnp.array([1e6, 1, 1, 1]).reshape(1, 1, 4)

    def layer(x, mask):
        return x * sizes + aj.RawAttention().apply({}, x, mask=mask)

    testing.assert_causal(lambda x: layer(x, aj.causal()), x)
    with pytest.raises(AssertionError, match="outputs before position 1"):
        testing.assert_causal(lambda x: layer(x, None), x)


def test_too_few_tokens_or_axes_are_refused():
    for x in (jnp.ones(3), jnp.ones((1, 3))):
        with pytest.raises(ValueError, match="x: expected .* at least 2 tokens"):
            testing.assert_causal(lambda x: x, x)
    with pytest.raises(ValueError, match="shift"):
        testing.assert_rotation_equivariant(lambda x: x, jnp.ones((0, 3)))
