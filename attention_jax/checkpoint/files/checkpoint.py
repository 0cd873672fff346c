"""A published checkpoint: one folder, or one file with its settings."""

import dataclasses
import os
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from attention_jax import checks
from attention_jax.checkpoint.files import (
    gguf_file,
    refusals,
    safetensors_file,
    settings,
    shards,
    torch_file,
)
from attention_jax.checkpoint.files.tensors import Tensors

Format = Literal["safetensors", "gguf", "torch"]

FORMATS: dict[str, Format] = {
    ".safetensors": "safetensors",
    ".gguf": "gguf",
    ".bin": "torch",
    ".pt": "torch",
    ".pth": "torch",
}
CONFIG = "config.json"
# The first of these that a folder has is opened.
WEIGHTS = (
    "model.safetensors",
    f"model.safetensors{shards.SUFFIX}",
    "pytorch_model.bin",
    f"pytorch_model.bin{shards.SUFFIX}",
)
ACCEPTED = f"a folder, a file {', '.join(FORMATS)}, or an index {shards.SUFFIX}"


# Arrays do not compare to one truth, so two checkpoints are equal only if they are the same.
@dataclasses.dataclass(frozen=True, eq=False)
class Checkpoint:
    """A published checkpoint, opened: foreign settings, and tensors by foreign name.

    Attributes:
      path: The file with the weights, or the index of several.
      format: How the weights are stored.
      config: The contents of config.json, or the metadata of a GGUF file, as plain Python values.
      tensors: A mapping that reads a tensor when it is indexed.
    """

    path: pathlib.Path
    format: Format
    config: Mapping[str, Any] = dataclasses.field(repr=False)
    tensors: Tensors


def open_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Opens a published checkpoint; its headers are read and checked, its tensors stay on disk.

    A folder holds config.json and model.safetensors, or pytorch_model.bin, or the index of several
    such files; or it holds one .gguf file. Where it has several, safetensors come first. Nothing in
    a file is run, pickles included.

    Args:
      path: The folder, or a file with weights, or an index. config.json lies beside the file.

    Returns:
      A `Checkpoint`. GGUF tensors come dequantised to float32, all others in their own dtype.

    Raises:
      FileNotFoundError: There is nothing at `path`, or a file of the index is missing.
      ValueError: The folder has no weights, several GGUF files or no config.json, the suffix is
        unknown, or a file is damaged or holds more than tensors.
      NotImplementedError: A dtype, storage type, version or byte order is not supported.
      ImportError: The package that reads the format is not installed.

    Example:
      >>> import json, tempfile
      >>> import numpy as np
      >>> from safetensors.numpy import save_file
      >>> folder = pathlib.Path(tempfile.mkdtemp())
      >>> _ = (folder / "config.json").write_text(json.dumps({"model_type": "bert"}))
      >>> save_file({"pooler.dense.bias": np.arange(3.0)}, folder / "model.safetensors")
      >>> checkpoint = open_checkpoint(folder)
      >>> checkpoint.format, checkpoint.config["model_type"], checkpoint.tensors
      ('safetensors', 'bert', Tensors(1 tensors))
      >>> checkpoint.tensors["pooler.dense.bias"]
      array([0., 1., 2.])
    """
    path = pathlib.Path(path)
    if not path.exists():
        raise refusals.absent(path, ACCEPTED, "nothing there")
    file = _weights(path) if path.is_dir() else path
    parts = shards.shards(file) if file.name.endswith(shards.SUFFIX) else None
    format_ = _format(file, parts or [file.name])
    if format_ == "gguf":
        metadata, stored = gguf_file.read(file)
        return Checkpoint(file, format_, metadata, Tensors(stored))
    config = file.with_name(CONFIG)
    if not config.is_file():
        raise checks.refuse(
            ValueError, str(config), "the settings of the model beside its weights", "no such file",
            f"put the checkpoint's {CONFIG} there",
        )  # fmt: skip
    read_file = safetensors_file.read if format_ == "safetensors" else torch_file.read
    stored = read_file(file) if parts is None else shards.read(file, parts, read_file)
    return Checkpoint(file, format_, settings.read(config), Tensors(stored))


def _weights(folder: pathlib.Path) -> pathlib.Path:
    """Returns the file or index in `folder` that holds the weights."""
    for name in WEIGHTS:
        if (folder / name).is_file():
            return folder / name
    files = sorted(folder.glob("*.gguf"))
    if len(files) != 1:
        many = refusals.listing(file.name for file in files)
        raise checks.refuse(
            ValueError, str(folder), f"{', '.join(WEIGHTS)}, or one .gguf file", many or "none",
            "name the file itself",
        )  # fmt: skip
    return files[0]


def _format(path: pathlib.Path, names: Iterable[str]) -> Format:
    """Returns the one format of the files `names`, by their suffix."""
    found = {pathlib.PurePath(name).suffix for name in names}
    formats = {FORMATS.get(suffix) for suffix in found}
    format_ = formats.pop()
    if formats or format_ is None:
        raise checks.refuse(
            ValueError, str(path), ACCEPTED, f"suffix {refusals.listing(sorted(found))}",
            "name the folder, or a file in one of these formats",
        )  # fmt: skip
    return format_
