"""A submodule that only creates parameters, so that the modules need no layers of their own."""

import jax
from flax import linen as nn
from jax.typing import DTypeLike

from attention_jax import checks
from attention_jax.linen.initializers import Initializer
from attention_jax.types import Array

Entries = dict[str, tuple[Initializer, tuple[int, ...]]]


class ParameterGroup(nn.Module):
    """Creates parameters under one name, for example `query: {kernel, bias}`.

    Attributes:
      param_dtype: Dtype of the parameters.
      invisible: Names of further entries that may be there without changing the function.
    """

    param_dtype: DTypeLike
    invisible: tuple[str, ...] = ()

    @nn.compact
    def __call__(self, **entries: tuple[Initializer, tuple[int, ...]]) -> dict[str, Array]:
        """Returns the parameters `{name: array}` for `name=(initialiser, shape)`."""
        present = self.variables.get("params", {})
        ignored = sorted(set(present) - set(entries) - set(self.invisible))
        if ignored:
            raise checks.refuse(
                ValueError,
                f"params {'/'.join(self.path)}",
                f"only {', '.join(entries)} with these settings",
                f"also {', '.join(ignored)}",
                "use the settings the parameters were made with, or convert the parameters",
            )
        for name, (_, shape) in entries.items():
            if name in present:
                self._check_shape(name, shape)
            elif not self.is_mutable_collection("params"):
                raise checks.refuse(
                    ValueError,
                    f"params {'/'.join(self.path)}",
                    f"{', '.join(entries)} with these settings",
                    f"only {', '.join(present) or 'nothing'}",
                    "use the settings the parameters were made with, or convert the parameters "
                    "with these settings: merge(..., softcap=...) keeps what a soft cap sees",
                )
        return {
            name: self.param(name, init, shape, self.param_dtype)
            for name, (init, shape) in entries.items()
        }

    def _check_shape(self, name: str, expected: tuple[int, ...]) -> None:
        leaf = jax.tree.leaves(self.get_variable("params", name))[0]
        if leaf.shape != expected:
            raise checks.refuse(
                ValueError,
                f"params {'/'.join((*self.path, name))}",
                f"shape {expected} for these inputs and settings",
                f"shape {leaf.shape}",
                "pass inputs of the width the parameters were made for, or initialise again",
            )
