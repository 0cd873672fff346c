"""From the files of a published checkpoint to settings and parameters of our model."""

import os
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from attention_jax import checks
from attention_jax.checkpoint import architectures, rules
from attention_jax.checkpoint.architecture import Architecture
from attention_jax.checkpoint.files import Checkpoint, open_checkpoint
from attention_jax.checkpoint.settings import Settings
from attention_jax.models import Transformer, TransformerConfig

# Names, licences and vocabularies; what the model computes is said under its own name.
_GGUF_DESCRIPTIONS = ("general.", "tokenizer.", "quantize.", "GGUF.")


def load(
    path: str | os.PathLike,
    *,
    dtype: DTypeLike | None = None,
    allow_settings: Sequence[str] = (),
    allow_unused: Sequence[str] = (),
) -> tuple[TransformerConfig, dict[str, Any]]:
    """Imports a published checkpoint: `Transformer(config)` with `params` is its model.

    Architectures: BERT, ALBERT, GPT-2, GPT-NeoX and Llama; Llama also as GGUF. Every setting and
    every tensor is accounted for: one that would change the function and is not known is refused.

    Args:
      path: A folder with config.json and weights (safetensors or torch pickles, in one file or
        several), one file of weights with config.json beside it, or a GGUF file.
      dtype: Of the parameters; by default as stored, GGUF's quantised ones in float32.
      allow_settings: Names of unknown settings that change nothing.
      allow_unused: Patterns (`*` for any text) of tensors that may be left out.

    Returns:
      `(config, params)`.

    Raises:
      FileNotFoundError: There is no such file.
      TypeError: An argument has the wrong kind.
      ValueError: A file is damaged, or tensors are missing, unused or of another shape; the message
        lists all.
      NotImplementedError: The architecture, a setting or a format is not supported.

    Example:
      >>> import attention_jax as aj
      >>> config, params = load("tests/checkpoint/data/tiny_llama")
      >>> config.num_heads, config.num_kv_heads, config.position
      (6, 2, Rotary(theta=500.0, style='half', fraction=1.0))
      >>> tokens = jnp.array([[3, 1, 4]])
      >>> aj.models.Transformer(config).apply({"params": params}, tokens).shape
      (1, 3, 23)
    """
    for name, names in (("allow_settings", allow_settings), ("allow_unused", allow_unused)):
        # A string is a sequence too: of its letters, one of which may be "*".
        if isinstance(names, str):
            raise checks.refuse(
                TypeError, name, "a list of names", repr(names), f"pass [{names!r}]"
            )
    if dtype is not None:
        _check_dtype(dtype)
    opened = open_checkpoint(path)
    architecture = _architecture(opened)
    tensors = opened.tensors.without_prefix(architecture.prefix)
    if opened.format == "gguf":
        values = {
            name: value
            for name, value in opened.config.items()
            if not name.startswith(_GGUF_DESCRIPTIONS)
        }
        settings = Settings(values, "metadata")
    else:
        settings = Settings(opened.config)
    config = architecture.read_settings(settings, tensors)
    settings.finish(allow_settings)
    params = rules.assemble(
        rules.numbered(architecture.rules(config), config.groups),
        tensors,
        _shapes(config),
        equal=architecture.equal(config),
        without_weights=architecture.without_weights,
        allow_unused=allow_unused,
        dtype=dtype,
    )
    return config, params


def _architecture(opened: Checkpoint) -> Architecture:
    gguf = opened.format == "gguf"
    known = architectures.GGUF if gguf else architectures.PUBLISHED
    field = "general.architecture" if gguf else "model_type"
    name = opened.config.get(field)
    if not isinstance(name, str) or name not in known:
        raise checks.refuse(
            NotImplementedError,
            f"{opened.path} {field}",
            f"one of {', '.join(known)}",
            repr(name),
            "add its tables to attention_jax/checkpoint/architectures",
        )
    return known[name]


def _check_dtype(dtype: DTypeLike) -> None:
    try:
        array = np.zeros(0, dtype)
    except TypeError:
        raise checks.refuse(
            TypeError, "dtype", "a floating dtype", repr(dtype), "pass jnp.float32"
        ) from None
    checks.check_floating("dtype", array)


def _shapes(config: TransformerConfig) -> dict[str, tuple[int, ...]]:
    tokens = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    key = jax.eval_shape(lambda: jax.random.key(0))
    model = Transformer(config)
    variables = jax.eval_shape(lambda key, x: model.init(key, x, deterministic=True), key, tokens)
    leaves = jax.tree_util.tree_leaves_with_path(variables["params"])
    return {"/".join(entry.key for entry in path): leaf.shape for path, leaf in leaves}
