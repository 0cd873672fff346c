"""Parameters travel between linen, NNX and Flax's own modules without a change."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx
from flax.nnx import bridge

import attention_jax as aj
from tests.paths import k_fill, q_fill, variables_of

X, Y = q_fill(2, 5, 8), k_fill(2, 3, 6)


def pure(module):
    return nnx.to_pure_dict(nnx.state(module, nnx.Param))


@nnx.jit
def call(module, *inputs, **arguments):
    return module(*inputs, **arguments)


MODULES = {
    "separate": (aj.SeparateAttention(2, softcap=2.0, normalize_qk=True, name="layer"), (X, Y)),
    "merged": (aj.MergedAttention(2, 3, ov="merged", softcap=2.0, deterministic=True), (X, Y)),
    "raw": (aj.RawAttention(scale=0.5), (X,)),
    "positions": (aj.LearnedPositions(9), (X,)),
}


@pytest.mark.parametrize("name", MODULES)
def test_there_and_back(name):
    module, inputs = MODULES[name]
    variables = variables_of(module, *inputs)
    params = variables.get("params", {})
    twin = aj.nnx.from_linen(module, nn.FrozenDict(params))
    assert type(twin).__name__ == type(module).__name__
    expected = jax.jit(module.apply)(variables, *inputs)
    np.testing.assert_array_equal(call(twin, *inputs), expected)
    back, tree = aj.nnx.to_linen(twin)
    assert back == module
    assert jax.tree.structure(tree) == jax.tree.structure(dict(params))
    jax.tree.map(np.testing.assert_array_equal, tree, dict(params))
    if name != "positions":
        twin.train()
        assert aj.nnx.to_linen(twin)[0].deterministic is False


def test_a_module_from_linen_takes_a_stream():
    module = aj.SeparateAttention(2, dropout_rate=0.5, deterministic=False)
    params = variables_of(module, X, deterministic=True)["params"]
    one, other = (aj.nnx.from_linen(module, params, rngs=nnx.Rngs(seed)) for seed in (1, 1))
    np.testing.assert_array_equal(one(X), other(X))
    assert np.abs(one(X) - one(X)).max() > 0.01
    assert aj.nnx.from_linen(module, params).rngs is None


PARAMS = variables_of(aj.SeparateAttention(2), X, Y)["params"]
QUERY = PARAMS["query"]
WRONG = {
    "all variables": ({"params": PARAMS}, "params: expected query/kernel or qk/kernel"),
    "nothing": ({}, "params: .*got nothing"),
    "missing": ({**PARAMS, "out": {"kernel": PARAMS["out"]["kernel"]}}, "params out/bias: "),
    "group": ({k: v for k, v in PARAMS.items() if k != "out"}, "params out/bias: .*nothing"),
    "too many": ({**PARAMS, "gate": {"bias": X}}, r"params gate/bias: expected nothing.*\(2, 5"),
    "shape": (
        {**PARAMS, "query": {**QUERY, "bias": jnp.ones(3)}},
        r"params query/bias: expected \(2, 4\).*\(3,\)",
    ),
    "no array": ({**PARAMS, "query": {**QUERY, "bias": [1.0]}}, "params query/bias: .*list"),
    "other form": (aj.merge(PARAMS), "params key/bias: |params qk/"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_trees_are_refused_by_path(name):
    tree, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        aj.nnx.from_linen(aj.SeparateAttention(2), tree)


def test_other_modules_are_refused():
    with pytest.raises(TypeError, match="module: .*got Dense.*ToNNX"):
        aj.nnx.from_linen(nn.Dense(3), {})
    with pytest.raises(TypeError, match="module: .*got Linear.*to_linen"):
        aj.nnx.to_linen(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
    twin = aj.nnx.from_linen(aj.SeparateAttention(2), PARAMS)
    twin.query.bias = nnx.Param(jnp.ones(3))
    with pytest.raises(ValueError, match=r"params query/bias: expected \(2, 4\)"):
        aj.nnx.to_linen(twin)


class Model(nnx.Module):
    """A user's model, with a layer class to choose."""

    def __init__(self, attention_cls, rngs):
        self.embed = nnx.Linear(8, 8, rngs=rngs)
        self.layers = nnx.List([attention_cls(2, 8, rngs=rngs) for _ in range(2)])

    def __call__(self, x):
        x = self.embed(x)
        for layer in self.layers:
            x = x + layer(x, mask=aj.causal())
        return x


