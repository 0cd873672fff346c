"""Three ways to run the same step: on one device, over a data mesh, and with pmap."""

import functools
import typing

import jax
import jax.numpy as jnp
import numpy as np

from train import config as config_lib
from train import data, start
from train import state as state_lib
from train import step as step_lib

AXIS = "data"


def _devices(config: config_lib.Config) -> list[jax.Device]:
    available = jax.devices()
    wanted = config.run.devices
    if config.run.parallel == "jit":
        return available[:1]
    if wanted is not None and wanted > len(available):
        raise ValueError(
            f"run.devices: expected at most {len(available)}, got {wanted}; "
            "use fewer, or simulate more with the setting jax_num_cpu_devices"
        )
    devices = available[:wanted]
    if config.data.batch_size % len(devices):
        raise ValueError(
            f"data.batch_size: expected a multiple of {len(devices)} devices, "
            f"got {config.data.batch_size}; change it or set run.devices"
        )
    return devices


class Program:
    """The compiled steps of one config, shared by all its seeds.

    Training calls take batches `[N, B, T]` and make N steps; the state stays on the devices.
    """

    def __init__(self, config: config_lib.Config):
        self.config = config
        self._devices = _devices(config)
        # Not jitted: the random draws compile once for all forms, leaf shape by leaf shape.
        self._init = functools.partial(state_lib.initial_state, config)
        if config.run.parallel == "pmap":
            step = step_lib.build_train_step(config, AXIS)
            self._train = jax.pmap(
                functools.partial(step_lib.train_steps, step),
                axis_name=AXIS,
                devices=self._devices,
                donate_argnums=0,
            )
        else:
            step = step_lib.build_train_step(config)
            self._train = jax.jit(functools.partial(step_lib.train_steps, step), donate_argnums=0)
        self._compiled: dict[int, typing.Any] = {}
        self._eval = jax.jit(functools.partial(step_lib.eval_steps, config.model))
        mesh = jax.make_mesh(
            (len(self._devices),),
            (AXIS,),
            axis_types=(jax.sharding.AxisType.Auto,),
            devices=self._devices,
        )
        spec = jax.sharding.PartitionSpec
        self._replicated = jax.sharding.NamedSharding(mesh, spec())
        self._split = jax.sharding.NamedSharding(mesh, spec(None, AXIS))

    @property
    def _is_pmap(self) -> bool:
        return self.config.run.parallel == "pmap"

    def initial_state(self, seed: int) -> state_lib.State:
        """The state at step 0, placed on the devices."""
        return self.place(self._init(seed))

    def abstract_state(self) -> state_lib.State:
        """Shapes and dtypes of one copy of the state."""
        return jax.eval_shape(self._init, 0)

    def place(self, state: state_lib.State) -> state_lib.State:
        """One copy of the state onto the devices, as training calls take it."""
        if self._is_pmap:
            count = len(self._devices)
            state = jax.tree.map(lambda leaf: jnp.stack([leaf] * count), state)
            return jax.device_put(state, self._leading())
        return jax.device_put(state, self._replicated)

    def single(self, state: state_lib.State) -> state_lib.State:
        """One copy of the state out of what training calls return."""
        return jax.tree.map(lambda leaf: leaf[0], state) if self._is_pmap else state

    def _leading(self) -> jax.sharding.NamedSharding:
        spec = jax.sharding.PartitionSpec(AXIS)
        return jax.sharding.NamedSharding(self._replicated.mesh, spec)

    def prepare(self, state: state_lib.State, batches: data.Batch) -> None:
        """Compiles the training call for batches of this shape, without running it."""
        count = len(batches["tokens"])
        if count not in self._compiled:
            lowered = self._train.lower(state, self._place_batches(batches))
            self._compiled[count] = lowered.compile()

    def train(
        self, state: state_lib.State, batches: data.Batch
    ) -> tuple[state_lib.State, step_lib.Metrics]:
        """N steps on batches `[N, B, T]`; consumes the state, returns metrics `[N]`."""
        self.prepare(state, batches)
        call = self._compiled[len(batches["tokens"])]
        state, metrics = call(state, self._place_batches(batches))
        return state, jax.tree.map(lambda leaf: leaf[0], metrics) if self._is_pmap else metrics

    def _place_batches(self, batches: data.Batch) -> typing.Any:
        return self._deal(batches) if self._is_pmap else jax.device_put(batches, self._split)

    def _deal(self, batches: data.Batch) -> typing.Any:
        count = len(self._devices)
        dealt = {
            name: np.moveaxis(array.reshape(array.shape[0], count, -1, *array.shape[2:]), 1, 0)
            for name, array in batches.items()
        }
        return jax.device_put(dealt, self._leading())

    def evaluate(self, params: start.Params, batches: data.Batch) -> step_lib.LossSum:
        """Loss sum and count over batches `[N, B, T]`, for one copy of the parameters."""
        placed = jax.device_put(params, self._replicated)
        return self._eval(placed, jax.device_put(batches, self._split))
