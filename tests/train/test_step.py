"""The step: the loss of the joined batch, whatever the padding and the devices."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from train import config as config_lib
from train import parallel, start, state, step

DEVICES = 4
CONFIG = config_lib.Config(
    model=config_lib.ModelConfig(num_layers=1, width=8, num_heads=2, context=5, vocab_size=11),
    data=config_lib.DataConfig(batch_size=DEVICES * 2),
    # Plain rate 1 without clipping or warm-up: sizes of updates are visible.
    optimizer=config_lib.OptimizerConfig(
        learning_rate=1e-3, steps=10, warmup_steps=0, clip_norm=None
    ),
)


def batch_of(per_device):
    """A batch [2 devices, T] whose devices have these numbers of counted tokens."""
    generator = np.random.default_rng(7)
    tokens = generator.integers(11, size=(2 * len(per_device), 6)).astype(np.int32)
    weights = np.zeros((len(per_device), 10), np.float32)
    for device, count in enumerate(per_device):
        weights[device, :count] = 1
    return {
        "tokens": tokens[:, :-1],
        "targets": tokens[:, 1:],
        "weights": weights.reshape(-1, 5),
    }


def stacked(batch):
    return {name: array[None] for name, array in batch.items()}


@functools.cache
def program(config, kind):
    """Compiled once for all tests."""
    return parallel.Program(
        dataclasses.replace(config, run=config_lib.RunConfig(parallel=kind, devices=DEVICES))
    )


@functools.cache
def initial_arrays():
    return jax.device_get(state.initial_state(CONFIG, 0))


def initial_state():
    return jax.tree.map(jnp.array, initial_arrays())


def run(config, batches, kind):
    steps = program(config, kind)
    found, metrics = steps.train(steps.place(initial_state()), batches)
    return steps.single(found), metrics


def assert_same_gradients(found, expected):
    """The first moment after one step is (1 - b1) times the gradient.

    Parameters are no measure: Adam blows up the round-off of gradients that are zero.
    """
    moments = [optax.tree.get(reached.opt_state, "mu") for reached in (found, expected)]
    gradients = [
        jax.tree.map(lambda leaf: leaf / (1 - CONFIG.optimizer.b1), moment) for moment in moments
    ]
    assert optax.tree.norm(gradients[1]) > 1e-2
    chex.assert_trees_all_close(*gradients, atol=1e-6, rtol=1e-6)


SLOW = pytest.mark.slow
COUNTS = {"equal": (10, 10, 10, 10), "unequal": (10, 1, 3, 7), "one empty": (4, 10, 0, 3)}


@pytest.mark.parametrize(
    "kind,counts",
    [
        pytest.param(kind, counts, id=f"{kind}-{name}", marks=SLOW if name == "equal" else ())
        for kind in ("mesh", "pmap")
        for name, counts in COUNTS.items()
    ],
)
def test_many_devices_equal_one(kind, counts):
    batches = stacked(batch_of(counts))
    single, expected = run(CONFIG, batches, "jit")
    many, metrics = run(CONFIG, batches, kind)
    devices = program(CONFIG, kind).place(initial_state()).step.sharding.device_set
    assert len(devices) == DEVICES
    assert float(metrics["tokens"][0]) == sum(counts)
    for name in ("loss", "gradient_norm", "learning_rate"):
        np.testing.assert_allclose(metrics[name], expected[name], rtol=1e-6, atol=1e-6)
    assert_same_gradients(many, single)


initial_params = functools.cache(start.initial_params)
model_loss = jax.jit(step.model_loss, static_argnums=0)


def test_unequal_counts_make_a_difference():
    """The control: the mean of the devices' own means is another number."""
    batch = batch_of(COUNTS["unequal"])
    params = initial_params(CONFIG.model, 0)
    joined = model_loss(CONFIG.model, params, batch).mean()
    means = [
        model_loss(
            CONFIG.model, params, {name: array[i : i + 2] for name, array in batch.items()}
        ).mean()
        for i in range(0, 8, 2)
    ]
    assert abs(np.mean(means) - joined) > 1e-3


def loss_logits(losses):
    """Two-class logits whose cross entropy at class 0 is the given loss."""
    losses = jnp.asarray(losses, jnp.float32)
    return jnp.stack([jnp.zeros_like(losses), jnp.log(jnp.expm1(losses))], -1)


def test_c36_unequal_counts_give_1_75_not_2_5():
    # Device 0 has one token of loss 4, device 1 three of loss 1, device 2 padding only.
    logits = loss_logits([[4.0, 9.0, 9.0], [1.0, 1.0, 1.0], [9.0, 9.0, 9.0]])
    weights = jnp.array([[1.0, 0, 0], [1, 1, 1], [0, 0, 0]])
    targets = jnp.zeros((3, 3), jnp.int32)
    each = [step.weighted_loss(logits[d], targets[d], weights[d]) for d in range(3)]
    total = functools.reduce(functools.partial(jax.tree.map, jnp.add), each)
    assert float(total.mean()) == pytest.approx(1.75, abs=1e-6)
    summed = jax.pmap(
        lambda *device: jax.lax.psum(step.weighted_loss(*device), parallel.AXIS).mean(),
        axis_name=parallel.AXIS,
    )
    np.testing.assert_allclose(summed(logits, targets, weights), [1.75] * 3, atol=1e-6)
    # The mean of the devices' own means is the wrong number.
    assert float(np.mean([part.mean() for part in each[:2]])) == pytest.approx(2.5, abs=1e-6)
    assert float(each[2].loss) == 0 and float(each[2].mean()) == 0


