"""JSON lines: one record a line, appended; nothing damaged is passed over in silence."""

import collections.abc
import json
import pathlib
import typing

from train import files

Record = dict[str, typing.Any]


def append(path: pathlib.Path, record: Record) -> None:
    """Appends one record; NaN and infinity are refused, as JSON has none."""
    line = json.dumps(record, allow_nan=False)
    with path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def _parse(line: str) -> Record | None:
    """A complete record with its kind and step, or None for a torn or damaged line."""
    if not line.endswith("\n"):
        return None
    try:
        record = json.loads(line)
    except json.JSONDecodeError:
        return None
    if not isinstance(record, dict):
        return None
    named = isinstance(record.get("kind"), str) and type(record.get("step")) is int
    return record if named else None


def _damaged(path: pathlib.Path, number: int, line: str, remedy: str) -> str:
    return (
        f"metrics {path}: expected a JSON object with kind and step and a newline on line "
        f"{number}, got {line[:60]!r}; {remedy}"
    )


def read(path: pathlib.Path) -> list[Record]:
    """All records of a file.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: a line is no complete record; names the line.
    """
    if not path.is_file():
        raise FileNotFoundError(f"metrics {path}: expected a file, got none; check the path")
    records = []
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            record = _parse(line)
            if record is None:
                remedy = "resume the run, or delete the line"
                raise ValueError(_damaged(path, number, line, remedy))
            records.append(record)
    return records


def last(records: collections.abc.Sequence[Record], kind: str, path: pathlib.Path) -> Record:
    """The newest record of a kind; without one, a ValueError names the file."""
    for record in reversed(records):
        if record["kind"] == kind:
            return record
    raise ValueError(
        f"metrics {path}: expected a record of kind {kind!r}, got {len(records)} records without "
        "one; delete the run's folder and train it again"
    )


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
            raise ValueError(_damaged(path, number, line, "delete the line"))
        if record is not None and record["step"] <= step:
            kept.append(line)
    if len(kept) < len(lines):
        files.write(path, "".join(kept))
    return len(lines) - len(kept)
