"""Command line: train and compare the forms, or write the report of finished runs."""

import argparse
import collections.abc
import pathlib
import sys

from train import config as config_lib
from train import config_files, overrides

USAGE = """python -m train CONFIG [name=value ...]       train every form and seed, then report
       python -m train run CONFIG [name=value ...]   train one run (model.form, run.seed)
       python -m train report RUNS/NAME              report finished runs; needs no device
       python -m train generate RUNS/NAME/FORM-seedN --prompt TEXT   text from a trained model"""

DESCRIPTION = """Compares separate, merged and raw attention with paired seeds.

A finished run is never repeated and an interrupted one continues, so the same command can be
given again. Every setting can be changed: optimizer.steps=200 model.use_bias=False
study.seeds=0,1,2,3,4; a wrong name is answered with the list of all names."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m train",
        usage=USAGE,
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "command", metavar="CONFIG | run | report | generate", help="a config file, or a command"
    )
    parser.add_argument(
        "arguments", nargs="*", metavar="...", help="overrides, or the command's own"
    )
    parser.add_argument(
        "--runs", default="runs", metavar="DIR", help="folder of all experiments (default: runs)"
    )
    return parser


def _load(arguments: collections.abc.Sequence[str]) -> config_lib.Config:
    path, *settings = arguments
    return overrides.apply(config_files.load(path), settings)


def _report(arguments: collections.abc.Sequence[str]) -> None:
    if len(arguments) != 1:
        raise ValueError(f"report: expected one folder RUNS/NAME, got {len(arguments)}; give one")
    # Imported where used: a report needs no JAX, training no plotting.
    from train import report

    report.write(pathlib.Path(arguments[0]))


def _run(arguments: collections.abc.Sequence[str], runs: pathlib.Path) -> None:
    if not arguments:
        raise ValueError("run: expected a config file, got none; give its path")
    config = _load(arguments)
    from train import study

    study.run_one(config, runs)


def _compare(arguments: collections.abc.Sequence[str], runs: pathlib.Path) -> None:
    config = _load(arguments)
    from train import report, study

    study.run(config, runs)
    report.write(runs / config.name)


def _dispatch(arguments: collections.abc.Sequence[str]) -> None:
    if arguments[:1] == ["generate"]:
        from train import generate

        # Its options are its own.
        generate.write(arguments[1:])
        return
    parsed = _parser().parse_intermixed_args(arguments)
    runs = pathlib.Path(parsed.runs)
    if parsed.command == "report":
        _report(parsed.arguments)
    elif parsed.command == "run":
        _run(parsed.arguments, runs)
    else:
        _compare([parsed.command, *parsed.arguments], runs)


def main(arguments: collections.abc.Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit code, 1 with one line for what the user can mend."""
    try:
        _dispatch(sys.argv[1:] if arguments is None else [*arguments])
    except (ValueError, TypeError, NotImplementedError, OSError, FloatingPointError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: give the same command again to continue", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
