"""`SeparateAttention` stands where `flax.linen.MultiHeadDotProductAttention` stands."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import serialization

import attention_jax as aj
from tests.paths import k_fill, q_fill, variables_of

X, Y = q_fill(2, 5, 8), k_fill(2, 3, 6)
normal = nn.initializers.normal(0.3)
SETTINGS = {
    "plain": {},
    "norm": {"normalize_qk": True},
    "widths": {"qkv_features": 12, "out_features": 7},
    "no bias": {"use_bias": False},
    "inits": {
        "kernel_init": nn.initializers.xavier_uniform(),
        "out_kernel_init": normal,
        "bias_init": nn.initializers.uniform(1.0),
        "out_bias_init": normal,
    },
    "bfloat16": {"param_dtype": jnp.bfloat16, "bias_init": normal},
}


def inputs(cross):
    return (X, Y) if cross else (X,)


@pytest.mark.parametrize(
    "settings,cross",
    [(SETTINGS[name], name in ("norm", "inits")) for name in SETTINGS] + [({}, True)],
    ids=[*SETTINGS, "cross"],
)
def test_identical_trees_numbers_and_outputs(settings, cross):
    theirs = nn.MultiHeadDotProductAttention(num_heads=2, **settings)
    ours = aj.SeparateAttention(num_heads=2, **settings)
    key = jax.random.key(7)
    expected = jax.jit(theirs.init)(key, *inputs(cross))
    got = jax.jit(ours.init)(key, *inputs(cross))
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    assert [x.dtype for x in jax.tree.leaves(got)] == [x.dtype for x in jax.tree.leaves(expected)]
    jax.tree.map(np.testing.assert_array_equal, got, expected)
    trained = jax.tree.map(lambda x: x + 0.1 * jnp.cos(jnp.arange(x.size)).reshape(x.shape), got)
    trained = jax.tree.map(lambda x, y: x.astype(y.dtype), trained, got)
    loaded = serialization.from_bytes(got, serialization.to_bytes(trained))
    one = jax.jit(theirs.apply)(trained, *inputs(cross))
    other = jax.jit(ours.apply)(loaded, *inputs(cross))
    assert one.dtype == other.dtype and one.shape == other.shape
    np.testing.assert_allclose(other, one, atol=1e-6, rtol=0)


@pytest.mark.parametrize("mask", ["causal", "padding", "both"])
def test_masks_and_sown_weights_agree(mask):
    lengths = np.array([5, 2])
    triangle = nn.make_causal_mask(X[..., 0], dtype=bool)
    pads = nn.make_attention_mask(jnp.ones((2, 5)), np.arange(5) < lengths[:, None], dtype=bool)
    theirs = nn.MultiHeadDotProductAttention(num_heads=2)
    ours = aj.SeparateAttention(num_heads=2)
    variables = variables_of(theirs, X)
    arrays = {"causal": triangle, "padding": pads, "both": triangle & pads}
    objects = {"causal": aj.causal(), "padding": aj.padding(lengths)}
    objects["both"] = objects["causal"] & objects["padding"]
    results = [
        jax.jit(lambda m, module=module: module.apply(
            variables, X, mask=m, sow_weights=True, mutable=["intermediates"]
        ))(m)
        for module, m in ((theirs, arrays[mask]), (ours, arrays[mask]), (ours, objects[mask]))
    ]  # fmt: skip
    assert jax.tree.structure(results[0]) == jax.tree.structure(results[1])
    for result in results[1:]:
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), result, results[0])
    assert np.abs(results[0][0] - theirs.apply(variables, X)).max() > 1e-3


class Block(nn.Module):
    """A user's block that takes the class of its attention."""

    attention_cls: Callable

    @nn.compact
    def __call__(self, x, mask=None, deterministic=None):
        attention = self.attention_cls(
            num_heads=2, dtype=x.dtype, qkv_features=8, dropout_rate=0.5, name="attention"
        )
        x = x + attention(nn.LayerNorm()(x), mask=mask, deterministic=deterministic)
        return x + nn.Dense(x.shape[-1])(nn.gelu(nn.Dense(16)(nn.LayerNorm()(x))))


CLASSES = {
    "theirs": nn.MultiHeadDotProductAttention,
    "separate": aj.SeparateAttention,
    "merged": aj.MergedAttention,
}


