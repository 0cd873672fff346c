"""Tensors of a safetensors file."""

import functools
import pathlib
from typing import Any

import ml_dtypes
import numpy as np

from attention_jax import checks
from attention_jax.checkpoint.files import refusals
from attention_jax.checkpoint.files.tensors import Stored

DTYPES = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "I64": np.int64,
    "I32": np.int32,
    "I16": np.int16,
    "I8": np.int8,
    "U64": np.uint64,
    "U32": np.uint32,
    "U16": np.uint16,
    "U8": np.uint8,
    "BOOL": np.bool_,
}


def read(path: pathlib.Path) -> dict[str, Stored]:
    """Reads the header of a safetensors file.

    Args:
      path: The file.

    Returns:
      The tensors by name.

    Raises:
      ValueError: The file is cut off, or its header contradicts itself or the file's size.
      NotImplementedError: A tensor has a dtype that NumPy does not hold, such as float8.
      ImportError: The package `safetensors` is not installed.
    """
    library = refusals.package("safetensors")
    try:
        file = library.safe_open(path, framework="np")
        parts = {name: file.get_slice(name) for name in file.offset_keys()}
    except library.SafetensorError as error:
        raise refusals.damaged(path, "a whole safetensors file", error) from error
    return {
        name: Stored(
            tuple(part.get_shape()),
            _dtype(path, name, part.get_dtype()),
            functools.partial(_tensor, path, file, name),
        )
        for name, part in parts.items()
    }


def _dtype(path: pathlib.Path, name: str, code: str) -> np.dtype:
    if code not in DTYPES:
        raise checks.refuse(
            NotImplementedError, str(path), f"dtypes among {', '.join(DTYPES)}",
            f"{code} in tensor {name!r}", "save that tensor as BF16 or F32",
        )  # fmt: skip
    return np.dtype(DTYPES[code])


def _tensor(path: pathlib.Path, file: Any, name: str) -> np.ndarray:
    """Reads one tensor from an open file, which outlives this call."""
    try:
        return file.get_tensor(name)
    except refusals.package("safetensors").SafetensorError as error:
        raise refusals.damaged(path, f"tensor {name!r}", error) from error
