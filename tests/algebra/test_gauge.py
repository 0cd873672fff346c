"""Gauges of separate layers: the same function from other factors."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attention_jax as aj
from attention_jax.testing import reference
from tests.algebra.layers import layer, ov_matrices, qk_matrices

RNG = np.random.default_rng(5)
X, Y = RNG.normal(size=(2, 6, 7)), RNG.normal(size=(2, 9, 5))
ROTARIES = {
    "half": aj.Rotary(theta=50.0),
    "interleaved": aj.Rotary(theta=50.0, style="interleaved"),
    "half of half": aj.Rotary(theta=50.0, fraction=0.5),
    "interleaved of half": aj.Rotary(theta=50.0, style="interleaved", fraction=0.5),
}
NAMES = ("query", "key", "value", "out")
BALANCE, CANONICAL = jax.jit(aj.gauge.balance), jax.jit(aj.gauge.canonical)


def wide_layer(**settings):
    return layer(dtype=np.float64, **settings)


def judged(params, width=3, softcap=None):
    """The layer's output by the reference, a soft cap making it see all terms of the scores."""
    return reference.layer(params, X, Y, Y, width, softcap=softcap)[0]


def row(params, name):
    """The kernel of all heads `[heads, rows, width]` with its bias as one more row, by NumPy."""
    kernel = np.asarray(params[name]["kernel"])
    if name == "out":
        return kernel.swapaxes(1, 2)
    bias = np.asarray(params[name].get("bias", np.zeros(kernel.shape[1:])))
    return np.concatenate([kernel, bias[None]]).swapaxes(0, 1)


def squares(params, groups):
    """`W^T W` of all four factors, summed over the query heads of a group."""
    found = {}
    for name in NAMES:
        factor = row(params, name)
        gram = np.einsum("hmk,hmr->hkr", factor, factor)
        found[name] = gram.reshape(groups, -1, *gram.shape[1:]).sum(1)
    return found


def distance(one, other):
    return max(
        np.abs(np.asarray(a) - np.asarray(b)).max()
        for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    )


@functools.partial(jax.jit, static_argnames="width")
def everything(params, key, width=3):
    moved = aj.gauge.random(params, key)
    canonical = aj.gauge.canonical(params)
    balanced = aj.gauge.balance(params)
    made = aj.factor(aj.merge(params, ov=True, softcap=1.0), head_dim=width,
                     num_kv_heads=params["key"]["kernel"].shape[1])  # fmt: skip
    return {
        "random": moved,
        "canonical": canonical,
        "canonical of random": aj.gauge.canonical(moved),
        "balanced": balanced,
        "balanced twice": aj.gauge.balance(balanced),
        "canonical of balanced": aj.gauge.canonical(balanced),
        "factored": made[0],
    }


SIZES = {
    "one group": {"groups": 1},
    "no sharing, no biases": {"groups": 4, "bias": False},
    # The stack of a group's heads has a greater rank than each head can have.
    "heads wider than inputs": {"groups": 2, "d": 7, "width": 11, "out": 3},
}


@pytest.mark.parametrize("name", SIZES)
def test_gauges_keep_the_function_and_have_one_canonical_form(name):
    groups, width = SIZES[name]["groups"], SIZES[name].get("width", 3)
    params = wide_layer(**SIZES[name])
    with jax.enable_x64(True):
        found = jax.tree.map(np.asarray, everything(params, jax.random.key(3), width))
    factored = found.pop("factored")
    for kind, changed in found.items():
        assert jax.tree.map(np.shape, changed) == jax.tree.map(np.shape, params)
        assert distance(changed, params) > 0.1
        for softcap in (None, 1.0):
            np.testing.assert_allclose(
                judged(changed, width, softcap), judged(params, width, softcap), atol=1e-10,
                err_msg=kind,
            )  # fmt: skip
        gram = squares(changed, groups)
        for one, other in (("query", "key"), ("value", "out")):
            if kind == "random":
                assert np.abs(gram[one] - gram[other]).max() > 0.1
            else:
                np.testing.assert_allclose(gram[one], gram[other], atol=1e-10, err_msg=kind)
    for kind in ("canonical of random", "canonical of balanced"):
        assert distance(found[kind], found["canonical"]) < 1e-10
    assert distance(found["balanced twice"], found["balanced"]) < 1e-10
    if "bias" not in SIZES[name]:
        assert distance(factored, found["canonical"]) < 1e-10
    values = np.linalg.eigvalsh(squares(found["canonical"], groups)["key"])[:, ::-1]
    np.testing.assert_allclose(
        squares(found["canonical"], groups)["query"], values[:, None] * np.eye(width), atol=1e-10
    )
    assert np.ptp(values, axis=-1).min() > 0.1
    stack = row(found["canonical"], "query").reshape(groups, -1, width)
    largest = np.take_along_axis(stack, np.abs(stack).argmax(1)[:, None], 1)
    assert np.all(largest >= 0)


