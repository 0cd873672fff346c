"""Text from a trained model: the newest checkpoint of a run, evaluated with caches."""

import argparse
import collections.abc
import functools
import pathlib

import jax

from attention_jax.generate import Vocabulary, command
from train import checkpoints as checkpoints_lib
from train import config as config_lib
from train import model as model_lib
from train import start
from train import state as state_lib


def restore(run: pathlib.Path) -> tuple[config_lib.Config, start.Params]:
    """The settings and parameters of a run's newest checkpoint.

    Args:
      run: RUNS/NAME/FORM-seedN.

    Returns:
      `(config, params)`.

    Raises:
      FileNotFoundError: no such folder, or no checkpoint in it.
      ValueError: the checkpoint is damaged.
    """
    folder = run / "checkpoints"
    if not folder.is_dir():
        inner = sorted(path.parent.name for path in run.glob("*/checkpoints"))
        hint = f"give one of its folders: {', '.join(inner)}" if inner else "check the path"
        raise FileNotFoundError(
            f"run {run}: expected RUNS/NAME/FORM-seedN with checkpoints, got none; {hint}"
        )
    with checkpoints_lib.Checkpoints(folder) as saved:
        step = saved.latest()
        if step is None:
            raise FileNotFoundError(
                f"run {run}: expected a checkpoint, got none yet; train until the first is saved"
            )
        config = saved.config(step)
        abstract = jax.eval_shape(functools.partial(state_lib.initial_state, config), 0)
        return config, saved.restore(step, abstract).params


def write(arguments: collections.abc.Sequence[str]) -> None:
    """Prints a prompt and how the model of a run goes on."""
    parser = argparse.ArgumentParser(
        prog="python -m train generate",
        description="Lets the model of a run go on after a prompt, a byte at a time.",
    )
    parser.add_argument("run", metavar="RUNS/NAME/FORM-seedN", type=pathlib.Path)
    parser.add_argument("--prompt", metavar="TEXT", required=True)
    command.add_options(parser)
    options = parser.parse_args(arguments)
    config, params = restore(options.run)
    model = model_lib.transformer(config.model)
    command.write(model, params, options.prompt, Vocabulary.bytes(), options)
