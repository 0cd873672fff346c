"""Checkpoints: exactly what was saved, or a refusal that lists the paths."""

import shutil

import jax.numpy as jnp
import numpy as np
import pytest

from train import checkpoints
from train import config as config_lib

CONFIG = config_lib.Config(name="saved", optimizer=config_lib.OptimizerConfig(learning_rate=0.1))


def layers(count, shape=(8, 2, 4), dtype=jnp.float32):
    size = int(np.prod(shape))
    return {
        f"block_{index}": {"kernel": (jnp.arange(size, dtype=dtype) + index).reshape(shape)}
        for index in range(count)
    }


@pytest.fixture
def saved(tmp_path):
    """Saves a tree as step 3 and gives a function that restores it into a target."""
    with checkpoints.Checkpoints(tmp_path / "checkpoints") as manager:

        def round_trip(state, target):
            manager.save(3, state, CONFIG)
            assert manager.latest() == 3
            return manager.restore(3, target)

        yield round_trip


def test_state_and_config_come_back(tmp_path):
    state = (jnp.int32(7), {"a": jnp.array([1.5, -2.0])}, (jnp.bfloat16(0.1), ()))
    with checkpoints.Checkpoints(tmp_path) as manager:
        assert manager.latest() is None
        manager.save(7, state, CONFIG)
    with checkpoints.Checkpoints(tmp_path) as manager:
        assert manager.latest() == 7
        assert manager.config(7) == CONFIG
        found = manager.restore(7, state)
        assert found[2][1] == () and found[2][0].dtype == jnp.bfloat16
        np.testing.assert_array_equal(found[1]["a"], state[1]["a"])
        with pytest.raises(FileNotFoundError, match=r"step: expected one of \[7\]"):
            manager.restore(8, state)


@pytest.mark.parametrize(("stored", "wanted", "side"), [(3, 2, "checkpoint"), (2, 3, "target")])
def test_another_number_of_layers_is_refused(saved, stored, wanted, side):
    with pytest.raises(ValueError, match=rf"block_2/kernel: only in the {side}"):
        saved(layers(stored), layers(wanted))


def test_another_split_into_heads_is_refused(saved):
    message = r"block_0/kernel: checkpoint float32\[8, 2, 4\], target float32\[8, 4, 2\]"
    with pytest.raises(ValueError, match=message):
        saved(layers(1), layers(1, (8, 4, 2)))


def test_another_form_is_refused_with_both_sides(saved):
    separate = {"attention": {"query": {"kernel": jnp.ones(2)}, "key": {"kernel": jnp.ones(2)}}}
    merged = {"attention": {"qk": {"kernel": jnp.ones(2)}}}
    with pytest.raises(ValueError, match=r"target: expected the tree") as refused:
        saved(separate, merged)
    for line in (
        "attention/key/kernel: only in the checkpoint",
        "attention/query/kernel: only in the checkpoint",
        "attention/qk/kernel: only in the target",
    ):
        assert line in str(refused.value)


def test_a_large_step_stays_an_integer(saved):
    # float32 cannot hold this number.
    step = {"step": jnp.int32(16777217)}
    assert int(saved(step, step)["step"]) == 16777217


@pytest.mark.parametrize("item", ["state", "config"])
def test_an_incomplete_checkpoint_is_refused_by_its_folder(tmp_path, item):
    with checkpoints.Checkpoints(tmp_path) as manager:
        manager.save(3, layers(1), CONFIG)
    shutil.rmtree(tmp_path / "3" / item)
    message = rf"checkpoint {tmp_path / '3'}: expected .*, got none named {item}; delete"
    with checkpoints.Checkpoints(tmp_path) as manager:
        for call in (lambda: manager.restore(3, layers(1)), lambda: manager.config(3)):
            with pytest.raises(ValueError, match=message):
                call()


def test_another_dtype_is_refused(saved):
    with pytest.raises(ValueError, match=r"step: checkpoint int32\[\], target float32\[\]"):
        saved({"step": jnp.int32(16777217)}, {"step": jnp.float32(0)})


def test_a_narrow_checkpoint_is_not_widened(saved):
    with pytest.raises(ValueError, match=r"checkpoint bfloat16\[8, 2, 4\], target float32"):
        saved(layers(1, dtype=jnp.bfloat16), layers(1))