def test_balance_is_nearer_than_any_other_balanced_layer():
    params = wide_layer()
    turns = np.linalg.qr(np.random.default_rng(0).normal(size=(8, 2, 3, 3)))[0]
    skew = 1e-3 * (turns - turns.swapaxes(-1, -2))
    near = np.linalg.solve(np.eye(3) - skew, np.eye(3) + skew)
    turns = np.concatenate([turns, near])
    with jax.enable_x64(True):
        nearest = jax.jit(aj.gauge.balance)(params)
        change = jax.jit(
            lambda turns: jax.lax.map(lambda a: aj.gauge.change(nearest, qk=a, ov=a), turns)
        )
        others = jax.tree.map(np.asarray, change(turns))

    def apart(other):
        return sum(np.sum((row(other, name) - row(params, name)) ** 2) for name in NAMES)

    for i in range(len(turns)):
        other = jax.tree.map(lambda leaf, i=i: leaf[i], others)
        gram = squares(other, 2)
        np.testing.assert_allclose(gram["query"], gram["key"], atol=1e-10)
        assert apart(other) > apart(nearest) + 1e-8


def test_a_change_of_gauge_leaves_the_matrices():
    params = layer() | {"value": layer(groups=1)["value"]}
    matrices = np.random.default_rng(0).normal(size=(2, 3, 3)).astype("f4")
    matrices += 2 * np.eye(3, dtype="f4")
    changed = aj.gauge.change(params, qk=matrices, ov=matrices[:1])
    np.testing.assert_allclose(qk_matrices(changed), qk_matrices(params), atol=1e-4)
    np.testing.assert_allclose(ov_matrices(changed), ov_matrices(params), atol=1e-4)
    expected = np.einsum("dhk,hkr->dhr", params["query"]["kernel"], np.repeat(matrices, 2, 0))
    np.testing.assert_allclose(changed["query"]["kernel"], expected, atol=1e-5)
    for name in NAMES:
        assert np.abs(changed[name]["kernel"] - params[name]["kernel"]).max() > 0.1


@pytest.mark.parametrize("name", ["interleaved", "half of half"])
def test_random_gauges_that_commute_with_rotation(name):
    position, other = ROTARIES[name], ROTARIES["half" if "inter" in name else "interleaved"]
    module = aj.SeparateAttention(4, 8, num_kv_heads=2, out_features=6, position=position)

    @jax.jit
    def everything(params, key):
        positions = jnp.array([3, 0, 8, 1, 30, 2])

        def apply(p):
            return module.apply({"params": p}, X, Y, query_positions=positions)

        changed = [aj.gauge.random(params, key, position=p) for p in (position, None, other)]
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), params, *changed)
        return stacked, jax.vmap(apply)(stacked), aj.gauge.draw(key, 3, 8, jnp.float64, position)

    with jax.enable_x64(True):
        params, outputs, drawn = everything(wide_layer(width=8), jax.random.key(0))
        params, outputs = jax.tree.map(np.asarray, (params, outputs))
    np.testing.assert_allclose(outputs[1], outputs[0], atol=1e-10)
    for wrong in outputs[2:]:
        assert np.abs(wrong - outputs[0]).max() > 1e-3
    for name in NAMES:
        assert np.abs(np.diff(params[name]["kernel"][:2], axis=0)).max() > 0.1
    # Nothing that commutes is missing: two numbers a pair, and all of what is not rotated.
    assert np.count_nonzero(drawn[0]) == (16 if position.fraction == 1 else 24)


@pytest.mark.parametrize("position", [None, *ROTARIES.values()], ids=str)
def test_drawn_matrices_are_well_conditioned_and_differ(position):
    keys = jax.random.split(jax.random.key(0), 32)
    drawn = jax.lax.map(lambda key: aj.gauge.draw(key, 2, 8, jnp.float32, position), keys)
    values = np.linalg.svd(drawn, compute_uv=False)
    assert 0.4999 < values.min() < 0.55 and 1.9 < values.max() < 2.0001
    assert len(np.unique(np.asarray(drawn)[:, :, 0, 0])) == 64


