"""The assertion that two callables are one function, and the comparison behind all assertions."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attention_jax as aj
from attention_jax import testing
from attention_jax.testing import compare
from tests.paths import variables_of

X = jax.random.normal(jax.random.key(0), (2, 5, 8))


@functools.cache
def pair():
    separate, merged = aj.SeparateAttention(2), aj.MergedAttention(2)
    variables = variables_of(separate, X)
    return (
        jax.jit(functools.partial(separate.apply, variables)),
        jax.jit(functools.partial(merged.apply, aj.convert(variables, aj.merge))),
        variables,
    )


def test_two_forms_are_one_function():
    testing.assert_same_function(*pair()[:2], X)


def test_another_scale_fails():
    one, _, variables = pair()
    other = functools.partial(aj.SeparateAttention(2, scale=0.4).apply, variables)
    with pytest.raises(
        AssertionError, match=r"the outputs differ. Largest difference .*at output\["
    ):
        testing.assert_same_function(one, other, X)


def test_a_difference_in_gradients_only_fails():
    one, merged, _ = pair()

    def stopped(x):
        return merged(jax.lax.stop_gradient(x))

    with pytest.raises(AssertionError, match=r"gradients with respect to the input leaves \[0\]"):
        testing.assert_same_function(one, stopped, X)
    testing.assert_same_function(one, stopped, X, gradients=False)


def test_a_difference_in_one_leaf_is_named():
    one = lambda x: {"a": x, "b": 2 * x}  # noqa: E731
    other = lambda x: {"a": x, "b": (2 * x).at[1, 2, 3].add(0.5)}  # noqa: E731
    with pytest.raises(AssertionError, match=r"Largest difference 0.5 .*at \['b'\]\[1, 2, 3\]"):
        testing.assert_same_function(one, other, X)


def test_the_gradient_with_respect_to_a_later_input_is_compared():
    ids = jnp.arange(5)
    one = lambda ids, x, y: x * y  # noqa: E731
    other = lambda ids, x, y: x * jax.lax.stop_gradient(y)  # noqa: E731
    with pytest.raises(AssertionError, match=r"input leaves \[1, 2\] differ"):
        testing.assert_same_function(one, other, ids, X, X)


def test_the_same_object_is_refused():
    one = pair()[0]
    with pytest.raises(ValueError, match="another callable"):
        testing.assert_same_function(one, one, X)


def test_other_shapes_and_other_structures_fail():
    with pytest.raises(AssertionError):
        testing.assert_same_function(lambda x: x, lambda x: x[:1], X)
    with pytest.raises(AssertionError):
        testing.assert_same_function(lambda x: x, lambda x: (x, x), X)


def test_outputs_may_include_integers():
    testing.assert_same_function(lambda x: (x, jnp.argmax(x)), lambda x: (x + 0, jnp.argmax(x)), X)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_never_agree_with_others(bad):
    good = np.zeros(3)
    wrong = np.array([0, bad, 0])
    for one, other in ((good, wrong), (wrong, good)):
        with pytest.raises(AssertionError, match=r"what\. Largest difference inf.*output\[1\]"):
            compare.assert_close("what", one, other, 1e9)
    if np.isinf(bad):
        compare.assert_close("what", wrong, wrong, 0.0)
        with pytest.raises(AssertionError):
            compare.assert_close("what", wrong, -wrong, 1e9)


def test_tolerances_follow_the_narrowest_dtype():
    narrow, wide = jnp.ones(2, jnp.bfloat16), jnp.ones(2)
    assert compare.default_tolerance(wide) == 2e-5
    assert compare.default_tolerance((narrow, wide)) == 2.0**-6
    assert compare.default_tolerance(jnp.ones(2, int)) == 0.0
    compare.assert_close("what", 1000 * wide, 1000 * wide + 0.01, None)
    with pytest.raises(AssertionError, match="allowed 0.02"):
        compare.assert_close("what", 1000 * wide, 1000 * wide + 0.1, None)
    with pytest.raises(AssertionError):
        compare.assert_close("what", jnp.ones(2, int), jnp.zeros(2, int), None)


def test_an_integer_beside_floats_hides_no_gradient():
    inputs = {"x": jnp.ones((2, 3)), "i": jnp.arange(3)}
    with pytest.raises(AssertionError, match="gradients with respect to the input leaves"):
        testing.assert_same_function(
            lambda d: d["x"] * 2, lambda d: jax.lax.stop_gradient(d["x"]) * 2, inputs
        )


def test_outputs_below_the_tolerance_show_nothing():
    with pytest.raises(ValueError, match="outputs exceed the tolerance"):
        testing.assert_same_function(lambda x: 1e-6 * x, lambda x: -1e-6 * x, jnp.ones(3))


def test_another_dtype_or_phase_is_another_function():
    with pytest.raises(AssertionError, match="dtype: .*float32.*bfloat16"):
        testing.assert_same_function(lambda x: x, lambda x: x.astype(jnp.bfloat16), jnp.ones(3))
    with pytest.raises(AssertionError, match="outputs differ"):
        testing.assert_same_function(
            lambda x: x * (1 + 1j), lambda x: x * (1 + 2j), jnp.ones(3), gradients=False
        )


def test_an_infinite_tolerance_is_refused():
    with pytest.raises(ValueError, match="tolerance: expected a finite number"):
        testing.assert_same_function(
            lambda x: x, lambda x: 2 * x, jnp.ones(3), tolerance=float("inf")
        )
