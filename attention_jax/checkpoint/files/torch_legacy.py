"""The format of PyTorch files before version 1.6: five pickles, then the storages."""

import pathlib
from typing import Any

from attention_jax import checks
from attention_jax.checkpoint.files import pickled, refusals
from attention_jax.checkpoint.files.pickled import Locate, ReadPart, Storage

MAGIC = 0x1950A86A20F9469CFC6C
PROTOCOL = 1001
COUNT_BYTES = 8


def read(path: pathlib.Path) -> tuple[Any, Locate]:
    """Reads the pickles of a file; returns what `torch_zip.read` does."""
    with path.open("rb") as file:
        magic = pickled.load(file, path)
        if type(magic) is not int or magic != MAGIC:
            raise refusals.damaged(path, "the magic number of a PyTorch file", "another object")
        protocol, system = pickled.load(file, path), pickled.load(file, path)
        if type(protocol) is not int or protocol != PROTOCOL or not isinstance(system, dict):
            raise refusals.damaged(path, f"protocol {PROTOCOL}", "another one")
        if system.get("little_endian") is not True:
            raise checks.refuse(
                NotImplementedError, str(path), "byte order little", "another one",
                "save it again on a little-endian machine",
            )  # fmt: skip
        root, keys, end = pickled.load(file, path), pickled.load(file, path), file.tell()

    def locate(storages: dict[str, Storage]) -> ReadPart:
        starts = _starts(path, storages, keys, end)
        return lambda storage, start, count: _part(path, starts[storage.key] + start, count)

    return root, locate


def _starts(
    path: pathlib.Path, storages: dict[str, Storage], keys: Any, position: int
) -> dict[str, int]:
    """Returns where each storage's elements start; checks that the file ends with the last one."""
    known = isinstance(keys, list) and all(isinstance(key, str) for key in keys)
    if not known or sorted(keys) != sorted(storages):
        raise refusals.damaged(path, "the storages of its tensors", "a list of other storages")
    starts = {}
    size = path.stat().st_size
    with path.open("rb") as file:
        for key in keys:
            storage = storages[key]
            file.seek(position)
            count = int.from_bytes(file.read(COUNT_BYTES), "little")
            starts[key] = position + COUNT_BYTES
            position = starts[key] + storage.size * storage.dtype.itemsize
            if count != storage.size or position > size:
                got = "another number, or the end of the file"
                raise refusals.damaged(path, f"{storage.size} elements of storage {key}", got)
    if position != size:
        raise refusals.damaged(path, f"{position} bytes", f"{size} bytes")
    return starts


def _part(path: pathlib.Path, start: int, count: int) -> bytes:
    with path.open("rb") as file:
        file.seek(start)
        data = file.read(count)
    if len(data) != count:
        raise refusals.damaged(path, f"{count} bytes at {start}", f"{len(data)} bytes")
    return data
