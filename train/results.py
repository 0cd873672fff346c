"""The files of an experiment, read back: needs neither JAX nor a device."""

import dataclasses
import json
import math
import pathlib
import types
import typing

import numpy as np

from train import config as config_lib
from train import config_files, metrics

Result = dict[str, typing.Any]

# What a report needs of result.json, with its kinds.
RESULT_KINDS: types.MappingProxyType[str, type] = types.MappingProxyType(
    {
        "form": str,
        "seed": int,
        "held_out_nats_per_byte": float,
        "parameters": int,
        "attention_parameters": int,
        "train_flops": float,
        "cache_bytes_per_token": int,
        "seconds": float,
        "tokens_per_s": float,
        "spectra": dict,
    }
)


@dataclasses.dataclass(frozen=True)
class Experiment:
    """Finished runs by form and seed, their records, and the directories that are not finished."""

    name: str
    config: config_lib.Config
    results: dict[str, dict[int, Result]]
    records: dict[str, dict[int, list[metrics.Record]]]
    unfinished: list[str]

    @property
    def forms(self) -> list[str]:
        """Forms with a finished run, the baseline first."""
        return [form for form in config_lib.FORMS if form in self.results]

    def values(self, form: str, name: str) -> dict[int, float]:
        """One number of every finished run of a form, by seed."""
        return {seed: float(result[name]) for seed, result in sorted(self.results[form].items())}

    def curve(self, form: str, kind: str, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Steps `[N]` and values `[seeds, N]` of a record's number, where all seeds have it."""
        runs = [
            {record["step"]: record[name] for record in records if record["kind"] == kind}
            for _, records in sorted(self.records[form].items())
        ]
        steps = sorted(set.intersection(*[set(run) for run in runs]))
        return np.array(steps), np.array([[run[step] for step in steps] for run in runs])


def read_result(path: pathlib.Path) -> Result:
    """Reads a run's result.json; a ValueError names the file and what is wrong with it."""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise _damaged(path, "JSON", f"text that is none ({error})") from None
    if not isinstance(result, dict):
        raise _damaged(path, "a JSON object", repr(result)[:60])
    missing = [name for name in RESULT_KINDS if name not in result]
    if missing:
        raise _damaged(path, ", ".join(missing), "none")
    for name, kind in RESULT_KINDS.items():
        if not config_lib.is_kind(result[name], kind):
            expected = f"{name} of kind {config_lib.kind_name(kind)}"
            raise _damaged(path, expected, repr(result[name])[:60])
        if isinstance(result[name], float) and not math.isfinite(result[name]):
            raise _damaged(path, f"a finite {name}", repr(result[name]))
    return result


def _damaged(path: pathlib.Path, expected: str, got: str) -> ValueError:
    return ValueError(
        f"result {path}: expected {expected}, got {got}; delete the file: the run continues from "
        "its checkpoint"
    )


def read(directory: pathlib.Path) -> Experiment:
    """Reads the runs of one experiment.

    Args:
      directory: RUNS/NAME, with one folder FORM-seedN a run.

    Returns:
      What was found.

    Raises:
      FileNotFoundError: no such directory, or no run in it.
      ValueError: no run is finished, runs differ in their settings, or a file is damaged.
    """
    runs = sorted(path.parent for path in directory.glob("*-seed*/config.json"))
    if not runs:
        inner = sorted(path.name for path in directory.glob("*/") if any(path.glob("*-seed*")))
        hint = f"give one of its folders: {', '.join(inner)}" if inner else "check the path"
        raise FileNotFoundError(
            f"runs {directory}: expected folders FORM-seedN with config.json, got none; {hint}"
        )
    results: dict[str, dict[int, Result]] = {}
    records: dict[str, dict[int, list[metrics.Record]]] = {}
    unfinished: list[str] = []
    first: config_lib.Config | None = None
    for run in runs:
        if not (run / "result.json").is_file():
            unfinished.append(run.name)
            continue
        config = config_files.load(run / "config.json")
        first = first or config
        _refuse_mixture(first, config, run)
        result = read_result(run / "result.json")
        results.setdefault(result["form"], {})[result["seed"]] = result
        records.setdefault(result["form"], {})[result["seed"]] = _records(run / "metrics.jsonl")
    if first is None:
        raise ValueError(
            f"runs {directory}: expected a finished run, got only unfinished ones "
            f"({', '.join(unfinished)}); continue them with `python -m train CONFIG`"
        )
    return Experiment(directory.resolve().name, first, results, records, unfinished)


def _records(path: pathlib.Path) -> list[metrics.Record]:
    """The records of a finished run, which has both kinds."""
    records = metrics.read(path)
    for kind in ("train", "eval"):
        metrics.last(records, kind, path)
    return records


def _refuse_mixture(first: config_lib.Config, config: config_lib.Config, run: pathlib.Path) -> None:
    same = dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, form=first.model.form),
        run=dataclasses.replace(config.run, seed=first.run.seed),
    )
    lines = config_files.differences(first, same)
    if lines:
        raise ValueError(
            f"runs {run}: expected the settings of the other runs, got {'; '.join(lines)}; "
            "keep different experiments in different folders"
        )
