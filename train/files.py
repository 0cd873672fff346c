"""Files that are whole or absent, whenever the program stops."""

import pathlib


def write(path: pathlib.Path, text: str) -> None:
    """Writes a file beside its place and moves it there, so that no reader meets a half of it."""
    partial = path.with_name(f"{path.name}.tmp")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
