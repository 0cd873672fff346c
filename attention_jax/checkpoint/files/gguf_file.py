"""Tensors of a GGUF file, dequantised."""

import functools
import math
import pathlib
from typing import Any

import numpy as np

from attention_jax import checks
from attention_jax.checkpoint.files import gguf_header, refusals
from attention_jax.checkpoint.files.tensors import Stored


def read(path: pathlib.Path) -> tuple[dict[str, Any], dict[str, Stored]]:
    """Reads the header of a GGUF file.

    All tensors come as float32, whatever they are stored as: `w = d q + m` for each block, with
    the block's own numbers d and m. GGUF lists the innermost axis first; shapes here list it last,
    so a linear map is `(outputs, inputs)`.

    Args:
      path: The file.

    Returns:
      The metadata as plain Python values, and the tensors by name.

    Raises:
      ValueError: The file is cut off, or its header contradicts itself or the file's size.
      NotImplementedError: A tensor's storage type, the version or the byte order is not supported,
        or the file is one of several.
      ImportError: The package `gguf` is not installed.
    """
    header = gguf_header.read(path)
    parts = header.metadata.get("split.count", 1)
    if parts != 1:
        raise checks.refuse(
            NotImplementedError, str(path), "a model in one file", f"one of {parts} parts",
            "join them with llama-gguf-split --merge",
        )  # fmt: skip
    stored = {}
    end = header.start
    for name, place in header.places.items():
        rows, row_bytes = _rows(path, name, place)
        start = header.start + place.start
        if start != gguf_header.aligned(end, header.alignment):
            raise refusals.damaged(
                path, "tensors one after the other", f"tensor {name!r} at byte {start} after {end}"
            )
        end = start + rows * row_bytes
        stored[name] = Stored(
            place.shape,
            np.dtype(np.float32),
            functools.partial(_tensor, path, place, start, rows, row_bytes),
        )
    size = path.stat().st_size
    if header.places and end > size:
        raise refusals.damaged(path, f"{end} bytes for its tensors", f"{size} bytes")
    return header.metadata, stored


def _rows(path: pathlib.Path, name: str, place: gguf_header.Place) -> tuple[int, int]:
    """Returns how many rows a tensor has, and how many bytes a row."""
    constants, quants = (refusals.package(f"gguf.{module}") for module in ("constants", "quants"))
    try:
        kind = constants.GGMLQuantizationType(place.kind)
        block, block_bytes = constants.GGML_QUANT_SIZES[kind]
        # The package has no list of what it can dequantise, so it is asked for one block of zeros.
        quants.dequantize(np.zeros((1, block_bytes), np.uint8), kind)
    except (KeyError, ValueError, NotImplementedError) as error:
        raise checks.refuse(
            NotImplementedError, str(path), "storage types that can be dequantised to float32",
            f"tensor {name!r}: {error}", "take a file with another quantisation, such as Q8_0",
        ) from error  # fmt: skip
    width = place.shape[-1] if place.shape else 1
    if width % block or not math.prod(place.shape):
        got = f"shape {place.shape} of tensor {name!r}"
        raise refusals.damaged(path, f"rows of a positive multiple of {block} numbers", got)
    return math.prod(place.shape[:-1]), width // block * block_bytes


def _tensor(
    path: pathlib.Path, place: gguf_header.Place, start: int, rows: int, row_bytes: int
) -> np.ndarray:
    """Reads one tensor whose bytes start at `start`."""
    constants, quants = (refusals.package(f"gguf.{module}") for module in ("constants", "quants"))
    data = np.fromfile(path, np.uint8, rows * row_bytes, offset=start)
    # A damaged scale may be infinite or no number; so are then the weights, without a warning.
    with np.errstate(invalid="ignore", over="ignore"):
        kind = constants.GGMLQuantizationType(place.kind)
        return quants.dequantize(data.reshape(rows, row_bytes), kind).reshape(place.shape)
