"""Dtypes of the sums, and the precision of every product."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attention_jax as aj
from attention_jax import core
from attention_jax.core import merged, raw, separate
from attention_jax.testing import reference
from tests.paths import PATHS, k_fill, q_fill, v_fill, variables_of

HIGHEST = jax.lax.Precision.HIGHEST


@pytest.mark.parametrize("length", [1000, 4096])
@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_c07_long_uniform_rows_sum_to_one(path, length):
    query = jnp.zeros((1, 1, 1, 4), jnp.bfloat16)
    key = jnp.ones((1, length, 1, 4), jnp.bfloat16)
    output, weights = path(query, key, key, return_weights=True)
    assert output.dtype == jnp.bfloat16
    np.testing.assert_allclose(output.astype(jnp.float32), 1.0, atol=2.0**-7)
    np.testing.assert_allclose(np.asarray(weights, np.float64).sum(-1), 1.0, atol=2.0**-8)


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_c07_values_over_700_keys(path):
    q, k, v = (
        jnp.asarray(x, jnp.bfloat16)
        for x in (q_fill(1, 2, 1, 4), k_fill(1, 700, 1, 4), v_fill(1, 700, 1, 4))
    )
    expected = [
        [0.0004474, -0.0039556, 0.0058660, -0.0068659],
        [0.0011854, 0.0057437, -0.0046844, -0.0034324],
    ]
    output, weights = path(q, k, v, return_weights=True)
    np.testing.assert_allclose(output[0, :, 0].astype(jnp.float32), expected, atol=1e-4)
    assert weights.dtype == jnp.float32
    np.testing.assert_allclose(np.asarray(weights, np.float64).sum(-1), 1.0, atol=2.0**-8)


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_float64_stays_float64(path):
    arrays = (q_fill(1, 3, 2, 4), k_fill(1, 3, 2, 4), v_fill(1, 3, 2, 4))
    with jax.enable_x64(True):
        q, k, v = (jnp.asarray(x, jnp.float64) / 3 for x in arrays)
        output, weights = path(q, k, v, return_weights=True)
        expected, expected_weights = reference.attend(q, k, v)
        assert output.dtype == weights.dtype == jnp.float64
        np.testing.assert_allclose(output, expected, atol=1e-14)
        np.testing.assert_allclose(weights, expected_weights, atol=1e-14)


def test_scores_are_not_rounded_before_large_terms_cancel():
    q = jnp.array([[256.0, 256.0, 1.0]], jnp.bfloat16).reshape(1, 1, 1, 3)
    k = jnp.array([[1.0, -1.0, 1.0], [0.0, 0.0, 0.0]], jnp.bfloat16).reshape(1, 2, 1, 3)
    weights = aj.attend(q, k, k, return_weights=True)[1]
    expected = reference.attend(q, k, k)[1]
    np.testing.assert_allclose(weights, expected, atol=1e-6)


def test_numpy_arrays_of_float64_are_taken_as_jax_takes_them():
    q, k, v = (
        np.asarray(x, np.float64)
        for x in (q_fill(1, 3, 2, 4), k_fill(1, 3, 2, 4), v_fill(1, 3, 2, 4))
    )
    output = aj.attend(q, k, v)
    assert output.dtype == jnp.float32
    np.testing.assert_allclose(output, reference.attend(q, k, v)[0], atol=2e-6)


@pytest.mark.parametrize("form", ["attend", "separate", "merged", "merged_ov", "raw"])
def test_c57_value_with_highest_precision(form):
    small = 2.0**-12
    q = jnp.array([1 + small, -1.0]).reshape(1, 1, 2)
    k = jnp.array([[16384.0, 16384.0], [0.0, 0.0]]).reshape(1, 2, 2)
    v = jnp.array([[1.0, 0.0], [0.0, 0.0]]).reshape(1, 2, 2)
    scale = 2.0**-0.5
    identity = {"kernel": jnp.eye(2)[:, None]}
    params = {"query": identity, "key": identity, "value": identity}
    params["out"] = {"kernel": jnp.eye(2)[None]}
    settings = {"num_heads": 1, "use_bias": False, "precision": "highest"}
    if form == "attend":
        heads = aj.attend(q[:, :, None], k[:, :, None], v[:, :, None], precision="highest")
        output = heads[:, :, 0]
    elif form == "raw":
        output = aj.RawAttention(scale=scale, precision="highest").apply({}, q, k, v)
    elif form == "separate":
        output = aj.SeparateAttention(**settings).apply({"params": params}, q, k, v)
    else:
        ov = "merged" if form == "merged_ov" else "separate"
        module = aj.MergedAttention(ov=ov, **settings)
        output = module.apply({"params": aj.merge(params, ov=ov == "merged")}, q, k, v)
    assert output[0, 0, 0] == pytest.approx(0.944193, abs=2e-6)


def dot_generals(jaxpr):
    """All `dot_general` equations of a jaxpr and of those inside it."""
    found = []
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            found.append(equation)
        for inner in jax.tree.leaves(
            list(equation.params.values()),
            is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr"),
        ):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                found += dot_generals(inner)
    return found


def precisions(function, *arguments):
    jaxpr = jax.make_jaxpr(function)(*arguments)
    return [equation.params["precision"] for equation in dot_generals(jaxpr.jaxpr)]


MODULES = {
    "separate": functools.partial(aj.SeparateAttention, num_heads=2),
    "grouped": functools.partial(aj.SeparateAttention, num_heads=2, num_kv_heads=1),
    "separate_merged_ov": functools.partial(aj.SeparateAttention, num_heads=2, ov="merged"),
    "qk_norm": functools.partial(aj.SeparateAttention, num_heads=2, normalize_qk=True),
    "rotary": functools.partial(aj.SeparateAttention, num_heads=2, position=aj.Rotary()),
    "alibi": functools.partial(aj.MergedAttention, num_heads=2, position=aj.ALiBi(2)),
    "merged": functools.partial(aj.MergedAttention, num_heads=2),
    "merged_softcap": functools.partial(aj.MergedAttention, num_heads=2, softcap=3.0),
    "merged_qk_ov": functools.partial(aj.MergedAttention, num_heads=2, ov="merged"),
    "raw": aj.RawAttention,
}


@pytest.mark.parametrize("make", MODULES.values(), ids=MODULES)
def test_c57_precision_reaches_every_product(make):
    x = jnp.ones((2, 3, 4))

    def found(precision):
        module = make(precision=precision)
        variables = jax.eval_shape(module.init, jax.random.key(0), x)

        def loss(inputs):
            variables, x = inputs
            return jnp.sum(module.apply(variables, x, mask=aj.causal()))

        return precisions(module.apply, variables, x), precisions(jax.grad(loss), (variables, x))

    forward, with_backward = found("highest")
    assert len(forward) >= 2 and len(with_backward) >= 3 * len(forward)
    assert set(forward) == set(with_backward) == {(HIGHEST, HIGHEST)}
    assert set(found(None)[0]) == {None}


def test_c57_conversions_multiply_with_the_highest_precision():
    x = jnp.ones((2, 3, 4))
    module = aj.SeparateAttention(num_heads=2)
    params = jax.eval_shape(module.init, jax.random.key(0), x)["params"]
    merged = functools.partial(aj.merge, ov=True)
    initial = functools.partial(aj.MergedAttention(2, ov="merged").init, jax.random.key(0))
    for function, arguments in (
        (merged, (params,)),
        (lambda p: aj.circuits.qk(p).matrix(), (params,)),
        (lambda p: aj.circuits.ov(p).singular_values(), (params,)),
    ):
        found = precisions(function, *arguments)
        assert found and set(found) == {(HIGHEST, HIGHEST)}
    found = precisions(initial, x)
    assert found.count((HIGHEST, HIGHEST)) >= 2


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("make", MODULES.values(), ids=MODULES)
def test_sixteen_bits_near_float32(make, dtype):
    x = jnp.asarray(q_fill(2, 3, 4) + 0.5 * k_fill(2, 3, 4))
    module = make()
    variables = variables_of(module, x)
    narrow = jax.jit(make(dtype=dtype).apply)(variables, x)
    wide = jax.jit(module.apply)(variables, x)
    assert narrow.dtype == dtype and wide.dtype == jnp.float32
    tolerance = 2.0**-7 * max(1.0, float(jnp.abs(wide).max()))
    np.testing.assert_allclose(narrow.astype(jnp.float32), wide, atol=tolerance, rtol=0)


def test_a_layer_guesses_no_scale():
    x = jnp.asarray(q_fill(2, 3, 4))
    for form in (separate, merged, raw):
        with pytest.raises(TypeError, match="scale: expected a number, got None"):
            core.attention(form.query_key, form.value_output, {}, x, scale=None)
    with pytest.raises(TypeError, match="scale: expected a number, got None"):
        aj.RawAttention(scale=None).apply({}, x)
