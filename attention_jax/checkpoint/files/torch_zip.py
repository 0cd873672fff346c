"""The zip format of PyTorch files: a pickle, and a file for each storage."""

import pathlib
import struct
import zipfile
from io import BytesIO
from typing import Any

from attention_jax import checks
from attention_jax.checkpoint.files import pickled, refusals
from attention_jax.checkpoint.files.pickled import Locate, ReadPart, Storage

MAGIC = b"PK\x03\x04"
PICKLE = "data.pkl"
# What zipfile raises on damaged input.
ERRORS = (
    zipfile.BadZipFile, EOFError, OSError, OverflowError, RuntimeError, ValueError, struct.error,
)  # fmt: skip


def read(path: pathlib.Path) -> tuple[Any, Locate]:
    """Reads the pickle of a zip file.

    Returns:
      What the pickle holds, and the function that finds its storages.
    """
    try:
        archive = zipfile.ZipFile(path)
    # A forged length of its list of entries asks for more memory than there is.
    except (*ERRORS, MemoryError) as error:
        raise refusals.damaged(path, "a whole zip file", error) from error
    entries = {entry.filename: entry for entry in archive.infolist()}
    roots = [name.removesuffix(PICKLE) for name in entries if name.endswith(f"/{PICKLE}")]
    if len(roots) != 1 or len(entries) != len(archive.infolist()):
        got = f"a zip file of {refusals.listing(entries)}"
        raise refusals.damaged(path, f"one {PICKLE} and no name twice", got)
    root = roots[0]
    if f"{root}constants.pkl" in entries:
        raise checks.refuse(
            NotImplementedError, str(path), "a state dict", "a TorchScript archive, which is code",
            "save the state dict: torch.save(model.state_dict(), path)",
        )  # fmt: skip
    _check_entries(path, archive.infolist())

    def whole(name: str) -> bytes:
        return _part(path, archive, name, 0, entries[name].file_size)

    if f"{root}byteorder" in entries:
        order = whole(f"{root}byteorder")
        if order != b"little":
            raise checks.refuse(
                NotImplementedError, str(path), "byte order little", order,
                "save it again on a little-endian machine",
            )  # fmt: skip

    def locate(storages: dict[str, Storage]) -> ReadPart:
        for key, storage in storages.items():
            entry = entries.get(f"{root}data/{key}")
            size = storage.size * storage.dtype.itemsize
            if entry is None or entry.file_size != size:
                got = "none" if entry is None else f"{entry.file_size} bytes"
                raise refusals.damaged(path, f"{size} bytes in data/{key}", got)
        return lambda storage, start, count: _part(
            path, archive, f"{root}data/{storage.key}", start, count
        )

    return pickled.load(BytesIO(whole(f"{root}{PICKLE}")), path), locate


def _check_entries(path: pathlib.Path, entries: list[zipfile.ZipInfo]) -> None:
    """Refuses entries that unpack to more than their bytes in the file."""
    size = path.stat().st_size
    for entry in entries:
        plain = entry.compress_type == zipfile.ZIP_STORED and entry.compress_size == entry.file_size
        if not plain or entry.flag_bits & 1 or entry.header_offset + entry.file_size > size:
            got = f"{entry.filename!r} compressed, encrypted or longer than the file"
            raise refusals.damaged(path, "uncompressed entries, as PyTorch writes them", got)


def _part(path: pathlib.Path, archive: zipfile.ZipFile, name: str, start: int, count: int) -> bytes:
    """Reads `count` bytes of an entry; reading all of one compares its checksum too."""
    try:
        with archive.open(name) as file:
            if start:
                file.seek(start)
            data = file.read(count)
    except ERRORS as error:
        raise refusals.damaged(path, f"a whole entry {name!r}", error) from error
    if len(data) != count:
        raise refusals.damaged(path, f"{count} bytes of {name!r}", f"{len(data)} bytes")
    return data
