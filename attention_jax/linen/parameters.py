"""A submodule that only creates parameters, so that the modules need no layers of their own."""

import jax
from flax import linen as nn
from jax.typing import DTypeLike

from attention_jax import checks
from attention_jax.linen.initializers import Initializer
from attention_jax.types import Array


class ParameterGroup(nn.Module):
    """Creates parameters under one name, for example `query: {kernel, bias}`.

    Attributes:
      param_dtype: Dtype of the parameters.
    """

    param_dtype: DTypeLike

    @nn.compact
    def __call__(self, **entries: tuple[Initializer, tuple[int, ...]]) -> dict[str, Array]:
        """Returns the parameters `{name: array}` for `name=(initialiser, shape)`."""
        for name, (_, shape) in entries.items():
            if self.has_variable("params", name):
                self._check_shape(name, shape)
        return {
            name: self.param(name, init, shape, self.param_dtype)
            for name, (init, shape) in entries.items()
        }

    def _check_shape(self, name: str, expected: tuple[int, ...]) -> None:
        leaf = jax.tree.leaves(self.get_variable("params", name))[0]
        if leaf.shape != expected:
            path = "/".join((*self.path, name))
            raise checks.refuse(
                ValueError,
                f"params {path}",
                f"shape {expected} for these inputs and settings",
                f"shape {leaf.shape}",
                "pass inputs of the width the parameters were made for, or initialise again",
            )
