"""A conversion applied to the layers of a whole model."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import core

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


def test_stacked_layers_by_vmap():
    stacked = jax.tree.map(lambda a, b: np.stack([a, b]), layer(seed=0), layer(seed=1))
    converted = aj.convert({"layers": stacked}, jax.vmap(aj.merge))
    assert converted["layers"]["qk"]["kernel"].shape == (2, 7, 4, 5)


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