def test_a_users_block_takes_either_class():
    mask = nn.make_causal_mask(X[..., 0], dtype=bool)
    models = {name: Block(cls) for name, cls in CLASSES.items()}
    variables = variables_of(models["theirs"], X, deterministic=True)
    merged = {"params": aj.convert(variables["params"], aj.merge)}
    expected = models["theirs"].apply(variables, X, mask, deterministic=True)
    for name, given in (("separate", variables), ("merged", merged)):
        output = models[name].apply(given, X, mask, deterministic=True)
        np.testing.assert_allclose(output, expected, atol=2e-5)
        keyed = models[name].apply(
            given, X, mask, deterministic=False, rngs={"dropout": jax.random.key(0)}
        )
        assert np.abs(keyed - expected).max() > 0.01


@pytest.mark.parametrize("cls", [aj.SeparateAttention, aj.MergedAttention])
@pytest.mark.parametrize("wrap", [nn.remat, nn.jit, lambda cls: cls])
def test_lifted_transformations_change_nothing(cls, wrap):
    class Model(nn.Module):
        wrapped: bool

        @nn.compact
        def __call__(self, x, mask):
            return (wrap(cls) if self.wrapped else cls)(num_heads=2, name="a")(x, mask=mask)

    mask = aj.causal() & aj.padding(np.array([5, 3]))
    variables = variables_of(Model(False), X, mask)

    def loss(variables, wrapped):
        return jnp.sum(jnp.sin(Model(wrapped).apply(variables, X, mask)))

    plain, lifted = (
        jax.jit(jax.value_and_grad(loss), static_argnums=1)(variables, w) for w in (False, True)
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), plain, lifted)


@pytest.mark.parametrize("cls", [aj.SeparateAttention, aj.MergedAttention])
def test_scanned_layers_equal_a_loop(cls):
    class Scanned(nn.Module):
        @nn.compact
        def __call__(self, x):
            def body(layer, carry, _):
                return carry + layer(carry, mask=aj.causal()), None

            scan = nn.scan(body, variable_axes={"params": 0}, split_rngs={"params": True}, length=3)
            return scan(cls(num_heads=2), x, None)[0]

    variables = variables_of(Scanned(), X)
    (stacked,) = variables["params"].values()
    for leaf in jax.tree.leaves(stacked):
        assert leaf.shape[0] == 3
    first = jax.tree.leaves(stacked)[-1]
    assert np.any(first[0] != first[1])
    x = X
    for i in range(3):
        layer = {"params": jax.tree.map(lambda leaf, i=i: leaf[i], stacked)}
        x = x + cls(num_heads=2).apply(layer, x, mask=aj.causal())
    np.testing.assert_allclose(jax.jit(Scanned().apply)(variables, X), x, atol=1e-5)


@pytest.mark.parametrize("cls", [aj.SeparateAttention, aj.MergedAttention])
def test_vmap_over_examples_equals_the_batch(cls):
    module = cls(num_heads=2)
    variables = variables_of(module, X)
    mapped = jax.jit(jax.vmap(lambda x: module.apply(variables, x, mask=aj.causal())))(X)
    np.testing.assert_allclose(mapped, module.apply(variables, X, mask=aj.causal()), atol=1e-6)


@pytest.mark.parametrize("cls", [aj.SeparateAttention, aj.MergedAttention])
@pytest.mark.parametrize("ov", ["separate", "merged"])
def test_dtypes(cls, ov):
    module = cls(num_heads=2, ov=ov, dtype=jnp.bfloat16, param_dtype=jnp.bfloat16)
    variables = module.init(jax.random.key(0), X)
    assert {leaf.dtype for leaf in jax.tree.leaves(variables)} == {jnp.dtype(jnp.bfloat16)}
    assert module.apply(variables, X).dtype == jnp.bfloat16
    wide = cls(num_heads=2, ov=ov, param_dtype=jnp.bfloat16)
    assert wide.apply(variables, X).dtype == jnp.float32
    computing = cls(num_heads=2, ov=ov, dtype=jnp.bfloat16)
    kept = computing.init(jax.random.key(0), X)
    assert {leaf.dtype for leaf in jax.tree.leaves(kept)} == {jnp.dtype(jnp.float32)}


class TestPartitionedKernels:
    init = staticmethod(nn.with_partitioning(nn.initializers.lecun_normal(), (None, "model", None)))

    def test_boxes_have_a_name_for_each_axis(self):
        module = aj.SeparateAttention(2, kernel_init=self.init)
        boxed = module.init(jax.random.key(0), X)
        for name in ("query", "key", "value", "out"):
            box = boxed["params"][name]["kernel"]
            assert box.names == (None, "model", None) and box.value.ndim == 3
        spec = nn.get_partition_spec(boxed)["params"]["query"]["kernel"]
        assert tuple(spec) == (None, "model", None)
        plain = aj.SeparateAttention(2).init(jax.random.key(0), X)
        jax.tree.map(np.testing.assert_array_equal, nn.unbox(boxed), plain)
        output = module.apply(boxed, X)
        np.testing.assert_array_equal(output, aj.SeparateAttention(2).apply(plain, X))

    @pytest.mark.parametrize("cls", [aj.SeparateAttention, aj.MergedAttention])
    def test_merged_products_of_boxed_kernels(self, cls):
        module = cls(2, ov="merged", kernel_init=self.init)
        got = nn.unbox(module.init(jax.random.key(0), X))
        expected = cls(2, ov="merged").init(jax.random.key(0), X)
        jax.tree.map(np.testing.assert_array_equal, got, expected)

    def test_a_merged_kernel_takes_a_boxed_initialiser_of_its_own(self):
        box = aj.MergedAttention(2, qk_init=self.init).init(jax.random.key(0), X)
        assert box["params"]["qk"]["kernel"].names == (None, "model", None)


