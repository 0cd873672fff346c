"""Checkpoints: the state with its config, restored only into exactly the same tree."""

import pathlib
import types
import typing

import jax
import numpy as np
import orbax.checkpoint as ocp

from train import config as config_lib
from train import config_files

ITEMS = types.MappingProxyType(
    {"state": ocp.StandardCheckpointHandler, "config": ocp.JsonCheckpointHandler}
)


def _named(tree: typing.Any) -> dict[str, typing.Any]:
    """Leaves by path, such as params/block_0/attention/qk/kernel."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def _describe(leaf: typing.Any) -> str:
    return f"{np.dtype(leaf.dtype).name}{list(leaf.shape)}"


def _refuse_differences(
    stored: dict[str, typing.Any], target: dict[str, typing.Any], where: str
) -> None:
    lines = [f"{name}: only in the checkpoint" for name in stored if name not in target]
    lines += [f"{name}: only in the target" for name in target if name not in stored]
    lines += [
        f"{name}: checkpoint {_describe(stored[name])}, target {_describe(leaf)}"
        for name, leaf in target.items()
        if name in stored and _describe(stored[name]) != _describe(leaf)
    ]
    if lines:
        raise ValueError(
            f"target: expected the tree, shapes and dtypes of the checkpoint {where}, got "
            f"{len(lines)} differences; restore with the config that saved it:\n  "
            + "\n  ".join(sorted(lines))
        )


class Checkpoints:
    """The checkpoints of one run; a context manager, closed on exit.

    Args:
      directory: created when missing.
      keep: how many of the newest to keep.
    """

    def __init__(self, directory: str | pathlib.Path, keep: int = 2):
        self.directory = pathlib.Path(directory).absolute()
        options = ocp.CheckpointManagerOptions(
            max_to_keep=keep, create=True, enable_async_checkpointing=False
        )
        self._manager = ocp.CheckpointManager(
            self.directory,
            # Named here, because a new process has saved nothing that would tell them.
            item_handlers={name: handler() for name, handler in ITEMS.items()},
            options=options,
        )

    def __enter__(self) -> typing.Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._manager.close()

    def latest(self) -> int | None:
        """The newest complete checkpoint's step, or None."""
        return self._manager.latest_step()

    def save(self, step: int, state: typing.Any, config: config_lib.Config) -> None:
        """Saves a state and its config as the checkpoint of a step."""
        items = ocp.args.Composite(
            state=ocp.args.StandardSave(_named(state)),
            config=ocp.args.JsonSave({"json": config_files.to_json(config)}),
        )
        self._manager.save(step, args=items)

    def config(self, step: int) -> config_lib.Config:
        """The config saved with a step."""
        items = ocp.args.Composite(config=ocp.args.JsonRestore())
        return config_files.from_json(self._restore(step, items).config["json"])

    def restore(self, step: int, target: typing.Any) -> typing.Any:
        """Restores a state.

        Args:
          step: a saved step.
          target: a tree of arrays or shapes, as `jax.eval_shape` gives it.

        Returns:
          The saved arrays in the target's structure.

        Raises:
          FileNotFoundError: there is no such checkpoint.
          ValueError: the checkpoint is incomplete, or tree, shapes or dtypes differ from its own;
            lists the paths.
        """
        named = _named(target)
        stored = dict(self._metadata(step))
        _refuse_differences(stored, named, str(self.directory / str(step)))
        device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        abstract = {
            name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=device)
            for name, leaf in named.items()
        }
        items = ocp.args.Composite(state=ocp.args.StandardRestore(abstract))
        restored = self._restore(step, items).state
        structure = jax.tree.structure(target)
        return jax.tree.unflatten(structure, [restored[name] for name in named])

    def _check_step(self, step: int) -> None:
        steps = list(self._manager.all_steps())
        if step not in steps:
            raise FileNotFoundError(
                f"step: expected one of {steps} saved in {self.directory}, got {step}; "
                "choose a saved step"
            )
        folder = self.directory / str(step)
        missing = [name for name in ITEMS if not (folder / name).is_dir()]
        if missing:
            raise ValueError(
                f"checkpoint {folder}: expected folders {' and '.join(ITEMS)}, got none named "
                f"{' and '.join(missing)}; delete {folder}: the run continues from an earlier step "
                "or starts again"
            )

    def _metadata(self, step: int) -> typing.Any:
        self._check_step(step)
        return self._manager.item_metadata(step)["state"]

    def _restore(self, step: int, items: typing.Any) -> typing.Any:
        self._check_step(step)
        return self._manager.restore(step, args=items)
