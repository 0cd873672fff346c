"""The comparison: every form with every seed, in paired runs that are never repeated."""

import collections.abc
import dataclasses
import functools
import itertools
import pathlib
import typing

from train import config as config_lib
from train import loop, parallel, progress, results


def run_config(config: config_lib.Config, form: config_lib.Form, seed: int) -> config_lib.Config:
    """The settings of one run: only form and seed differ from the comparison's."""
    model = dataclasses.replace(config.model, form=form)
    return dataclasses.replace(config, model=model, run=dataclasses.replace(config.run, seed=seed))


def run_directory(runs: pathlib.Path, config: config_lib.Config) -> pathlib.Path:
    """Where a run's files are: RUNS/NAME/FORM-seedN."""
    return runs / config.name / f"{config.model.form}-seed{config.run.seed}"


def finished(directory: pathlib.Path) -> dict[str, typing.Any] | None:
    """The result of a finished run, or None."""
    path = directory / "result.json"
    return results.read_result(path) if path.is_file() else None


def run(
    config: config_lib.Config,
    runs: pathlib.Path,
    say: progress.Say = print,
) -> list[dict[str, typing.Any]]:
    """Trains what is missing of the comparison.

    The seeds of a form share its compiled steps. A seed draws the same initial numbers and the
    same batches for all forms, so that differences between forms are paired.

    Args:
      config: the comparison; its study section lists forms and seeds.
      runs: the folder of all experiments.
      say: where lines for the reader go.

    Returns:
      The results, form by form.

    Raises:
      ValueError: a stored run has another config; names the fields.
    """
    # Every form is checked before the first run takes its minutes.
    forms = {
        form: [run_config(config, form, seed) for seed in config.study.seeds]
        for form in config.study.forms
    }
    for setting in itertools.chain.from_iterable(forms.values()):
        loop.refuse_other_config(setting, run_directory(runs, setting))
    # Both are made when a run first needs them, and kept for the next.
    texts = functools.cache(functools.partial(loop.load_texts, config.data))
    found = []
    for settings in forms.values():
        program = functools.cache(functools.partial(parallel.Program, settings[0]))
        found += [_finish(setting, runs, program, texts, say) for setting in settings]
    return found


def run_one(
    config: config_lib.Config, runs: pathlib.Path, say: progress.Say = print
) -> dict[str, typing.Any]:
    """Trains one run, of model.form and run.seed, where the comparison would put it."""
    program = functools.partial(parallel.Program, config)
    return _finish(config, runs, program, functools.partial(loop.load_texts, config.data), say)


def _finish(
    config: config_lib.Config,
    runs: pathlib.Path,
    program: collections.abc.Callable[[], parallel.Program],
    texts: collections.abc.Callable[[], loop.Texts],
    say: progress.Say,
) -> dict[str, typing.Any]:
    directory = run_directory(runs, config)
    loop.refuse_other_config(config, directory)
    result = finished(directory)
    if result is not None:
        say(f"{directory}: finished before, kept")
        return result
    result = loop.run(config, directory, program=program(), texts=texts(), say=say)
    say(
        f"{directory}: {result['held_out_nats_per_byte']:.4f} held-out nats/byte "
        f"after {result['seconds']:.0f} s of training"
    )
    return result
