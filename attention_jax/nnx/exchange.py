"""Modules with their parameters, from linen to NNX and back."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from flax import core, nnx, traverse_util
from flax import linen as nn
from flax.nnx.bridge import variables as boxes

from attention_jax import checks
from attention_jax.nnx.attention import Attention
from attention_jax.nnx.forms import MergedAttention, RawAttention, SeparateAttention
from attention_jax.nnx.positions import LearnedPositions
from attention_jax.nnx.twin import Twin
from attention_jax.types import Parameters

_TWINS: dict[type[nn.Module], Any] = {
    twin.linen_class: twin
    for twin in (LearnedPositions, MergedAttention, RawAttention, SeparateAttention)
}


def from_linen(module: nn.Module, params: Parameters, *, rngs: nnx.Rngs | None = None) -> Twin:
    """Returns the NNX module with the settings of a linen module and these parameters.

    Args:
      module: A linen module of this library.
      params: Its parameters, `variables["params"]`; partition names in boxes are kept.
      rngs: Stream "dropout" of the new module; by default each call with dropout needs its own.

    Raises:
      ValueError: Parameters are missing, too many or of wrong shape; the message has their path.
      TypeError: The module is not one of this library, or `params` not a mapping.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> import attention_jax as aj
      >>> x = jnp.ones((3, 5, 8))
      >>> linen = aj.SeparateAttention(num_heads=2)
      >>> variables = linen.init(jax.random.key(0), x)
      >>> module = from_linen(linen, variables["params"])
      >>> bool(jnp.all(module(x) == linen.apply(variables, x)))
      True
    """
    tree = core.unfreeze(dict(params))
    twin = _abstract(module, tree)
    twin._store(tree)
    if isinstance(twin, Attention):
        twin._keep(rngs)
    return twin


def to_linen(module: Twin) -> tuple[nn.Module, dict[str, Any]]:
    """Returns the linen module of an NNX module of this library, and its parameters.

    Raises:
      ValueError: The module's `nnx.Param` variables are not those of the linen module; the message
        has their path.
      TypeError: The module is not one of this library.

    Example:
      >>> import jax.numpy as jnp
      >>> module = RawAttention(scale=0.5)
      >>> linen, params = to_linen(module)
      >>> linen.scale, params
      (0.5, {})
    """
    if not isinstance(module, Twin):
        raise checks.refuse(
            TypeError,
            "module",
            "an NNX module of attention-jax",
            type(module).__name__,
            "convert other modules with flax.nnx.bridge.to_linen",
        )
    settings = module.settings
    if isinstance(module, Attention):
        settings = settings.clone(deterministic=module.deterministic)
    params = nnx.to_pure_dict(nnx.state(module, nnx.Param), boxes.to_linen_var)
    _abstract(settings, params)
    return settings, params


def _abstract(module: nn.Module, params: Parameters) -> Twin:
    """Returns the NNX module without numbers; raises unless it has the tree `params`."""
    if type(module) not in _TWINS:
        raise checks.refuse(
            TypeError,
            "module",
            "a linen module of attention-jax",
            type(module).__name__,
            "convert other modules with flax.nnx.bridge.ToNNX",
        )
    shapes = _shapes(params)
    twin = _TWINS[type(module)]
    widths = {name: _width(shapes, places) for name, places in twin.widths.items()}
    settings = {
        field.name: getattr(module, field.name)
        for field in dataclasses.fields(module)
        if field.name != "parent"
    }
    made = nnx.eval_shape(lambda: twin(**settings, **widths, rngs=nnx.Rngs(0)))
    expected = _shapes(made._parameters())
    for path in sorted({*expected, *shapes}):
        wanted, given = expected.get(path, "nothing"), shapes.get(path, "nothing")
        if wanted != given:
            raise checks.refuse(
                ValueError,
                f"params {path}",
                f"{wanted} with these settings",
                given,
                "pass variables['params'] of this module, or convert the parameters",
            )
    return made


def _shapes(params: Parameters) -> dict[str, Any]:
    """Returns the shapes by path, and what has none by its class."""
    flat = traverse_util.flatten_dict(nn.unbox(params), sep="/")
    return {path: getattr(leaf, "shape", type(leaf).__name__) for path, leaf in flat.items()}


def _width(shapes: Mapping[str, Any], places: Mapping[str, int]) -> int:
    for path, axis in places.items():
        shape = shapes.get(path)
        if isinstance(shape, tuple) and len(shape) > axis:
            return shape[axis]
    raise checks.refuse(
        ValueError,
        "params",
        f"{' or '.join(places)}, which tells the width of the inputs",
        ", ".join(shapes) or "nothing",
        "pass variables['params'] of one layer",
    )
