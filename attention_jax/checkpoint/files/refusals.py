"""What the readers of files say when they refuse one."""

import importlib
import pathlib
import types
from collections.abc import Iterable

from attention_jax import checks

SHOWN = 8


def damaged(path: pathlib.Path, expected: str, got: object) -> Exception:
    """Returns a ValueError for a file that is not what its name or its own header says."""
    remedy = "download or save the file again, and compare its size with the original's"
    return checks.refuse(ValueError, str(path), expected, got, remedy)


def absent(path: pathlib.Path, expected: str, got: object) -> Exception:
    """Returns a FileNotFoundError."""
    remedy = "check the path, and download what is missing"
    return checks.refuse(FileNotFoundError, str(path), expected, got, remedy)


def listing(names: Iterable[object]) -> str:
    """Returns names in quotes, the first few of a long list and how many more there are."""
    quoted = [repr(name) for name in names]
    more = f" and {len(quoted) - SHOWN} more" if len(quoted) > SHOWN else ""
    return ", ".join(quoted[:SHOWN]) + more


def package(name: str) -> types.ModuleType:
    """Imports an optional package; raises ImportError with the command that installs it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise checks.refuse(
            ImportError, name, "this package, which reads such files", error,
            'pip install "attention-jax[checkpoints]"',
        ) from error  # fmt: skip