def test_a_whole_model_is_converted_by_its_state():
    classes = (aj.nnx.SeparateAttention, aj.nnx.MergedAttention)
    separate, merged = nnx.jit(lambda: tuple(Model(cls, nnx.Rngs(0)) for cls in classes))()
    expected = call(separate, X)
    assert np.abs(call(merged, X) - expected).max() > 0.1
    state = nnx.state(merged, nnx.Param)
    nnx.replace_by_pure_dict(state, aj.convert(pure(separate), aj.merge))
    nnx.update(merged, state)
    np.testing.assert_allclose(call(merged, X), expected, atol=2e-5)


def test_one_layer_is_merged_by_its_state():
    layer = aj.nnx.from_linen(aj.SeparateAttention(2, softcap=2.0), PARAMS)
    params = aj.merge(pure(layer), ov=True, softcap=2.0)
    merged = aj.nnx.from_linen(aj.MergedAttention(2, ov="merged", softcap=2.0), params)
    np.testing.assert_allclose(call(merged, X, Y), call(layer, X, Y), atol=2e-5)


SETTINGS = {
    "norm": {"normalize_qk": True, "qkv_features": 12, "out_features": 7, "num_kv_heads": 1},
    "no bias": {"use_bias": False, "in_kv_features": 6},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_states_of_flax_load_unchanged(name):
    settings = SETTINGS[name]
    normal = nnx.initializers.normal(0.3)

    @nnx.jit
    def create():
        theirs = nnx.MultiHeadAttention(
            2, 8, **settings, bias_init=normal, decode=False, rngs=nnx.Rngs(0)
        )
        return theirs, aj.nnx.SeparateAttention(2, 8, **settings, rngs=nnx.Rngs(1))

    theirs, ours = create()
    inputs = (X, Y) if "in_kv_features" in settings else (X,)
    mask = np.tril(np.ones((5, 3 if len(inputs) > 1 else 5), bool), 1)[None, None]
    expected = call(theirs, *inputs, mask=mask)
    assert np.abs(call(ours, *inputs, mask=mask) - expected).max() > 0.01
    state = nnx.state(ours)
    assert jax.tree.structure(nnx.to_pure_dict(state)) == jax.tree.structure(pure(theirs))
    nnx.replace_by_pure_dict(state, pure(theirs))
    nnx.update(ours, state)
    np.testing.assert_allclose(call(ours, *inputs, mask=mask), expected, atol=1e-6)


@pytest.mark.parametrize("cls", [aj.SeparateAttention, aj.MergedAttention])
def test_flax_wraps_the_linen_modules(cls):
    module = cls(2, dropout_rate=0.5)
    wrapped = bridge.ToNNX(module, rngs=nnx.Rngs(0))
    bridge.lazy_init(wrapped, X)
    params = pure(wrapped)
    assert jax.tree.structure(params) == jax.tree.structure(variables_of(module, X)["params"])
    for call in (
        {"deterministic": True},
        {"deterministic": False, "dropout_rng": jax.random.key(1)},
    ):
        expected = module.apply({"params": params}, X, **call)
        np.testing.assert_array_equal(wrapped(X, **call), expected)
    keyed = wrapped(X, deterministic=False, rngs=nnx.Rngs(dropout=1))
    assert np.abs(keyed - wrapped(X, deterministic=True)).max() > 0.01


@pytest.mark.parametrize("cls", [aj.nnx.SeparateAttention, aj.nnx.MergedAttention])
def test_flax_wraps_the_nnx_modules(cls):
    wrapped = bridge.to_linen(cls, 2, 8, dropout_rate=0.5, softcap=2.0)
    module = cls.linen_class(2, dropout_rate=0.5, softcap=2.0)
    rngs = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
    variables = wrapped.init(rngs, X, deterministic=True)
    assert jax.tree.structure(nn.unbox(variables)) == jax.tree.structure(variables_of(module, X))
    quiet = wrapped.apply(variables, X, deterministic=True)
    np.testing.assert_array_equal(quiet, module.apply(nn.unbox(variables), X, deterministic=True))
    keyed = wrapped.apply(variables, X, deterministic=False, rngs={"dropout": jax.random.key(1)})
    assert np.abs(keyed - quiet).max() > 0.01
