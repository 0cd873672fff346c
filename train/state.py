"""What training carries from step to step."""

import typing

import jax
import jax.numpy as jnp
import optax

from train import config as config_lib
from train import optimizer as optimizer_lib
from train import start


class State(typing.NamedTuple):
    """Step, seed, parameters and optimizer state.

    The dropout key is derived from seed and step, so nothing random has to be saved.
    """

    step: jax.Array
    seed: jax.Array
    params: start.Params
    opt_state: optax.OptState


def dropout_key(state: State) -> jax.Array:
    """The key of this step's dropout."""
    return jax.random.fold_in(jax.random.key(state.seed), state.step)


def initial_state(config: config_lib.Config, seed: int | jax.Array) -> State:
    """The state at step 0."""
    params = start.initial_params(config.model, seed)
    opt_state = optimizer_lib.build(config.optimizer).init(params)
    return State(jnp.int32(0), jnp.uint32(seed), params, opt_state)
