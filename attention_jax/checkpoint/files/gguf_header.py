"""The header of a GGUF file: metadata, and where each tensor lies.

The package `gguf` has a reader too, but it trusts the counts in the file: one forged length keeps
it busy for ever.
"""

import dataclasses
import mmap
import pathlib
import struct
from typing import Any

from attention_jax import checks
from attention_jax.checkpoint.files import refusals

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT = 32
MOST_AXES = 4
SCALARS = dict(enumerate("BbHhIif?")) | dict(enumerate("Qqd", start=10))
STRING, ARRAY = 8, 9


@dataclasses.dataclass(frozen=True)
class Place:
    """A tensor's entry in the header.

    Attributes:
      shape: Its shape as NumPy counts: rows outside, the innermost axis last.
      kind: Number of its storage type.
      start: Where its bytes start, counted from `Header.start`.
    """

    shape: tuple[int, ...]
    kind: int
    start: int


@dataclasses.dataclass(frozen=True)
class Header:
    """All of a GGUF file but the tensors' bytes.

    Attributes:
      metadata: Settings by key, as plain Python values.
      places: Tensors by name.
      alignment: Each tensor starts at a multiple of so many bytes.
      start: Where the bytes of the first tensor start.
    """

    metadata: dict[str, Any]
    places: dict[str, Place]
    alignment: int
    start: int


def read(path: pathlib.Path) -> Header:
    """Reads the header of the GGUF file at `path`; raises ValueError where it is not whole."""
    with path.open("rb") as file:
        # An empty file cannot be mapped.
        if file.read(len(MAGIC)) != MAGIC:
            raise refusals.damaged(path, "a GGUF file", f"one that does not start with {MAGIC!r}")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _header(_Cursor(path, data, len(MAGIC)))


class _Cursor:
    """Reads numbers and strings one after the other, and never past the end."""

    def __init__(self, path: pathlib.Path, data: mmap.mmap, position: int) -> None:
        self.path = path
        self.data = data
        self.position = position

    def damaged(self, got: object) -> Exception:
        return refusals.damaged(self.path, "a whole GGUF file", got)

    def take(self, count: int) -> bytes:
        left = len(self.data) - self.position
        if count > left:
            raise self.damaged(f"{left} bytes where {count} are announced, at {self.position}")
        self.position += count
        return self.data[self.position - count : self.position]

    def numbers(self, code: str, count: int) -> list[Any]:
        size = struct.calcsize(f"<{code}")
        # In this order, so that a forged count never reaches `struct`.
        taken = self.take(size * count)
        return list(struct.unpack(f"<{count}{code}", taken))

    def number(self, code: str) -> Any:
        return self.numbers(code, 1)[0]

    def string(self) -> str:
        text = self.take(self.number("Q"))
        try:
            return text.decode()
        except UnicodeDecodeError as error:
            raise self.damaged(f"a string that is not UTF-8, before {self.position}") from error

    def value(self, kind: int) -> Any:
        if kind == ARRAY:
            kind, count = self.number("I"), self.number("Q")
            if kind == STRING:
                return [self.string() for _ in range(count)]
            if kind in SCALARS:
                return self.numbers(SCALARS[kind], count)
        elif kind == STRING:
            return self.string()
        elif kind in SCALARS:
            return self.number(SCALARS[kind])
        raise self.damaged(f"a value of unknown type {kind}, at {self.position}")


def _header(cursor: _Cursor) -> Header:
    version = cursor.number("I")
    if version not in VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS
        raise checks.refuse(
            NotImplementedError, str(cursor.path), "a little-endian GGUF file of version 2 or 3",
            "a big-endian one" if swapped else f"version {version}",
            "convert it with the tools of the package gguf",
        )  # fmt: skip
    tensors, settings = cursor.number("Q"), cursor.number("Q")
    metadata: dict[str, Any] = {}
    for _ in range(settings):
        key = cursor.string()
        value = cursor.value(cursor.number("I"))
        if key in metadata:
            raise cursor.damaged(f"{key!r} twice")
        metadata[key] = value
    places: dict[str, Place] = {}
    for _ in range(tensors):
        name = cursor.string()
        axes = cursor.number("I")
        if name in places or axes > MOST_AXES:
            raise cursor.damaged(f"tensor {name!r} twice, or with {axes} axes")
        shape = tuple(reversed(cursor.numbers("Q", axes)))
        places[name] = Place(shape, cursor.number("I"), cursor.number("Q"))
    alignment = metadata.get("general.alignment", ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise cursor.damaged(f"general.alignment = {alignment!r}, which is no power of two")
    return Header(metadata, places, alignment, aligned(cursor.position, alignment))


def aligned(position: int, alignment: int) -> int:
    """Returns the first multiple of `alignment` that is not below `position`."""
    return -(-position // alignment) * alignment
