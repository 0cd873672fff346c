"""Dropout of the weights: on in training, off in evaluation, independent everywhere."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax.extend.random import threefry_2x32
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import attention_jax as aj
from attention_jax.core import dropout
from tests.paths import PATHS

ROWS, RATE = 4096, 0.5


def check_frequencies(values):
    for value, share in ((0.0, 0.25), (1.0, 0.5), (2.0, 0.25)):
        assert np.mean(np.abs(values - value) < 1e-6) == pytest.approx(share, abs=0.03)
    assert np.mean(values) == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_c26_on_in_training_and_off_in_evaluation(path, groups=1):
    query = np.zeros((ROWS, 1, 2, 1), np.float32)
    ones = np.ones((ROWS, 2, groups, 1), np.float32)

    def train(seed):
        return path(query, ones, ones, dropout_rate=RATE, dropout_key=jax.random.key(seed))

    trained = train(0)
    check_frequencies(trained)
    assert np.mean(trained[:, 0, 0] == trained[:, 0, 1]) < 0.6
    np.testing.assert_allclose(path(query, ones, ones), 1.0, atol=1e-6)
    np.testing.assert_array_equal(train(0), trained)
    assert np.any(train(1) != trained)
    output, weights = path(
        query, ones, ones, dropout_rate=RATE, dropout_key=jax.random.key(0), return_weights=True
    )
    np.testing.assert_array_equal(output, trained)
    np.testing.assert_allclose(weights, 0.5, atol=1e-6)


def test_c26_with_one_key_per_row():
    zero, ones = jnp.zeros((1, 1, 1)), jnp.ones((2, 1, 1))

    def row(key):
        return aj.attend(zero, ones, ones, dropout_rate=RATE, dropout_key=key)

    check_frequencies(jax.jit(jax.vmap(row))(jax.random.split(jax.random.key(0), ROWS)))


def test_dropout_of_hidden_keys_and_rows_stays_zero():
    x = jnp.ones((64, 3, 2, 1))
    mask = np.array([[1, 0, 1], [0, 0, 0], [1, 1, 1]], bool)[None, None]
    output = aj.attend(x, x, x, mask=mask, dropout_rate=0.9, dropout_key=jax.random.key(0))
    assert not np.any(output[:, 1]) and np.all(np.isfinite(output))
    assert set(np.round(np.unique(output[:, 0]), 3)) <= {0, 5, 10}


def pairwise_different(vectors):
    vectors = np.asarray(vectors).reshape(-1, vectors.shape[-1])
    return all(np.any(a != b) for a, b in itertools.combinations(vectors, 2))


def identity(batch):
    return np.broadcast_to(np.eye(64, dtype=np.float32)[None, :, None], (batch, 64, 1, 64))


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_c28_independent_across_batch_heads_and_steps(path):
    query, key = np.zeros((4, 1, 4, 1), np.float32), np.zeros((4, 64, 1, 1), np.float32)
    steps = [
        path(query, key, identity(4), dropout_rate=RATE, dropout_key=jax.random.key(i))
        for i in range(2)
    ]
    both = np.stack(steps)
    assert set(np.unique(np.round(both * 32, 5))) == {0, 1}
    assert pairwise_different(both)


class Two(nn.Module):
    """Two layers that see the same inputs, and return their own outputs."""

    scanned: bool

    @nn.compact
    def __call__(self, x):
        if not self.scanned:
            layers = [aj.RawAttention(scale=0.0, dropout_rate=RATE) for _ in range(2)]
            return jnp.stack([layer(x, deterministic=False) for layer in layers])

        def body(layer, carry, _):
            return carry, layer(carry, deterministic=False)

        scan = nn.scan(body, split_rngs={"dropout": True}, length=2)
        return scan(aj.RawAttention(scale=0.0, dropout_rate=RATE), x, None)[1]


@pytest.mark.parametrize("scanned", [False, True], ids=["listed", "scanned"])
def test_c28_independent_across_layers(scanned):
    x = jnp.broadcast_to(jnp.eye(64), (2, 64, 64))
    apply = jax.jit(Two(scanned).apply)
    first = apply({}, x, rngs={"dropout": jax.random.key(0)})
    second = apply({}, x, rngs={"dropout": jax.random.key(1)})
    assert pairwise_different(jnp.stack([first, second]))
    np.testing.assert_array_equal(first, apply({}, x, rngs={"dropout": jax.random.key(0)}))


def dropped(value, key):
    zeros = jnp.zeros((value.shape[0], 1, 4, 1))
    return aj.attend(zeros, value[..., :1] * 0, value, dropout_rate=RATE, dropout_key=key)


def test_c28_a_sharded_batch_gives_the_numbers_of_one_device():
    mesh = Mesh(np.array(jax.devices()[:2]), ("data",))
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    value, key = jnp.asarray(identity(4)), jax.random.key(0)
    sharded = jax.jit(dropped)(jax.device_put(value, sharding), key)
    assert len(sharded.devices()) == 2
    np.testing.assert_array_equal(sharded, jax.jit(dropped)(value, key))
    assert pairwise_different(sharded)


def test_c28_devices_with_their_own_keys_drop_different_weights():
    value = jnp.asarray(identity(4)).reshape(2, 2, 64, 1, 64)
    keys = jax.random.split(jax.random.key(0), 2)
    mapped = jax.pmap(dropped, devices=jax.devices()[:2])(value, keys)
    assert pairwise_different(mapped)
    alone = jax.vmap(dropped)(value, keys)
    np.testing.assert_array_equal(mapped, alone)


def test_the_random_words_are_those_of_jax():
    key = jnp.array([3, 2**31 + 5], jnp.uint32)
    count = jnp.arange(40, dtype=jnp.uint32) * jnp.uint32(0x9E3779B9)
    found = dropout.threefry((key[0], key[1]), count[:20], count[20:])
    np.testing.assert_array_equal(jnp.concatenate(found), threefry_2x32(key, count))


def test_kept_weights_depend_on_indices_alone():
    seeds = dropout.words(jax.random.key(0), (2, 3))
    whole = dropout.keep(seeds, 0.3, jnp.arange(50), jnp.arange(70))
    part = dropout.keep(seeds, 0.3, jnp.arange(20, 31), jnp.arange(9, 64))
    np.testing.assert_array_equal(part, whole[:, :, 20:31, 9:64])
    assert np.mean(whole) == pytest.approx(0.7, abs=0.01)
    assert not np.any(dropout.keep(seeds, 0.999999, jnp.arange(9), jnp.arange(9)))
    # Neighbours along each axis agree as often as independent draws do.
    for axis in range(4):
        one, other = np.delete(whole, 0, axis), np.delete(whole, -1, axis)
        assert np.mean(one == other) == pytest.approx(0.3**2 + 0.7**2, abs=0.015)
