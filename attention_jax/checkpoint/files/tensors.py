"""Tensors in files, read one at a time."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from attention_jax import checks


@dataclasses.dataclass(frozen=True, eq=False)
class Stored:
    """A tensor that lies in a file.

    Attributes:
      shape: Its shape.
      dtype: Its dtype once read.
      read: Reads it.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[], np.ndarray]


class Tensors(Mapping[str, np.ndarray]):
    """Tensors by name; indexing reads one from its file, each time anew.

    Example:
      >>> weight = Stored((2,), np.dtype(np.float32), lambda: np.ones(2, np.float32))
      >>> tensors = Tensors({"weight": weight})
      >>> tensors.shape("weight"), tensors["weight"]
      ((2,), array([1., 1.], dtype=float32))
    """

    def __init__(self, stored: Mapping[str, Stored]) -> None:
        """Takes what is in the file, under each tensor's name."""
        self._stored = dict(stored)

    def __getitem__(self, name: str) -> np.ndarray:
        """Reads the tensor `name`; raises KeyError for another name."""
        return self._stored[name].read()

    def __iter__(self) -> Iterator[str]:
        """Iterates over the names in the order of the file."""
        return iter(self._stored)

    def __len__(self) -> int:
        """Returns the number of tensors."""
        return len(self._stored)

    def __contains__(self, name: object) -> bool:
        """Tells whether there is a tensor `name`, without reading it."""
        return name in self._stored

    def __repr__(self) -> str:
        """Returns a short description; the tensors stay unread."""
        return f"Tensors({len(self)} tensors)"

    def without_prefix(self, prefix: str) -> "Tensors":
        """Returns the same tensors with `prefix` removed from the names that start with it.

        Raises:
          ValueError: Two names would become one.
        """
        names = {name: name.removeprefix(prefix) for name in self._stored}
        if len(set(names.values())) < len(names):
            twice = sorted(name for name, short in names.items() if name != short in names)
            raise checks.refuse(
                ValueError,
                "tensors",
                f"each once, with or without {prefix!r}",
                f"both of {', '.join(twice)}",
                "keep one of the two",
            )
        return Tensors({short: self._stored[name] for name, short in names.items()})

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns the shape of the tensor `name` without reading it."""
        return self._stored[name].shape

    def dtype(self, name: str) -> np.dtype:
        """Returns the dtype that the tensor `name` has once read, without reading it."""
        return self._stored[name].dtype
