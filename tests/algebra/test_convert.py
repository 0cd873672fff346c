"""A conversion applied to the layers of a whole model."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import core
from flax import linen as nn

import attention_jax as aj
from tests.algebra.layers import layer


def model():
    return {
        "embedding": np.ones((3, 2), "f4"),
        "blocks": {"0": {"attention": layer(seed=0)}, "1": {"attention": layer(seed=1)}},
        "head": {"kernel": np.ones((2, 3), "f4")},
    }


def test_all_layers_are_converted_and_all_else_is_kept():
    tree = model()
    converted = aj.convert(tree, functools.partial(aj.merge, ov=True))
    assert sorted(converted) == sorted(tree)
    assert converted["embedding"] is tree["embedding"]
    assert converted["head"]["kernel"] is tree["head"]["kernel"]
    for name in "01":
        got = converted["blocks"][name]["attention"]
        expected = aj.merge(tree["blocks"][name]["attention"], ov=True)
        jax.tree.map(np.testing.assert_array_equal, got, expected)
    assert "query" in tree["blocks"]["0"]["attention"]


def test_variables_frozen_dicts_and_a_single_layer():
    for wrapped in ({"params": model(), "stats": {"mean": np.ones(2)}}, core.freeze(model())):
        converted = aj.convert(wrapped, aj.merge)
        assert type(converted) is dict
        inner = converted.get("params", converted)
        assert set(inner["blocks"]["1"]["attention"]) == {"qk", "value", "out"}
    assert set(aj.convert(layer(), aj.merge)) == {"qk", "value", "out"}


def test_lists_and_tuples_are_searched():
    converted = aj.convert({"blocks": [layer(seed=0), (layer(seed=1), 3)]}, aj.merge)
    assert "qk" in converted["blocks"][0] and "qk" in converted["blocks"][1][0]
    assert converted["blocks"][1][1] == 3


def test_a_layer_with_something_else_in_it_is_not_skipped():
    tree = model()
    tree["blocks"]["1"]["attention"]["temperature"] = np.ones(4, "f4")
    with pytest.raises(ValueError, match="blocks/1/attention.*temperature"):
        aj.convert(tree, aj.merge)


def test_there_and_back_under_jit():
    def round_trip(tree):
        merged = aj.convert(tree, functools.partial(aj.merge, ov=True))
        return aj.convert(merged, lambda p: aj.factor(p, head_dim=3, num_kv_heads=2)[0])

    tree = model()
    again = jax.jit(round_trip)(tree)
    assert jax.tree.map(jnp.shape, again) == jax.tree.map(jnp.shape, tree)


def stack(*layers):
    return jax.tree.map(lambda *leaves: np.stack(leaves), *layers)


def test_stacked_layers_are_converted_both_ways():
    layers = [layer(seed=seed) for seed in range(3)]
    for stacked in (stack(*layers), stack(stack(*layers), stack(*layers[::-1]))):
        converted = aj.convert({"layers": stacked}, functools.partial(aj.merge, ov=True))
        expected = stack(*(aj.merge(one, ov=True) for one in layers))
        found = jax.tree.map(
            lambda leaf, one: leaf.reshape(-1, *one.shape)[:3],
            converted["layers"],
            aj.merge(layers[0], ov=True),
        )
        jax.tree.map(np.testing.assert_array_equal, found, expected)
        again = aj.convert(converted, lambda p: aj.factor(p, head_dim=3, num_kv_heads=2)[0])
        assert jax.tree.map(np.shape, again) == jax.tree.map(np.shape, {"layers": stacked})
    mixed = stack(*layers) | {"out": layers[0]["out"]}
    with pytest.raises(ValueError, match="layer a: expected layers stacked along the first axis"):
        aj.convert({"a": mixed}, aj.merge)


def test_layers_that_flax_scans_stay_the_same_function():
    class Layer(nn.Module):
        form: type[nn.Module]

        @nn.compact
        def __call__(self, x, _):
            return x + self.form(num_heads=2, name="attention")(x), None

    def model(form):
        return nn.scan(Layer, variable_axes={"params": 0}, split_rngs={"params": True}, length=3)(
            form
        )

    x = jax.random.normal(jax.random.key(0), (2, 5, 8))
    variables = model(aj.SeparateAttention).init(jax.random.key(1), x, None)
    kernel = variables["params"]["attention"]["query"]["kernel"]
    assert kernel.shape == (3, 8, 2, 4) and np.any(kernel[0] != kernel[1])
    merged, report = aj.convert(variables, aj.merge, return_report=True)
    separate_output = model(aj.SeparateAttention).apply(variables, x, None)[0]
    merged_output = model(aj.MergedAttention).apply(merged, x, None)[0]
    np.testing.assert_allclose(merged_output, separate_output, atol=1e-5)
    assert [entry.path for entry in report.layers] == [f"params/attention[{i}]" for i in range(3)]


def test_the_report_says_what_was_done():
    tree = model() | {"rotary_free": {"query_ln": {}}}
    tree["blocks"]["1"]["attention"] = layer(seed=1) | {
        "query_ln": {"scale": np.ones(3, "f4")}, "key_ln": {"scale": np.ones(3, "f4")}
    }  # fmt: skip
    converted, report = aj.convert(tree, functools.partial(aj.merge, ov=True), return_report=True)
    first, second = report.layers
    assert (first.path, first.before, first.after) == (
        "blocks/0/attention", "separate", "merged QK and OV"
    )  # fmt: skip
    assert first.refused is None and 0 < first.error < 1e-6
    assert second.refused.startswith("params: expected no QK-norm")
    assert (report.converted, report.refused) == ((first,), (second,))
    kept = converted["blocks"]["1"]["attention"]
    jax.tree.map(np.testing.assert_array_equal, kept, tree["blocks"]["1"]["attention"])
    assert first.parameters_before == sum(x.size for x in jax.tree.leaves(layer()))
    new = sum(x.size for x in jax.tree.leaves(converted))
    assert report.parameters_after == new > report.parameters_before
    assert report.parameters_after - report.parameters_before == (
        first.parameters_after - first.parameters_before
    )
    lines = str(report).splitlines()
    assert lines[0].startswith("blocks/0/attention: separate -> merged QK and OV, error ")
    assert lines[1].startswith("blocks/1/attention: refused, params: expected no QK-norm")
    # Without a report nothing may be passed over.
    with pytest.raises(NotImplementedError, match="blocks/1/attention"):
        aj.convert(tree, aj.merge)


def damaged(params, group, name):
    changed = jax.tree.map(np.array, params)
    changed[group][name].flat[0] += 1.0
    return changed


@pytest.mark.parametrize(
    ("group", "name"),
    [
        ("query", "kernel"),
        ("query", "bias"),
        ("key", "kernel"),
        ("value", "bias"),
        ("out", "kernel"),
    ],
)
def test_the_error_of_the_report_is_measured(group, name):
    """A conversion that breaks one entry is caught, whatever it says of itself."""
    tree = {"attention": layer()}
    merge = functools.partial(aj.merge, ov=True)
    broken = lambda params: merge(damaged(params, group, name))  # noqa: E731
    assert aj.convert(tree, merge, return_report=True)[1].error < 1e-6
    assert aj.convert(tree, broken, return_report=True)[1].error > 1e-3
    # b_k cancels in the softmax, and counts where a soft cap stands before it.
    capped = functools.partial(aj.merge, ov=True, softcap=2.0)
    unseen = lambda params: damaged(params, "key", "bias")  # noqa: E731
    lost = lambda params: merge(unseen(params))  # noqa: E731
    seen = lambda params: capped(unseen(params))  # noqa: E731
    assert aj.convert(tree, lost, return_report=True)[1].error < 1e-6
    assert aj.convert(tree, seen, return_report=True)[1].error > 1e-3


def test_the_error_equals_what_factor_cuts():
    merged = {"attention": aj.merge(layer(width=5, groups=4), ov=True)}
    _, error = aj.factor(merged["attention"], head_dim=2)
    _, report = aj.convert(
        merged, lambda p: aj.factor(p, head_dim=2)[0], return_report=True
    )  # fmt: skip
    np.testing.assert_allclose(report.error, error, rtol=1e-4)
    assert report.error > 0.1


def test_a_report_needs_known_numbers():
    with pytest.raises(TypeError, match="tree: expected known arrays.*traced"):
        jax.jit(lambda tree: aj.convert(tree, aj.merge, return_report=True)[0])(model())


def test_stored_in_bfloat16_converted_in_float32():
    import ml_dtypes

    tree = jax.tree.map(lambda x: x.astype(ml_dtypes.bfloat16), {"a": layer(bias=False)})
    merged, report = aj.convert(tree, aj.merge, return_report=True)
    assert merged["a"]["qk"]["kernel"].dtype == np.float32
    assert report.error < 1e-6
    rounded = lambda p: jax.tree.map(lambda x: x.astype(ml_dtypes.bfloat16), aj.merge(p))  # noqa: E731
    assert aj.convert(tree, rounded, return_report=True)[1].error > 1e-3


@pytest.mark.parametrize(
    "tree,conversion,error,match",
    [
        (model(), functools.partial(aj.merge, position=aj.Rotary()), NotImplementedError,
         "layer blocks/0/attention: position: .*Rotary"),
        (aj.merge(layer()), aj.merge, ValueError, "the tree itself.*already merged"),
        ({"a": {"b": np.ones(2)}}, aj.merge, ValueError, "at least one attention layer.*'a'"),
        ([layer()], aj.merge, TypeError, "tree: expected nested mappings, got list"),
        (model(), lambda p: aj.factor(aj.merge(p), head_dim=3), TypeError, "conversion: .*tuple"),
    ],
)  # fmt: skip
def test_refusals_name_the_layer(tree, conversion, error, match):
    with pytest.raises(error, match=match):
        aj.convert(tree, conversion)


def test_an_error_of_jax_inside_a_conversion_keeps_its_class():
    def conversion(params):
        return params if params["query"]["kernel"].sum() > 0 else params

    with pytest.raises(jax.errors.TracerBoolConversionError):
        jax.jit(lambda tree: aj.convert(tree, conversion))(model())