def test_a_factor_of_zero():
    for name in ("query", "key"):
        params = layer(bias=False)
        params[name] = {"kernel": np.zeros_like(params[name]["kernel"])}
        for function in (BALANCE, CANONICAL):
            found = function(params)
            assert not np.any(found["query"]["kernel"]) and not np.any(found["key"]["kernel"])
            np.testing.assert_allclose(judged(found), judged(params), atol=1e-5)


def test_narrow_weights_are_computed_wide_and_others_stay():
    narrow = jax.tree.map(lambda x: jnp.asarray(x, jnp.bfloat16), layer())
    wide = jax.tree.map(lambda x: x.astype(jnp.float32), narrow)
    for function in (aj.gauge.balance, aj.gauge.canonical):
        found = jax.jit(functools.partial(function, ov=False))(narrow)
        assert {leaf.dtype for leaf in jax.tree.leaves(found)} == {np.dtype("float32")}
        np.testing.assert_allclose(judged(found), judged(wide), atol=1e-4)
        assert distance(found["out"], wide["out"]) == distance(found["value"], wide["value"]) == 0
        assert distance(found["query"], wide["query"]) > 0.1
    bad = layer(bias=False)
    bad["query"]["kernel"][0, 0, 0] = np.nan
    assert np.isnan(BALANCE(bad)["key"]["kernel"][:, 0]).all()


NORMS = {name: {"scale": np.ones(3, "f4")} for name in ("query_ln", "key_ln")}
HALF = aj.merge(layer(), qk=False, ov=True)
CALLS = {
    "balance": aj.gauge.balance,
    "canonical": aj.gauge.canonical,
    "random": lambda params, **settings: aj.gauge.random(params, jax.random.key(0), **settings),
}
REFUSALS = {
    "no layer": ({"a": layer()}, {}, ValueError, "one attention layer"),
    "nothing": (layer(), {"qk": False, "ov": False}, ValueError, "qk, ov"),
    "merged": (aj.merge(layer()), {}, ValueError, "params: expected query and key.*qk, already"),
    "merged values": (HALF, {}, ValueError, "params: expected value and out.*ov, already"),
    "QK-norm": (layer() | NORMS, {}, NotImplementedError, "QK-norm.*qk=False"),
    "strings": (layer(), {"qk": "False"}, TypeError, "qk: expected True or False"),
    "no position": (layer(), {"position": "rotary"}, TypeError, "position"),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_refusals(call):
    for params, settings, error, match in REFUSALS.values():
        with pytest.raises(error, match=match):
            call(params, **settings)
    for params, settings in ((layer() | NORMS, {"qk": False}), (HALF, {"ov": False})):
        assert call(params, **settings).keys() == params.keys()


def test_refusals_of_single_functions():
    for function in (aj.gauge.balance, aj.gauge.canonical):
        with pytest.raises(NotImplementedError, match="Rotary.*qk=False"):
            function(layer(width=4), position=aj.Rotary())
        with pytest.raises(NotImplementedError, match="gauge: expected no differentiation"):
            jax.grad(lambda p, f=function: f(p)["query"]["kernel"].sum())(layer())
    with pytest.raises(ValueError, match="head_dim"):
        aj.gauge.random(layer(), jax.random.key(0), position=aj.Rotary())
    for matrices, error, match in (
        ({"qk": jnp.ones((4, 3, 3))}, ValueError, r"qk: expected .*\(2, 3, 3\), got .*\(4, 3, 3\)"),
        ({"ov": jnp.ones((2, 3, 3), int)}, TypeError, "ov: expected a floating dtype"),
    ):
        with pytest.raises(error, match=match):
            aj.gauge.change(layer(), **matrices)
    with pytest.raises(ValueError, match="query and key"):
        aj.gauge.change(aj.merge(layer()), qk=jnp.ones((2, 3, 3)))


def test_a_whole_model_is_converted():
    params = {"first": layer(), "second": {"attention": layer(seed=1)}}
    found = aj.convert(params, CANONICAL)
    assert distance(found["second"]["attention"], CANONICAL(layer(seed=1))) == 0
    assert distance(found["first"], layer()) > 0.1
