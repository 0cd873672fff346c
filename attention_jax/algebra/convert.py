"""A conversion of one layer, applied to all layers of a model."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, overload

import jax
import jax.numpy as jnp
import numpy as np

from attention_jax import checks
from attention_jax.algebra import tree as trees
from attention_jax.algebra.report import LayerReport, Report, count, describe
from attention_jax.types import Parameters

Conversion = Callable[[Parameters], Parameters]


@overload
def convert(
    tree: Mapping[str, Any], conversion: Conversion, *, return_report: Literal[False] = False
) -> dict[str, Any]: ...


@overload
def convert(
    tree: Mapping[str, Any], conversion: Conversion, *, return_report: Literal[True]
) -> tuple[dict[str, Any], Report]: ...


def convert(
    tree: Mapping[str, Any], conversion: Conversion, *, return_report: bool = False
) -> dict[str, Any] | tuple[dict[str, Any], Report]:
    """Applies `conversion` to every attention layer of a model's parameters.

    Layers are found by their entries: `query` and `key` or `qk`, together with `value` and `out` or
    `ov`; self-attention and cross attention alike. Stacked layers, whose kernels have more leading
    axes (as `flax.linen.scan` and `nnx.vmap` make them), are converted one by one and stacked
    again. Everything else is kept as it is.

    Args:
      tree: Nested mappings, lists and tuples, for example `variables["params"]` or all variables.
      conversion: From parameters of one layer to parameters of one layer, for example `aj.merge`,
        or `lambda params: aj.factor(params, head_dim=32)[0]`.
      return_report: Whether to return a report too. A layer that the conversion refuses is then
        kept as it is and listed; without a report the refusal is raised.

    Returns:
      A new tree; mappings become dictionaries. With `return_report` also a `Report`: what was
      converted, what was refused and why, the measured error, parameters before and after.

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
      >>> converted, report = convert(
      ...     model, functools.partial(merge, ov=True), return_report=True)
      >>> sorted(converted), sorted(converted["layer_0"])
      (['embedding', 'layer_0'], ['ov', 'qk'])
      >>> print(report)
      layer_0: separate -> merged QK and OV, error 0.0e+00, 96 -> 64 parameters
      1 converted, 116 -> 84 parameters in all
    """
    if not isinstance(tree, Mapping):
        raise checks.refuse(
            TypeError, "tree", "nested mappings", type(tree).__name__, "pass variables['params']"
        )
    checks.check_bool("return_report", return_report)
    if not callable(conversion):
        raise checks.refuse(
            TypeError, "conversion", "a function of one layer's parameters", repr(conversion),
            "pass aj.merge",
        )  # fmt: skip
    if return_report and any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(tree)):
        raise checks.refuse(
            TypeError, "tree", "known arrays, because the report measures errors", "traced ones",
            "convert outside of jax.jit, or without a report",
        )  # fmt: skip
    reports: list[LayerReport] | None = [] if return_report else None
    converted, found = _convert(tree, conversion, (), reports)
    if not found:
        raise checks.refuse(
            ValueError,
            "tree",
            "at least one attention layer (query, key, value, out; or qk, ov)",
            f"none among {sorted(map(str, tree))}",
            "pass the parameters of a model with attention",
        )
    if reports is None:
        return converted
    return converted, Report(tuple(reports), count(tree), count(converted))


def _convert(
    tree: Any, conversion: Conversion, path: tuple[str, ...], reports: list[LayerReport] | None
) -> tuple[Any, bool]:
    """Returns the converted tree, and whether it has an attention layer."""
    if trees.is_layer(tree):
        return _convert_stacked(tree, conversion, "/".join(path), reports), True
    if isinstance(tree, Mapping):
        pairs = {
            name: _convert(entry, conversion, (*path, str(name)), reports)
            for name, entry in tree.items()
        }
        return {name: new for name, (new, _) in pairs.items()}, any(
            found for _, found in pairs.values()
        )
    if isinstance(tree, list | tuple):
        entries = [
            _convert(entry, conversion, (*path, str(index)), reports)
            for index, entry in enumerate(tree)
        ]
        converted = [new for new, _ in entries]
        # A named tuple takes its fields one by one.
        kind = getattr(type(tree), "_make", type(tree))
        return kind(converted), any(found for _, found in entries)
    return tree, False


def _convert_stacked(
    layer: Parameters, conversion: Conversion, path: str, reports: list[LayerReport] | None
) -> dict[str, Any]:
    size = _stacked(layer, path)
    if size is None:
        return _convert_layer(layer, conversion, path, reports)
    converted = [
        _convert_stacked(
            jax.tree.map(lambda leaf: leaf[index], dict(layer)),  # noqa: B023
            conversion,
            f"{path}[{index}]",
            reports,
        )
        for index in range(size)
    ]
    structures = {str(jax.tree.map(jnp.shape, one)) for one in converted}
    if len(structures) > 1:
        raise checks.refuse(
            NotImplementedError,
            f"layer {path}",
            "stacked layers that all become parameters of the same shapes",
            f"{len(structures)} kinds",
            "convert all of them or none; layers of two forms cannot be stacked",
        )
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *converted)


def _stacked(layer: Parameters, path: str) -> int | None:
    """Returns the size of the first axis over which layers are stacked, or None for one layer."""
    kernel = layer["qk" if "qk" in layer else "query"].get("kernel")
    if kernel is None or np.ndim(kernel) <= 3:
        return None
    sizes = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(layer)}
    if len(sizes) > 1 or sizes == {(0,)}:
        raise checks.refuse(
            ValueError,
            f"layer {path or '(the tree itself)'}",
            "layers stacked along the first axis of all their parameters",
            f"first axes {sorted(sizes)}",
            "move the axis of the layers to the front with jnp.moveaxis",
        )
    return sizes.pop()[0]


def _convert_layer(
    layer: Parameters, conversion: Conversion, path: str, reports: list[LayerReport] | None
) -> dict[str, Any]:
    refused = None
    try:
        result = conversion(layer)
    except Exception as error:
        # JAX's own errors have other constructors.
        if type(error) not in (ValueError, TypeError, NotImplementedError):
            error.add_note(f"while converting layer {path}")
            raise
        if reports is None:
            raise type(error)(f"layer {path or '(the tree itself)'}: {error}") from error
        result, refused = dict(layer), str(error)
    if not isinstance(result, Mapping):
        raise checks.refuse(
            TypeError,
            "conversion",
            "a mapping of parameters for each layer",
            type(result).__name__,
            "return the parameters only, as in lambda p: aj.factor(p, head_dim=32)[0]",
        )
    if reports is not None:
        reports.append(describe(path, layer, result, refused))
    return dict(result)
