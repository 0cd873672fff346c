"""A conversion of one layer, applied to all layers of a model."""

from collections.abc import Callable, Mapping
from typing import Any

from attention_jax import checks
from attention_jax.algebra import tree as trees
from attention_jax.types import Parameters

Conversion = Callable[[Parameters], Parameters]


def convert(tree: Mapping[str, Any], conversion: Conversion) -> dict[str, Any]:
    """Applies `conversion` to every attention layer of a model's parameters.

    Layers are found by their entries: `query` and `key` or `qk`, together with `value` and `out` or
    `ov`. Everything else is kept as it is.

    Args:
      tree: Nested mappings, for example `variables["params"]` or all variables.
      conversion: From parameters of one layer to parameters of one layer, for example `aj.merge`,
        or `lambda params: aj.factor(params, head_dim=32)[0]`.

    Returns:
      A new tree of dictionaries.

    Raises:
      ValueError: There is no attention layer, or the conversion refuses a layer; the message then
        starts with the layer's path, and the error keeps its class.
      TypeError: `tree` is not a mapping, or the conversion does not return one.

    Example:
      >>> import functools, jax.numpy as jnp
      >>> from attention_jax.algebra import merge
      >>> kernel = jnp.ones((4, 2, 3))
      >>> layer = {name: {"kernel": kernel} for name in ("query", "key", "value")}
      >>> layer["out"] = {"kernel": jnp.ones((2, 3, 4))}
      >>> model = {"embedding": jnp.ones((5, 4)), "layer_0": layer}
      >>> converted = convert(model, functools.partial(merge, ov=True))
      >>> sorted(converted), sorted(converted["layer_0"])
      (['embedding', 'layer_0'], ['ov', 'qk'])
    """
    if not isinstance(tree, Mapping):
        raise checks.refuse(
            TypeError, "tree", "nested mappings", type(tree).__name__, "pass variables['params']"
        )
    converted, count = _convert(tree, conversion, ())
    if not count:
        raise checks.refuse(
            ValueError,
            "tree",
            "at least one attention layer (query, key, value, out; or qk, ov)",
            f"none among {sorted(map(str, tree))}",
            "pass the parameters of a model with attention",
        )
    return converted


def _convert(
    tree: Mapping[str, Any], conversion: Conversion, path: tuple[str, ...]
) -> tuple[dict[str, Any], int]:
    if trees.is_layer(tree):
        return _convert_layer(tree, conversion, "/".join(path)), 1
    converted: dict[str, Any] = {}
    total = 0
    for name, entry in tree.items():
        if isinstance(entry, Mapping):
            entry, count = _convert(entry, conversion, (*path, str(name)))
            total += count
        converted[name] = entry
    return converted, total


def _convert_layer(layer: Parameters, conversion: Conversion, path: str) -> dict[str, Any]:
    try:
        result = conversion(layer)
    except (ValueError, TypeError, NotImplementedError) as error:
        raise type(error)(f"layer {path or '(the tree itself)'}: {error}") from error
    if not isinstance(result, Mapping):
        raise checks.refuse(
            TypeError,
            "conversion",
            "a mapping of parameters for each layer",
            type(result).__name__,
            "return the parameters only, as in lambda p: aj.factor(p, head_dim=32)[0]",
        )
    return dict(result)
