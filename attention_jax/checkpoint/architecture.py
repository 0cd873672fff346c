"""What is known about one published architecture."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from attention_jax.checkpoint.files import Tensors
from attention_jax.checkpoint.rules import Rule
from attention_jax.checkpoint.settings import Settings
from attention_jax.models import TransformerConfig


@dataclasses.dataclass(frozen=True)
class Architecture:
    """How settings and tensors of one architecture are read.

    Attributes:
      read_settings: From the settings, and the tensors (whose names tell the heads that a file
        has), to the settings of our model.
      rules: The table for such a model, with `{i}` for the layers.
      prefix: What names start with if the file holds a model with a head.
      equal: Tensors that repeat another one where a file has them.
      without_weights: Regular expressions of tensors that are no weights, such as stored masks.
    """

    read_settings: Callable[[Settings, Tensors], TransformerConfig]
    rules: Callable[[TransformerConfig], Sequence[Rule]]
    prefix: str = ""
    equal: Callable[[TransformerConfig], Mapping[str, str]] = lambda config: {}
    without_weights: Sequence[str] = ()
