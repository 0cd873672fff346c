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
      tree: Nested mappings, lists and tuples, for example `variables["params"]` or all variables.
      conversion: From parameters of one layer to parameters of one layer, for example `aj.merge`,
        or `lambda params: aj.factor(params, head_dim=32)[0]`.

    Returns:
      A new tree; mappings become dictionaries.

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


def _convert(tree: Any, conversion: Conversion, path: tuple[str, ...]) -> tuple[Any, int]:
    if trees.is_layer(tree):
        return _convert_layer(tree, conversion, "/".join(path)), 1
    if isinstance(tree, Mapping):
        pairs = [(name, _convert(tree[name], conversion, (*path, str(name)))) for name in tree]
        return {name: new for name, (new, _) in pairs}, sum(count for _, (_, count) in pairs)
    if type(tree) in (list, tuple):
        entries = [_convert(entry, conversion, (*path, str(i))) for i, entry in enumerate(tree)]
        return type(tree)(new for new, _ in entries), sum(count for _, count in entries)
    return tree, 0


def _convert_layer(layer: Parameters, conversion: Conversion, path: str) -> dict[str, Any]:
    try:
        result = conversion(layer)
    except Exception as error:
        # JAX's own errors have other constructors.
        if type(error) not in (ValueError, TypeError, NotImplementedError):
            error.add_note(f"while converting layer {path}")
            raise
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
