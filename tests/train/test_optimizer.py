"""The optimizer: the schedule by formula, AdamW by NumPy, decay on kernels only."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from train import config as config_lib
from train import optimizer, start

SETTINGS = config_lib.OptimizerConfig(
    learning_rate=1.0, steps=10, warmup_steps=2, final_fraction=0.0, clip_norm=None
)


def test_the_schedule_by_step():
    expected = [0, 0.5, 1, 0.961940, 0.853553, 0.691342, 0.5, 0.308658, 0.146447, 0.038060]
    found = [float(optimizer.schedule(SETTINGS)(step)) for step in range(10)]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_the_schedule_ends_at_its_fraction():
    settings = dataclasses.replace(SETTINGS, final_fraction=0.25, warmup_steps=0)
    schedule = optimizer.schedule(settings)
    assert float(schedule(0)) == 1.0
    assert float(schedule(10)) == pytest.approx(0.25)


def numpy_adamw(params, gradients, settings, decayed):
    """Textbook AdamW with global-norm clipping."""
    params = {name: value.copy() for name, value in params.items()}
    first = {name: np.zeros_like(value) for name, value in params.items()}
    second = {name: np.zeros_like(value) for name, value in params.items()}
    for step, gradient in enumerate(gradients):
        norm = np.sqrt(sum((value**2).sum() for value in gradient.values()))
        scale = min(1.0, settings.clip_norm / norm)
        rate = float(optimizer.schedule(settings)(step))
        for name, value in gradient.items():
            first[name] = settings.b1 * first[name] + (1 - settings.b1) * scale * value
            second[name] = settings.b2 * second[name] + (1 - settings.b2) * (scale * value) ** 2
            mean = first[name] / (1 - settings.b1 ** (step + 1))
            square = second[name] / (1 - settings.b2 ** (step + 1))
            update = mean / (np.sqrt(square) + settings.eps)
            update = update + (settings.weight_decay * params[name] if name in decayed else 0)
            params[name] = params[name] - rate * update
    return params


def test_against_numpy_adamw():
    settings = dataclasses.replace(SETTINGS, weight_decay=0.3, clip_norm=1.5, learning_rate=0.1)
    params = {"kernel": np.array([1.0, -2.0]), "bias": np.array([0.5])}
    generator = np.random.default_rng(0)
    gradients = [
        {name: generator.normal(size=value.shape) * 2 for name, value in params.items()}
        for _ in range(5)
    ]
    transformation = optimizer.build(settings)
    found = jax.tree.map(jnp.float32, params)
    state = transformation.init(found)
    for gradient in gradients:
        updates, state = transformation.update(jax.tree.map(jnp.float32, gradient), state, found)
        found = optax.apply_updates(found, updates)
    expected = numpy_adamw(params, gradients, settings, {"kernel"})
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=2e-6)
    without = numpy_adamw(params, gradients, settings, set())
    assert np.abs(without["kernel"] - expected["kernel"]).max() > 1e-3


@pytest.mark.parametrize("form", config_lib.FORMS)
def test_decay_acts_on_kernels_and_embeddings(form):
    params = start.abstract_params(config_lib.ModelConfig(form=form))
    mask = optimizer.decay_mask(params)
    assert mask["embedding"]["embedding"] and mask["positions"]["embedding"]
    block = mask["block_0"]
    assert block["mlp_in"] == {"kernel": True, "bias": False}
    assert block["norm_mlp"] == {"scale": False, "bias": False}
    if form == "merged":
        assert block["attention"]["qk"] == {"kernel": True, "bias": False}