def test_sums_of_micro_batches_give_the_joined_gradient():
    def loss_sum(scale, logits, targets, weights):
        return step.weighted_loss(logits * scale, targets, weights).loss

    logits = loss_logits([[4.0, 2.0, 3.0], [1.0, 0.5, 2.5]])
    targets = jnp.zeros((2, 3), jnp.int32)
    weights = jnp.array([[1.0, 0, 0], [1, 1, 1]])
    gradient = jax.grad(loss_sum)
    parts = sum(gradient(1.0, logits[d], targets[d], weights[d]) for d in range(2)) / 4
    assert float(parts) == pytest.approx(float(gradient(1.0, logits, targets, weights) / 4))


def test_padding_may_hold_anything():
    logits = loss_logits([[1.0, 2.0]]).at[0, 1].set(jnp.array([-jnp.inf, 0.0]))
    weights = jnp.array([[1.0, 0.0]])
    loss = step.weighted_loss(logits, jnp.zeros((1, 2), jnp.int32), weights)
    assert float(loss.mean()) == pytest.approx(1.0, abs=1e-6)


def test_an_empty_batch_changes_no_parameter_and_is_not_nan():
    found, metrics = run(CONFIG, stacked(batch_of((0, 0, 0, 0))), "jit")
    assert float(metrics["loss"][0]) == 0
    chex.assert_trees_all_equal(found.params, initial_state().params)


def test_dropout_under_a_mesh_equals_one_device():
    batches = stacked(batch_of(COUNTS["unequal"]))
    config = dataclasses.replace(CONFIG, model=dataclasses.replace(CONFIG.model, dropout_rate=0.4))
    _, dry = run(CONFIG, batches, "jit")
    single, expected = run(config, batches, "jit")
    many, metrics = run(config, batches, "mesh")
    assert abs(float(dry["loss"][0] - expected["loss"][0])) > 1e-5
    np.testing.assert_allclose(metrics["loss"], expected["loss"], rtol=1e-6)
    assert_same_gradients(many, single)


def test_dropout_differs_by_step_seed_and_pmap_device():
    keys = [
        jax.random.key_data(state.dropout_key(state.State(jnp.int32(s), jnp.uint32(seed), {}, ())))
        for s, seed in ((0, 0), (1, 0), (0, 1))
    ]
    assert len({tuple(np.asarray(key)) for key in keys}) == 3
    config = dataclasses.replace(CONFIG, model=dataclasses.replace(CONFIG.model, dropout_rate=0.4))
    batch = batch_of((10,) * DEVICES)
    same = {name: np.tile(array[:2], (DEVICES, 1)) for name, array in batch.items()}
    alone = dict(same, weights=np.where(np.arange(8)[:, None] < 2, same["weights"], 0))
    losses = [float(run(config, stacked(found), "pmap")[1]["loss"][0]) for found in (same, alone)]
    # Equal windows on every device: equal means only if all devices dropped the same weights.
    assert abs(losses[0] - losses[1]) > 1e-6


def test_several_steps_in_one_call_equal_single_calls():
    batch = batch_of(COUNTS["equal"])
    batches = {name: np.stack([array, array[::-1], array]) for name, array in batch.items()}
    together, metrics = run(CONFIG, batches, "jit")
    train_step = jax.jit(step.build_train_step(CONFIG))
    one = initial_state()
    losses = []
    for index in range(3):
        one, found = train_step(one, {name: array[index] for name, array in batches.items()})
        losses.append(found["loss"])
    np.testing.assert_allclose(metrics["loss"], losses, rtol=1e-5)
    moments = [optax.tree.get(found.opt_state, "mu") for found in (together, one)]
    chex.assert_trees_all_close(*moments, atol=1e-6)
    assert int(together.step) == 3
    # A second shape would compile again; the same shape must not.
    assert train_step._cache_size() == 1


def test_evaluation_sums_over_batches():
    batches = {
        name: np.stack([a, b])
        for (name, a), b in zip(
            batch_of((10, 2, 0, 1)).items(), batch_of((3, 3, 3, 3)).values(), strict=True
        )
    }
    params = initial_params(CONFIG.model, 0)
    total = jax.jit(step.eval_steps, static_argnums=0)(CONFIG.model, params, batches)
    eval_step = jax.jit(step.eval_step, static_argnums=0)
    parts = [
        eval_step(CONFIG.model, params, {name: a[i] for name, a in batches.items()})
        for i in range(2)
    ]
    assert float(total.tokens) == 25
    assert float(total.loss) == pytest.approx(sum(float(part.loss) for part in parts), rel=1e-6)


def test_devices_are_refused_by_name():
    for changes, message in (
        ({"run": config_lib.RunConfig(parallel="mesh", devices=99)}, r"run.devices: expected"),
        ({"run": config_lib.RunConfig(parallel="pmap", devices=3)}, r"data.batch_size: .*3 dev"),
    ):
        with pytest.raises(ValueError, match=message):
            parallel.Program(dataclasses.replace(CONFIG, **changes))