class TestDropoutRules:
    def apply(self, cls=aj.SeparateAttention, rate=0.5, constructor=None, seed=0, **call):
        module = cls(num_heads=2, dropout_rate=rate, deterministic=constructor)
        variables = variables_of(module, X)
        rngs = {} if seed is None else {"dropout": jax.random.key(seed)}
        return module.apply(variables, X, rngs=rngs, **call)

    @pytest.mark.parametrize("cls", [aj.SeparateAttention, aj.MergedAttention])
    def test_the_call_beats_the_constructor(self, cls):
        quiet = self.apply(cls, rate=0.0)
        np.testing.assert_array_equal(self.apply(cls, constructor=True), quiet)
        np.testing.assert_array_equal(
            self.apply(cls, constructor=False, seed=None, deterministic=True), quiet
        )
        loud = self.apply(cls, constructor=True, deterministic=False)
        assert np.abs(loud - quiet).max() > 0.01
        np.testing.assert_array_equal(self.apply(cls, constructor=False), loud)
        assert np.abs(self.apply(cls, constructor=False, seed=1) - loud).max() > 0.01

    def test_unset_raises_with_a_rate_and_not_without(self):
        with pytest.raises(ValueError, match="deterministic: .*dropout_rate=0.5"):
            self.apply()
        self.apply(rate=0.0)

    def test_initialising_needs_neither_flag_nor_stream(self):
        for constructor in (None, False, True):
            module = aj.MergedAttention(2, dropout_rate=0.5, deterministic=constructor)
            module.init({"params": jax.random.key(0)}, X)

    def test_a_key_for_the_call_needs_no_stream(self):
        key = jax.random.key(5)
        one = self.apply(seed=None, deterministic=False, dropout_rng=key)
        np.testing.assert_array_equal(one, self.apply(seed=3, deterministic=False, dropout_rng=key))
        raw = jax.random.key_data(key)
        np.testing.assert_array_equal(
            one, self.apply(seed=None, deterministic=False, dropout_rng=raw)
        )

    def test_sown_weights_are_those_before_dropout(self):
        module = aj.SeparateAttention(2, dropout_rate=0.5)
        variables = variables_of(module, X)
        _, state = module.apply(
            variables, X, deterministic=False, sow_weights=True, mutable=["intermediates"],
            rngs={"dropout": jax.random.key(0)},
        )  # fmt: skip
        weights = state["intermediates"]["attention_weights"][0]
        assert weights.shape == (2, 2, 5, 5)
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-6)


def test_leading_axes_and_unbatched_inputs():
    module = aj.MergedAttention(2, ov="merged")
    variables = variables_of(module, X)
    expected = module.apply(variables, X)
    np.testing.assert_allclose(module.apply(variables, X[0]), expected[0], atol=1e-6)
    np.testing.assert_allclose(module.apply(variables, X[None]), expected[None], atol=1e-6)


def test_parameters_that_the_settings_do_not_use_are_not_dropped_silently():
    biased = variables_of(aj.SeparateAttention(2), X)
    with pytest.raises(ValueError, match="bias"):
        aj.SeparateAttention(2, use_bias=False).apply(biased, X)
    normed = variables_of(aj.SeparateAttention(2, normalize_qk=True), X)
    with pytest.raises(ValueError, match="query_ln|normalize_qk"):
        aj.SeparateAttention(2).apply(normed, X)


def test_row_terms_are_invisible_without_a_soft_cap():
    params = variables_of(aj.SeparateAttention(2), X)["params"]
    plain, capped = ({"params": aj.merge(params, softcap=cap)} for cap in (None, 1.0))
    assert set(capped["params"]["qk"]) - set(plain["params"]["qk"]) == {"row_kernel", "row_bias"}
    apply = aj.MergedAttention(2).apply
    np.testing.assert_allclose(apply(capped, X), apply(plain, X), atol=1e-5)
