"""The base of all NNX modules: a linen module as settings, and its parameters as variables."""

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import nnx
from flax.nnx.bridge import variables as boxes

from attention_jax import checks


class Twin(nnx.Module):
    """A module whose settings, checks, initial values and function are those of a linen module.

    Attributes:
      linen_class: The class of the linen module.
      widths: Of each width that the constructor takes, the parameters that have it and their axis.
      settings: The linen module, without parameters.
    """

    linen_class: ClassVar[type[nn.Module]]
    widths: ClassVar[Mapping[str, Mapping[str, int]]]

    def __init__(self, settings: nn.Module, rngs: nnx.Rngs | None, **widths: int) -> None:
        """Creates the parameters for inputs of these widths, with the numbers of linen's `init`."""
        for name, width in widths.items():
            checks.check_positive_int(name, width)
        self.settings = settings
        self._names: tuple[str, ...] = ()
        if not isinstance(rngs, nnx.Rngs) and (widths or rngs is not None):
            raise checks.refuse(
                TypeError, "rngs", "nnx.Rngs", type(rngs).__name__, "pass rngs=nnx.Rngs(0)"
            )
        if rngs is not None and widths:
            inputs = [jax.ShapeDtypeStruct((1, 1, n), jnp.float32) for n in widths.values()]
            self._store(settings.lazy_init(rngs.params(), *inputs)["params"])

    def _store(self, params: Mapping[str, Any]) -> None:
        variables = boxes.linen_vars_to_nnx_attrs({"params": params})
        self._names = tuple(variables)
        for name, entry in variables.items():
            setattr(self, name, nnx.Dict(entry) if isinstance(entry, dict) else entry)

    def _parameters(self) -> dict[str, Any]:
        """Returns what linen's `apply` takes; other variables of a subclass are not among them."""
        state = nnx.to_pure_dict(nnx.state(self, nnx.Param))
        return {name: state[name] for name in self._names if name in state}
