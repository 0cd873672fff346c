"""The command: arguments, progress, tables, exit codes."""

import argparse
import collections.abc
import json
import pathlib
import sys

import rich.box
import rich.console
import rich.progress
import rich.table

from attention_jax.inspect import page, tables
from attention_jax.inspect.inspection import Inspection, inspect

DESCRIPTION = """Prints rank, stable rank, effective rank, symmetry, norm and the rank at 1% error
of W_qk and W_ov of every head of a published checkpoint, and writes figures and a page."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m attention_jax.inspect", description=DESCRIPTION
    )
    parser.add_argument(
        "path",
        help="a folder with config.json and weights (safetensors or torch), a file of weights "
        "beside its config.json, or a GGUF file",
    )
    parser.add_argument("--text", help="what truncation is measured on, instead of a novel")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument(
        "--out",
        metavar="DIR",
        help="folder of the files (default: inspections/ and the end of PATH)",
    )
    return parser


class _Bar:
    """Progress on standard error, where it does not mix with JSON."""

    def __init__(self) -> None:
        self._progress = rich.progress.Progress(
            rich.progress.TextColumn("{task.description}"),
            rich.progress.BarColumn(),
            rich.progress.MofNCompleteColumn(),
            console=rich.console.Console(stderr=True),
            transient=True,
        )
        self._tasks: dict[str, rich.progress.TaskID] = {}

    def __enter__(self) -> "_Bar":
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def update(self, what: str, done: int, total: int) -> None:
        if what not in self._tasks:
            self._tasks[what] = self._progress.add_task(what, total=total)
        self._progress.update(self._tasks[what], completed=done)


def _print(found: Inspection) -> None:
    # Without a terminal a table would be folded to 80 columns.
    console = rich.console.Console()
    wide = rich.console.Console(width=max(console.width, 150), highlight=False)
    layers = range(len(found.layers))
    wide.print(_table(tables.HEADING, [tables.heads(found, layer) for layer in layers]))
    wide.print("Means over heads:")
    heading, *means = tables.layer_means(found)
    wide.print(_table(heading, [means]))
    for sentence in tables.facts(found):
        wide.print(sentence, markup=False)


def _table(heading: list[str], sections: list[tables.Table]) -> rich.table.Table:
    table = rich.table.Table(box=rich.box.SIMPLE_HEAD)
    for name in heading:
        table.add_column(name, justify="right")
    for rows in sections:
        for row in rows:
            table.add_row(*row)
        table.add_section()
    return table


def main(arguments: collections.abc.Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code, 1 with one line for what the user can mend."""
    parsed = _parser().parse_args(arguments)
    # Many a checkpoint's own folder is called "model".
    last = pathlib.Path(parsed.path).resolve().parts[-2:]
    folder = pathlib.Path(parsed.out or pathlib.Path("inspections", *last))
    try:
        with _Bar() as bar:
            found = inspect(parsed.path, text=parsed.text, progress=bar.update)
            paths = page.write(found, folder, bar.update)
    except (ValueError, TypeError, NotImplementedError, OSError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    if parsed.json:
        json.dump(found.to_json(), sys.stdout, allow_nan=False)
        print()
    else:
        _print(found)
        print(f"written: {paths[-1]}, inspection.json and {len(paths) - 2} figures beside it")
    return 0
