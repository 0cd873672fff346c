"""From two matrices to one: values, exactness, refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attention_jax as aj
from attention_jax.testing import reference
from tests.algebra.layers import layer, ov_matrices, qk_matrices, repeated

X = np.array([[1, 2], [0, 1], [-1, 0.5]], np.float32)
C53 = {
    "query": {"kernel": np.array([[1, 0], [0.5, -1]]), "bias": np.array([2, -1])},
    "key": {"kernel": np.array([[0.5, 1], [-1, 0.25]]), "bias": np.array([0.75, 0.5])},
    "value": {"kernel": np.eye(2), "bias": np.zeros(2)},
}
C53 = {
    name: {"kernel": x["kernel"][:, None].astype("f4"), "bias": x["bias"][None].astype("f4")}
    for name, x in C53.items()
}
C53["out"] = {"kernel": np.eye(2, dtype="f4")[None], "bias": np.zeros(2, "f4")}
C53_WEIGHTS = [
    [0.001442, 0.084088, 0.914470],
    [0.011797, 0.167248, 0.820955],
    [0.038204, 0.223790, 0.738006],
]


def weights(module, params):
    state = module.apply({"params": params}, X, sow_weights=True, mutable=["intermediates"])[1]
    return np.asarray(state["intermediates"]["attention_weights"][0][0])


@pytest.mark.parametrize("ov", ["separate", "merged"])
def test_c53_biases_of_queries_and_keys(ov):
    separate = weights(aj.SeparateAttention(1), C53)
    params = aj.merge(C53, ov=ov == "merged")
    merged = weights(aj.MergedAttention(1, ov=ov), params)
    judged = reference.layer(C53, X, X, X, 2)[1][0]
    for got in (separate, merged, judged):
        np.testing.assert_allclose(got, C53_WEIGHTS, atol=2e-6)
    dropped = {**params, "qk": {**params["qk"], "bias": 0 * params["qk"]["bias"]}}
    wrong = weights(aj.MergedAttention(1, ov=ov), dropped)
    np.testing.assert_allclose(wrong[0], [0.014046, 0.166867, 0.819087], atol=2e-6)


def test_c53_only_the_key_side_term_is_kept_and_the_key_bias_cancels():
    params = aj.merge(C53)
    np.testing.assert_allclose(
        params["qk"]["bias"][0], C53["key"]["kernel"][:, 0] @ C53["query"]["bias"][0], atol=1e-6
    )
    moved = {**C53, "key": {**C53["key"], "bias": C53["key"]["bias"] + 5}}
    for one, other in zip(jax.tree.leaves(aj.merge(moved)), jax.tree.leaves(params), strict=True):
        np.testing.assert_array_equal(one, other)


def test_c53_the_soft_cap_sees_the_row_terms():
    expected = reference.layer(C53, X, X, X, 2, softcap=1.0)[1][0]
    got = weights(aj.MergedAttention(1, softcap=1.0), aj.merge(C53, softcap=1.0))
    np.testing.assert_allclose(got, expected, atol=2e-6)
    np.testing.assert_allclose(
        weights(aj.SeparateAttention(1, softcap=1.0), C53), expected, atol=2e-6
    )
    assert np.abs(expected - C53_WEIGHTS).max() > 0.05
    lacking = pytest.raises(Exception, match="row_kernel")
    with lacking:
        weights(aj.MergedAttention(1, softcap=1.0), aj.merge(C53))


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_entries_are_the_products_of_numpy(groups):
    params = layer(groups=groups)
    merged = aj.merge(params, ov=True, softcap=2.0)
    b_q, w_k, b_k = params["query"]["bias"], repeated(params, "key"), params["key"]["bias"]
    b_k, b_v = (np.repeat(params[n]["bias"], 4 // groups, 0) for n in ("key", "value"))
    expected = {
        "qk": {
            "kernel": qk_matrices(params).transpose(1, 0, 2),
            "bias": np.einsum("ehk,hk->he", w_k, b_q),
            "row_kernel": np.einsum("dhk,hk->dh", params["query"]["kernel"], b_k),
            "row_bias": np.einsum("hk,hk->h", b_q, b_k),
        },
        "ov": {
            "kernel": ov_matrices(params),
            "bias": np.einsum("hk,hko->ho", b_v, params["out"]["kernel"]),
        },
        "out": {"bias": params["out"]["bias"]},
    }
    assert jax.tree.structure(merged) == jax.tree.structure(expected)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), merged, expected)
    assert set(aj.merge(params)["qk"]) == {"kernel", "bias"}
    assert set(aj.merge(layer(bias=False), softcap=2.0)["qk"]) == {"kernel"}


@pytest.mark.parametrize("biased", ["query", "key", "value", "out"])
def test_one_bias_alone_survives(biased):
    params = layer(d=6, e=6)
    params = {n: x if n == biased else {"kernel": x["kernel"]} for n, x in params.items()}
    merged = aj.merge(params, ov=True)
    assert ("bias" in merged["qk"]) == (biased in ("query", "key"))
    assert ("bias" in merged["ov"]) == (biased == "value")
    assert ("out" in merged) == (biased == "out")


def test_the_input_tree_is_left_alone():
    params = layer()
    before = jax.tree.map(np.copy, params)
    aj.merge(params, ov=True)
    jax.tree.map(np.testing.assert_array_equal, params, before)


def test_under_jit_and_over_stacked_layers():
    stack = [layer(seed=i) for i in range(3)]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *stack)
    mapped = jax.jit(jax.vmap(lambda p: aj.merge(p, ov=True)))(stacked)
    for i, params in enumerate(stack):
        one = aj.merge(params, ov=True)
        jax.tree.map(lambda a, b, i=i: np.testing.assert_allclose(a[i], b, atol=1e-5), mapped, one)
    with pytest.raises(ValueError, match="kernel: .*4 axes.*jax.vmap"):
        aj.merge(stacked)


def test_bfloat16_parameters_are_multiplied_in_float32():
    params = layer(d=24, e=24, heads=2, groups=2, bias=False)
    narrow = jax.tree.map(lambda x: jnp.asarray(x, jnp.bfloat16), params)
    kernel = aj.merge(narrow)["qk"]["kernel"]
    assert kernel.dtype == jnp.float32
    for h in range(2):
        values = np.linalg.svd(np.asarray(kernel[:, h], np.float64), compute_uv=False)
        assert values[3] < 1e-6 * values[0] and values[2] > 1e-2 * values[0]
    rounded = np.asarray(kernel[:, 0].astype(jnp.bfloat16), np.float64)
    assert np.linalg.svd(rounded, compute_uv=False)[3] > 1e-4


def test_numpy_parameters_of_float64_are_taken_as_jax_takes_them():
    merged = aj.merge(layer(dtype=np.float64), ov=True)
    assert merged["qk"]["kernel"].dtype == jnp.float32


def test_float64_stays_float64():
    with jax.enable_x64(True):
        params = layer(dtype=np.float64)
        merged = aj.merge(params)
        assert merged["qk"]["kernel"].dtype == jnp.float64
        expected = qk_matrices(params).transpose(1, 0, 2)
        np.testing.assert_allclose(merged["qk"]["kernel"], expected, atol=1e-13)


def without(params, group, *names):
    kept = {name: x for name, x in params.items() if name != group}
    return kept | (
        {group: {n: x for n, x in params[group].items() if n not in names}} if names else {}
    )


NORMS = {name: {"scale": np.ones(3, "f4")} for name in ("query_ln", "key_ln")}
REFUSALS = {
    "rotary": (lambda: aj.merge(layer(), position=aj.Rotary()), NotImplementedError, "Rotary"),
    "QK-norm": (lambda: aj.merge(layer() | NORMS), NotImplementedError, "QK-norm"),
    "nothing": (lambda: aj.merge(layer(), qk=False), ValueError, "qk, ov"),
    "twice": (lambda: aj.merge(aj.merge(layer())), ValueError, "qk already merged"),
    "ov twice": (
        lambda: aj.merge(aj.merge(layer(), qk=False, ov=True), ov=True), ValueError, "ov already",
    ),
    "no layer": (lambda: aj.merge({"a": layer()}), ValueError, "one attention layer.*aj.convert"),
    "no mapping": (lambda: aj.merge([1]), ValueError, "list"),
    "no value": (lambda: aj.merge(without(layer(), "value")), ValueError, "value and out"),
    "unknown group": (
        lambda: aj.merge(layer() | {"sink": {"bias": np.ones(4, "f4")}}), ValueError, "sink",
    ),
    "unknown entry": (
        lambda: aj.merge(layer() | {"key": layer()["key"] | {"scale": np.ones(3, "f4")}}),
        ValueError, "key/scale",
    ),
    "integers": (
        lambda: aj.merge(jax.tree.map(lambda x: x.astype(int), layer())), TypeError, "floating",
    ),
    "lists": (
        lambda: aj.merge(layer() | {"key": {"kernel": [[1.0]]}}), TypeError, "key/kernel",
    ),
    "soft cap": (lambda: aj.merge(layer(), softcap=-1.0), ValueError, "softcap"),
    "heads that do not divide": (
        lambda: aj.merge(layer(heads=4, groups=3)), ValueError, "(key|kv|heads)",
    ),
    "more key heads": (
        lambda: aj.merge(layer(heads=2, groups=4)), ValueError, "(key|kv|heads)",
    ),
    "other key width": (
        lambda: aj.merge(layer() | {"key": layer(width=1)["key"]}), ValueError, "key",
    ),
    "other value width": (
        lambda: aj.merge(layer() | {"value": layer(width=1)["value"]}, ov=True),
        ValueError, "value",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS.values(), ids=REFUSALS)
def test_refusals(case):
    call, error, match = case
    with pytest.raises(error, match=match):
        call()


def test_c54_what_is_refused_for_queries_and_keys_is_exact_for_values_and_outputs():
    x = np.random.default_rng(0).normal(size=(2, 5, 7)).astype("f4")
    params = layer(e=7, out=7) | NORMS
    settings = {"num_heads": 4, "head_dim": 3, "num_kv_heads": 2, "normalize_qk": True}
    settings["position"] = aj.Rotary(fraction=2 / 3)
    merged = aj.merge(params, qk=False, ov=True, position=settings["position"])
    one = aj.SeparateAttention(**settings).apply({"params": params}, x)
    other = aj.SeparateAttention(**settings, ov="merged").apply({"params": merged}, x)
    np.testing.assert_allclose(other, one, atol=2e-5)


def test_c54_refused_at_construction():
    with pytest.raises(NotImplementedError, match="position: .*Rotary"):
        aj.MergedAttention(2, position=aj.Rotary())
    with pytest.raises(NotImplementedError, match="normalize_qk"):
        aj.MergedAttention(2, normalize_qk=True)
    aj.SeparateAttention(2, position=aj.Rotary(), normalize_qk=True, ov="merged")


def test_heads_of_the_two_halves_must_agree():
    merged = aj.merge(layer(), ov=True)
    merged["ov"] = {"kernel": merged["ov"]["kernel"][:2]}
    with pytest.raises(ValueError, match="equally many query heads"):
        aj.circuits.qk(merged)
    with pytest.raises(ValueError, match="params qk/bias: expected shape"):
        aj.factor(
            {
                **aj.merge(layer()),
                "qk": {"kernel": np.ones((7, 4, 5), "f4"), "bias": np.ones((4, 4), "f4")},
            },
            head_dim=3,
        )


@pytest.mark.parametrize("position", [aj.Rotary, "rotary", 3])
def test_what_is_no_position_is_refused(position):
    with pytest.raises(TypeError, match="position: expected a position encoding or None"):
        aj.merge(layer(), position=position)


@pytest.mark.parametrize("name", ["qk", "ov"])
def test_c47_strings_are_no_booleans(name):
    with pytest.raises(TypeError, match=f"{name}: expected True or False, got 'False'"):
        aj.merge(layer(), **{name: "False"})
