"""Encodings that are added to the inputs: values, and positions outside a table."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attention_jax as aj
from tests.paths import q_fill


def sinusoid(positions, width, theta=10000.0):
    angles = positions[:, None] * theta ** (-2 * np.arange(width // 2) / width)
    return np.stack([np.sin(angles), np.cos(angles)], -1).reshape(len(positions), width)


def test_sinusoidal_by_hand():
    x = jnp.asarray(q_fill(2, 5, 6))
    output = aj.Sinusoidal(6, theta=100.0).apply(x, jnp.arange(5))
    np.testing.assert_allclose(output, np.asarray(x) + sinusoid(np.arange(5), 6, 100.0), atol=1e-6)
    rows = jnp.array([[0, 1, 2, 3, 4], [4, 3, 2, 1, 0]])
    per_row = aj.Sinusoidal(6).apply(x, rows)
    np.testing.assert_allclose(
        per_row[1], np.asarray(x[1]) + sinusoid(np.arange(5), 6)[::-1], atol=1e-6
    )
    assert aj.Sinusoidal(6).apply(x.astype(jnp.bfloat16), jnp.arange(5)).dtype == jnp.bfloat16


def test_sinusoidal_in_float64():
    with jax.enable_x64(True):
        positions = np.arange(5) * 1001
        output = aj.Sinusoidal(6).apply(jnp.zeros((5, 6), jnp.float64), jnp.asarray(positions))
        np.testing.assert_allclose(output, sinusoid(positions, 6), atol=1e-11)


class TestC25OutsideTheTable:
    table = jnp.arange(16.0).reshape(8, 2)

    @pytest.mark.parametrize("positions", [[8], [-1], [7, 8], [-9]])
    def test_known_positions_raise(self, positions):
        with pytest.raises(ValueError, match="positions: .*capacity"):
            aj.Learned(8).apply(jnp.zeros((len(positions), 2)), jnp.array(positions), self.table)

    def test_traced_positions_give_nan_and_never_another_row(self):
        apply = jax.jit(lambda p: aj.Learned(8).apply(jnp.zeros((4, 2)), p, self.table))
        output = apply(jnp.array([7, 8, -1, 0]))
        np.testing.assert_array_equal(output[0], self.table[7])
        np.testing.assert_array_equal(output[3], self.table[0])
        assert np.all(np.isnan(output[1:3]))

    def test_gradients_reach_the_rows_that_were_used(self):
        x, positions = jnp.zeros((3, 2)), jnp.array([1, 1, 7])
        gradient = jax.grad(lambda table: aj.Learned(8).apply(x, positions, table).sum())(
            self.table
        )
        np.testing.assert_array_equal(gradient[:, 0], [0, 2, 0, 0, 0, 0, 0, 1])

    def test_float_positions_raise(self):
        with pytest.raises(TypeError, match="positions: expected integers"):
            aj.Learned(8).apply(jnp.zeros((1, 2)), jnp.array([1.0]), self.table)

    def test_a_sequence_longer_than_the_table_raises(self):
        module = aj.LearnedPositions(8)
        variables = module.init(jax.random.key(0), jnp.zeros((8, 2)))
        assert module.apply(variables, jnp.zeros((8, 2))).shape == (8, 2)
        for call in (module.apply, jax.jit(module.apply)):
            with pytest.raises(ValueError, match="capacity=8"):
                call(variables, jnp.zeros((9, 2)))

    @pytest.mark.parametrize("kind", [np.array, jnp.array])
    def test_known_positions_inside_jit(self, kind):
        positions = kind([7, 0, 1])
        apply = jax.jit(lambda x: aj.Learned(8).apply(x, positions, self.table))
        np.testing.assert_array_equal(apply(jnp.zeros((3, 2))), self.table[np.array([7, 0, 1])])

    def test_a_table_of_another_size_raises(self):
        with pytest.raises(ValueError, match="table: .*capacity"):
            aj.Learned(9).apply(jnp.zeros((1, 2)), jnp.array([0]), self.table)


def test_learned_rows_are_added():
    module = aj.LearnedPositions(8)
    x = jnp.asarray(q_fill(2, 5, 4))
    variables = module.init(jax.random.key(0), x)
    rows = np.asarray(variables["params"]["embedding"])
    assert rows.shape == (8, 4)
    assert float(rows.std()) == pytest.approx(0.02, rel=0.5)
    np.testing.assert_allclose(module.apply(variables, x), np.asarray(x) + rows[:5], atol=1e-7)
    shifted = module.apply(variables, x, jnp.arange(5) + 3)
    np.testing.assert_allclose(shifted, np.asarray(x) + rows[3:], atol=1e-7)
