"""The training and evaluation steps: pure functions of state and batch."""

import collections.abc
import typing

import jax
import jax.numpy as jnp
import optax

from train import config as config_lib
from train import model as model_lib
from train import optimizer as optimizer_lib
from train import start
from train import state as state_lib

Batch = collections.abc.Mapping[str, jax.Array]
Metrics = dict[str, jax.Array]
StepFn = collections.abc.Callable[[state_lib.State, Batch], tuple[state_lib.State, Metrics]]


class LossSum(typing.NamedTuple):
    """A sum of losses in nats and the sum of their weights; sums add up across devices."""

    loss: jax.Array
    tokens: jax.Array

    def mean(self) -> jax.Array:
        """Loss per counted token, 0 where nothing counts."""
        return self.loss / jnp.where(self.tokens > 0, self.tokens, 1)


def weighted_loss(logits: jax.Array, targets: jax.Array, weights: jax.Array) -> LossSum:
    """Cross entropies of `logits` `[B, T, V]` at `targets`, summed where `weights` `[B, T]`."""
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
    # A where, not a product: what does not count may be infinite.
    return LossSum(jnp.sum(jnp.where(weights > 0, losses * weights, 0.0)), jnp.sum(weights))


def model_loss(
    config: config_lib.ModelConfig,
    params: start.Params,
    batch: Batch,
    dropout_key: jax.Array | None = None,
) -> LossSum:
    """The model's loss on a batch; without a key, dropout is off."""
    logits = model_lib.Decoder(config).apply(
        {"params": params},
        batch["tokens"],
        deterministic=dropout_key is None,
        rngs=None if dropout_key is None else {"dropout": dropout_key},
    )
    return weighted_loss(typing.cast(jax.Array, logits), batch["targets"], batch["weights"])


def build_train_step(config: config_lib.Config, axis_name: str | None = None) -> StepFn:
    """Builds the step that updates the state on one batch.

    The gradient is that of (sum of losses) / (sum of counts) over the global batch: sums are added
    across devices before the division, so unequal padding does not change the objective.

    Args:
      config: model, optimizer and dropout.
      axis_name: under pmap, the axis that devices are mapped over; dropout then differs by device.

    Returns:
      A pure function of state and batch that returns the new state and the metrics loss, tokens,
      gradient_norm and learning_rate.
    """
    optimizer = optimizer_lib.build(config.optimizer)
    schedule = optimizer_lib.schedule(config.optimizer)

    def train_step(state: state_lib.State, batch: Batch) -> tuple[state_lib.State, Metrics]:
        key = state_lib.dropout_key(state) if config.model.dropout_rate else None
        if key is not None and axis_name is not None:
            key = jax.random.fold_in(key, jax.lax.axis_index(axis_name))

        def loss_sum(params: start.Params) -> tuple[jax.Array, LossSum]:
            sums = model_loss(config.model, params, batch, key)
            return sums.loss, sums

        gradients, sums = jax.grad(loss_sum, has_aux=True)(state.params)
        if axis_name is not None:
            gradients, sums = jax.lax.psum((gradients, sums), axis_name)
        count = jnp.where(sums.tokens > 0, sums.tokens, 1)
        gradients = jax.tree.map(lambda leaf: leaf / count.astype(leaf.dtype), gradients)
        updates, opt_state = optimizer.update(gradients, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        metrics = {
            "loss": sums.mean(),
            "tokens": sums.tokens,
            "gradient_norm": optax.tree.norm(gradients),
            "learning_rate": schedule(state.step),
        }
        return state_lib.State(state.step + 1, state.seed, params, opt_state), metrics

    return train_step


def train_steps(
    train_step: StepFn, state: state_lib.State, batches: Batch
) -> tuple[state_lib.State, Metrics]:
    """Several steps in one call: batches `[N, B, T]`, metrics `[N]`."""
    return jax.lax.scan(train_step, state, batches)


def eval_step(config: config_lib.ModelConfig, params: start.Params, batch: Batch) -> LossSum:
    """Loss sum and count of one batch, without dropout."""
    return model_loss(config, params, batch)


def eval_steps(config: config_lib.ModelConfig, params: start.Params, batches: Batch) -> LossSum:
    """Loss sum and count over batches `[N, B, T]`."""

    def add(total: LossSum, batch: Batch) -> tuple[LossSum, None]:
        return jax.tree.map(jnp.add, total, eval_step(config, params, batch)), None

    zero = jnp.zeros((), jnp.promote_types(jnp.float32, config.dtype))
    return jax.lax.scan(add, LossSum(zero, jnp.zeros(())), batches)[0]
