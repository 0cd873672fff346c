"""The NNX modules have the numbers, the outputs and the refusals of the linen ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import attention_jax as aj
from tests.paths import k_fill, q_fill, v_fill, variables_of

X, Y, Z = q_fill(2, 5, 8), k_fill(2, 3, 6), v_fill(2, 3, 7)
MASK = np.arange(5) <= np.arange(5)[:, None] + (np.arange(2) == 1)[:, None, None]
POSITIONS = np.array([0, 3, 1, 2, 7])
ALL = (aj.SeparateAttention, aj.MergedAttention)
TWINS = {
    aj.SeparateAttention: aj.nnx.SeparateAttention,
    aj.MergedAttention: aj.nnx.MergedAttention,
    aj.RawAttention: aj.nnx.RawAttention,
}
# Classes, settings, inputs and arguments of the call.
CASES = {
    "plain": (ALL, {}, (X,), {}),
    "mask object": (ALL, {"use_bias": False}, (X,), {"mask": aj.causal()}),
    "mask array and bias": (ALL, {}, (X,), {"mask": MASK[:, None], "bias": q_fill(2, 2, 5, 5)}),
    "soft cap": (ALL, {"softcap": 1.5, "precision": "highest"}, (X, Y), {}),
    "grouped": (ALL, {"num_kv_heads": 1, "head_dim": 3, "out_features": 9}, (X,), {}),
    "alibi": (ALL, {"position": aj.ALiBi(2)}, (X,), {"key_positions": POSITIONS}),
    "values": (ALL, {"ov": "merged", "scale": 0.3}, (X, Y, Z), {}),
    "16 bits": (ALL, {"dtype": jnp.bfloat16, "param_dtype": jnp.float16}, (X,), {}),
    "dropout": (ALL, {"dropout_rate": 0.5}, (X,), {"deterministic": False}),
    "rotary": (ALL[:1], {"position": aj.Rotary()}, (X,), {"query_positions": POSITIONS}),
    "norm": (ALL[:1], {"normalize_qk": True, "qkv_features": 12}, (X,), {}),
    "raw": ((aj.RawAttention,), {"scale": 0.5, "softcap": 2.0}, (X,), {"mask": aj.causal()}),
}


def cases():
    for name, (classes, settings, *rest) in CASES.items():
        for cls in classes:
            heads = {} if cls is aj.RawAttention else {"num_heads": 2}
            yield pytest.param(cls, {**heads, **settings}, *rest, id=f"{name}-{cls.__name__}")


def pure(module):
    return nnx.to_pure_dict(nnx.state(module, nnx.Param))


@pytest.mark.parametrize("cls,settings,inputs,call", list(cases()))
def test_equal_outputs_and_weights(request, cls, settings, inputs, call):
    module = cls(**settings)
    # Biases and row terms start at zero, where they would not be seen.
    variables = variables_of(module, *inputs)
    twin = aj.nnx.from_linen(module, variables.get("params", {}))
    assert type(twin) is TWINS[cls]
    drops = settings.get("dropout_rate", 0.0) > 0
    key = jax.random.key(5)

    def both(twin, variables, inputs):
        keys = ({"dropout_rng": key}, {"rngs": key}) if drops else ({}, {})
        linen, sown = module.apply(
            variables, *inputs, **call, **keys[0], sow_weights=True, mutable=["intermediates"]
        )
        forward = nnx.capture(twin, nnx.Intermediate)
        output, state = forward(*inputs, **call, **keys[1], sow_weights=True)
        weights = nnx.to_pure_dict(state)["attention_weights"]
        return (linen, sown["intermediates"]["attention_weights"]), (output, weights)

    eager = "plain" in request.node.name
    for run in (nnx.jit(both), both) if eager else (nnx.jit(both),):
        linen, ours = run(twin, variables, inputs)
        jax.tree.map(np.testing.assert_array_equal, ours, linen)
        assert ours[0].dtype == linen[0].dtype
    if eager:
        other = jax.tree.map(lambda x: x + 0.1, variables)
        assert np.abs(both(twin, other, inputs)[0][0] - ours[0]).max() > 0.01


@pytest.mark.parametrize(
    "cls,settings,inputs",
    [
        (aj.SeparateAttention, {"normalize_qk": True}, (X, Y, Z)),
        (aj.MergedAttention, {"softcap": 2.0, "ov": "merged", "num_kv_heads": 1}, (X, Y, Z)),
    ],
)
def test_equal_initial_numbers(cls, settings, inputs):
    names = ("in_features", "in_kv_features", "in_v_features")
    widths = {name: x.shape[-1] for name, x in zip(names, inputs, strict=True)}
    init = cls(2, **settings).init

    @jax.jit
    def numbers():
        twin = TWINS[cls](2, **widths, **settings, rngs=nnx.Rngs(3))
        keys = [nnx.Rngs(seed).params() for seed in (3, 4)]
        return pure(twin), *(init(key, *inputs)["params"] for key in keys)

    got, expected, others = numbers()
    jax.tree.map(np.testing.assert_array_equal, got, expected)
    for group, entries in others.items():
        if "kernel" in entries:
            assert np.abs(entries["kernel"] - expected[group]["kernel"]).max() > 0.01


class TestDropout:
    def module(self, cls=aj.nnx.SeparateAttention, **settings):
        return cls(2, 8, dropout_rate=0.5, rngs=nnx.Rngs(0), **settings)

    def test_a_key_or_a_stream_for_the_call_or_the_modules_own(self):
        module = self.module(deterministic=False)
        streams = nnx.Rngs(dropout=4)
        one = module(X, rngs=nnx.Rngs(dropout=4).dropout())
        np.testing.assert_array_equal(module(X, rngs=nnx.Rngs(dropout=4)), one)
        np.testing.assert_array_equal(module(X, rngs=streams.dropout), one)
        assert streams.dropout.count[...] == 1 and module.rngs.count[...] == 0
        own = module(X)
        assert module.rngs.count[...] == 1
        assert np.abs(own - one).max() > 0.01 and np.abs(own - module(X)).max() > 0.01

    def test_evaluation_draws_no_key(self):
        module = self.module()
        quiet = aj.nnx.from_linen(aj.SeparateAttention(2), pure(module))(X)
        np.testing.assert_array_equal(module(X, deterministic=True), quiet)
        assert module.rngs.count[...] == 0
        assert np.abs(module(X, deterministic=False) - quiet).max() > 0.01

    def test_train_eval_and_view_set_the_flag_and_the_call_beats_it(self):
        module = self.module()
        with pytest.raises(ValueError, match="deterministic: .*dropout_rate=0.5"):
            module(X)
        quiet = module(X, deterministic=True)
        module.train()
        assert np.abs(module(X) - quiet).max() > 0.01
        np.testing.assert_array_equal(module(X, deterministic=True), quiet)
        np.testing.assert_array_equal(nnx.view(module, deterministic=True)(X), quiet)
        module.eval()
        np.testing.assert_array_equal(module(X), quiet)

    def test_without_a_stream_each_call_needs_one(self):
        module = self.module(keep_rngs=False, deterministic=False)
        assert module.rngs is None and len(jax.tree.leaves(nnx.state(module))) == 8
        with pytest.raises(ValueError, match="rngs: .*dropout_rate=0.5.*nnx.Rngs"):
            module(X)
        module(X, rngs=jax.random.key_data(jax.random.key(1)))
        raw = aj.nnx.RawAttention(dropout_rate=0.5, deterministic=False, rngs=nnx.Rngs(0))
        assert np.abs(raw(X) - raw(X)).max() > 0.01


def test_weights_are_stored_without_capture_as_flax_stores_them():
    module = aj.nnx.SeparateAttention(2, 8, rngs=nnx.Rngs(0))
    plain = module(X)
    assert not nnx.state(module, nnx.Intermediate)
    with pytest.warns(DeprecationWarning, match="sow"):
        module(X, sow_weights=True)
    np.testing.assert_array_equal(module(X), plain)
    (weights,) = nnx.pop(module, nnx.Intermediate)["attention_weights"].get_value()
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-6)


def test_learned_positions():
    twin = aj.nnx.LearnedPositions(7, 8, rngs=nnx.Rngs(3))
    module = aj.LearnedPositions(7)
    variables = module.init(nnx.Rngs(3).params(), X)
    np.testing.assert_array_equal(twin.embedding[...], variables["params"]["embedding"])
    for call in ({}, {"positions": POSITIONS % 7}):
        np.testing.assert_array_equal(twin(X, **call), module.apply(variables, X, **call))
    assert np.abs(twin(X) - X).max() > 1e-3
    with pytest.raises(ValueError, match="x: expected at most capacity=7"):
        twin(q_fill(2, 8, 8))


class Gated(aj.nnx.SeparateAttention):
    def __init__(self, *args, **settings):
        super().__init__(*args, **settings)
        self.gate = nnx.Param(jnp.full((), 0.5))

    def __call__(self, x):
        return self.gate * super().__call__(x)


def test_a_subclass_may_have_parameters_of_its_own():
    gated = Gated(2, 8, rngs=nnx.Rngs(0))
    plain = aj.nnx.SeparateAttention(2, 8, rngs=nnx.Rngs(0))
    np.testing.assert_array_equal(gated(X), 0.5 * plain(X))
    with pytest.raises(ValueError, match=r"params gate: expected nothing .* got \(\)"):
        aj.nnx.to_linen(gated)


def call_with(change, *inputs):
    def call():
        module = aj.nnx.MergedAttention(2, 8, in_kv_features=6, rngs=nnx.Rngs(0))
        change(module)
        module(*(inputs or (X, Y)))

    return call


def set_kernel(module):
    module.qk.kernel = nnx.Param(jnp.ones((8, 2, 7)))


def add_entry(module):
    module.value.scale = nnx.Param(jnp.ones(4))


def made(*args, cls=aj.nnx.SeparateAttention, **settings):
    return lambda: cls(*args, **{"rngs": nnx.Rngs(0), **settings})


REFUSED = {
    "unknown setting": (made(2, 8, attention_fn=None), TypeError, "attention_fn"),
    "raw width": (made(8, cls=aj.nnx.RawAttention), TypeError, "positional"),
    "width 0": (made(2, 0), ValueError, "in_features: expected at least 1"),
    "width kind": (made(2, 8, in_v_features=2.0), TypeError, "in_v_features: .*integer"),
    "heads": (made(3, 8), ValueError, "width of inputs_q: .*num_heads=3"),
    "rotary": (
        made(2, 8, cls=aj.nnx.MergedAttention, position=aj.Rotary()),
        NotImplementedError,
        "position: .*rotary",
    ),
    "a key": (made(2, 8, rngs=jax.random.key(0)), TypeError, r"rngs: .*nnx.Rngs\(0\)"),
    "inputs": (call_with(id, X), ValueError, r"params qk/kernel: .*\(8, 2, 8\).*\(8, 2, 6\)"),
    "shape": (call_with(set_kernel), ValueError, r"params qk/kernel: .*\(8, 2, 6\).*\(8, 2, 7\)"),
    "missing": (call_with(lambda m: delattr(m.out, "bias")), ValueError, "params out: .*kernel"),
    "no group": (call_with(lambda m: delattr(m, "qk")), ValueError, "params qk: .*nothing"),
    "too many": (call_with(add_entry), ValueError, "params value: .*also scale"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    call, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        call()


def test_the_calls_of_the_refusals_work_otherwise():
    call_with(id)()
