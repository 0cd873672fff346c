"""Checkpoints in several files, with an index that tells which tensor is where."""

import collections
import pathlib
from collections.abc import Callable

from attention_jax.checkpoint.files import refusals, settings
from attention_jax.checkpoint.files.tensors import Stored

SUFFIX = ".index.json"
MAP = "weight_map"


Shards = dict[str, list[str]]
"""The names of the tensors that each file shall hold."""


def shards(path: pathlib.Path) -> Shards:
    """Reads an index; raises FileNotFoundError where one of its files is missing."""
    places = settings.read(path).get(MAP)
    expected = f"{MAP!r}, a mapping of tensors to files in the same folder"
    if not isinstance(places, dict) or not places:
        raise refusals.damaged(path, expected, type(places).__name__)
    found: dict[str, list[str]] = collections.defaultdict(list)
    for name, file in places.items():
        if not isinstance(file, str) or pathlib.PurePath(file).name != file:
            raise refusals.damaged(path, expected, f"{file!r} for tensor {name!r}")
        found[file].append(name)
    missing = [file for file in found if not (path.parent / file).is_file()]
    if missing:
        raise refusals.absent(path, "all files of the index", f"no {refusals.listing(missing)}")
    return dict(found)


def read(
    path: pathlib.Path,
    files: Shards,
    read_file: Callable[[pathlib.Path], dict[str, Stored]],
) -> dict[str, Stored]:
    """Reads the headers of all `files` of the index at `path`; the tensors stay unread.

    Raises:
      ValueError: A tensor is not in its file, or in a file that the index does not give for it.
    """
    stored: dict[str, Stored] = {}
    lacking, unlisted = [], []
    for file, names in files.items():
        part = read_file(path.parent / file)
        listed = set(names)
        lacking += [f"{name} in {file}" for name in names if name not in part]
        unlisted += [f"{name} in {file}" for name in part if name not in listed]
        stored |= part
    if lacking or unlisted:
        got = [f"no {refusals.listing(lacking)}"] if lacking else []
        got += [f"unlisted {refusals.listing(unlisted)}"] if unlisted else []
        raise refusals.damaged(path, "each tensor in its file, once", "; ".join(got))
    return stored
