"""Tensors of a PyTorch file, read without PyTorch."""

import functools
import pathlib
from typing import Any

import numpy as np

from attention_jax import checks
from attention_jax.checkpoint.files import refusals, torch_legacy, torch_zip
from attention_jax.checkpoint.files.pickled import ReadPart, Storage, View
from attention_jax.checkpoint.files.tensors import Stored


def read(path: pathlib.Path) -> dict[str, Stored]:
    """Reads the names, shapes and places of the tensors in a file of `torch.save`.

    The file holds a state dict: a flat mapping of names to tensors, which may share memory and be
    views with any strides. Nothing in it is run.

    Args:
      path: The file, in the zip format or in the one before PyTorch 1.6.

    Returns:
      The tensors by name.

    Raises:
      ValueError: The file is cut off, contradicts itself, or holds other things than tensors; a
        name that it wants to call is in the message.
      NotImplementedError: The file is a TorchScript archive, big-endian, or has a dtype without a
        storage class (float8) or an expanded tensor.
    """
    with path.open("rb") as file:
        is_zip = file.read(len(torch_zip.MAGIC)) == torch_zip.MAGIC
    format_ = torch_zip if is_zip else torch_legacy
    root, locate = format_.read(path)
    views = _state_dict(path, root)
    storages: dict[str, Storage] = {}
    for view in views.values():
        if storages.setdefault(view.storage.key, view.storage) != view.storage:
            got = f"storage {view.storage.key!r} with two dtypes or sizes"
            raise refusals.damaged(path, "storages of one kind", got)
    read_part = locate(storages)
    return {
        name: Stored(view.shape, view.storage.dtype, functools.partial(_tensor, view, read_part))
        for name, view in views.items()
    }


def _state_dict(path: pathlib.Path, root: Any) -> dict[str, View]:
    """Returns the names and tensors; refuses a mapping that nests or holds anything else."""
    expected = "a flat mapping of names to tensors"
    remedy = "save the state dict alone: torch.save(model.state_dict(), path)"
    if not isinstance(root, dict):
        got = "one tensor" if isinstance(root, View) else type(root).__name__
        raise checks.refuse(ValueError, str(path), expected, got, remedy)
    others = [
        name
        for name, value in root.items()
        if not (isinstance(name, str) and isinstance(value, View))
    ]
    if others:
        got = f"no tensors under {refusals.listing(others)}"
        raise checks.refuse(ValueError, str(path), expected, got, remedy)
    return root


def _tensor(view: View, read_part: ReadPart) -> np.ndarray:
    """Reads one tensor."""
    dtype = view.storage.dtype
    if not view.span:
        return np.empty(view.shape, dtype)
    data = read_part(view.storage, view.offset * dtype.itemsize, view.span * dtype.itemsize)
    # The stride of an axis with one element means nothing and may be any number.
    strides = tuple(
        stride * dtype.itemsize if size > 1 else 0
        for size, stride in zip(view.shape, view.strides, strict=True)
    )
    return np.array(np.ndarray(view.shape, dtype, data, strides=strides), order="C")
