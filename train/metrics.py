"""JSON lines: one record a line, appended; nothing damaged is passed over in silence."""

import json
import pathlib
import typing

Record = dict[str, typing.Any]


def append(path: pathlib.Path, record: Record) -> None:
    """Appends one record; NaN and infinity are refused, as JSON has none."""
    line = json.dumps(record, allow_nan=False)
    with path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def _parse(line: str) -> Record | None:
    """A complete record, or None for a torn line."""
    if not line.endswith("\n"):
        return None
    try:
        record = json.loads(line)
    except json.JSONDecodeError:
        return None
    return record if isinstance(record, dict) else None


def read(path: pathlib.Path) -> list[Record]:
    """All records of a file.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: a line is no complete record; names the line.
    """
    if not path.is_file():
        raise FileNotFoundError(f"metrics {path}: expected a file, found none; check the path")
    records = []
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            record = _parse(line)
            if record is None:
                raise ValueError(
                    f"metrics {path}: expected a JSON object with a newline on line {number}, "
                    f"got {line[:60]!r}; resume the run, or delete the line"
                )
            records.append(record)
    return records


def truncate(path: pathlib.Path, step: int) -> int:
    """Drops what an interrupted run wrote after a step, so that resuming repeats nothing.

    Args:
      path: the file; need not exist.
      step: the checkpoint's step; records of later steps and a torn last line go.

    Returns:
      How many lines were dropped, for the caller to say.

    Raises:
      ValueError: a line that is not the last is no complete record.
    """
    if not path.is_file():
        return 0
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    kept = []
    for number, line in enumerate(lines, start=1):
        record = _parse(line)
        if record is None and number < len(lines):
            raise ValueError(
                f"metrics {path}: expected a JSON object on line {number}, got {line[:60]!r}; "
                "delete the line"
            )
        if record is not None and record["step"] <= step:
            kept.append(line)
    if len(kept) < len(lines):
        replacement = path.with_suffix(".tmp")
        replacement.write_text("".join(kept), encoding="utf-8")
        replacement.replace(path)
    return len(lines) - len(kept)
