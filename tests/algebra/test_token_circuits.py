"""Circuits from token to token, against matrices that are formed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attention_jax as aj
from tests.algebra.layers import layer, ov_matrices, qk_matrices

SIDES = {"qk": (aj.circuits.qk, qk_matrices), "ov": (aj.circuits.ov, ov_matrices)}


def made(side, merged, rows=11, columns=11):
    params = layer(d=7, e=7, out=7, dtype=np.float64)
    circuit, matrices = SIDES[side]
    rng = np.random.default_rng(0)
    embedding, unembedding = rng.normal(size=(rows, 7)), rng.normal(size=(columns, 7))
    full = embedding @ matrices(params) @ unembedding.T
    params = aj.merge(params, ov=True) if merged else params
    return aj.circuits.TokenCircuit(
        circuit(params), jnp.asarray(embedding), jnp.asarray(unembedding)
    ), full


@pytest.mark.parametrize(("side", "merged"), [("qk", False), ("ov", True)])
def test_blocks_and_greatest_entries(side, merged):
    with jax.enable_x64(True):
        tokens, full = made(side, merged, columns=13)
        assert full.shape == (4, 11, 13)
        rows, columns = np.array([3, 3, 0]), np.array([12, 1])
        block = tokens.block(jnp.asarray(rows), jnp.asarray(columns))
        np.testing.assert_allclose(block, full[:, rows[:, None], columns], atol=1e-10)
        blocks = list(tokens.blocks(4))
        assert [b.shape for b in blocks] == [(4, 4, 13), (4, 4, 13), (4, 3, 13)]
        np.testing.assert_allclose(np.concatenate(blocks, 1), full, atol=1e-10)
        order = np.argsort(-full, axis=-1)[..., :3]
        for size in (4, 128):
            values, places = jax.jit(lambda t, size=size: t.top(3, size))(tokens)
            assert np.array_equal(places, order)
            np.testing.assert_allclose(values, np.take_along_axis(full, order, -1), atol=1e-10)


@pytest.mark.parametrize(("side", "merged"), [("qk", False), ("ov", True)])
def test_eigenvalues_but_for_zeros(side, merged):
    with jax.enable_x64(True):
        tokens, full = made(side, merged)
        found = np.asarray(tokens.eigenvalues())
        expected = np.linalg.eigvals(full)
        expected = np.take_along_axis(expected, np.argsort(-np.abs(expected), -1), -1)
        assert found.shape == ((4, 7) if merged else (4, 3))
        for one, other in zip(found, expected, strict=True):
            # In the order of moduli, conjugates either way.
            np.testing.assert_allclose(np.abs(one[:3]), np.abs(other[:3]), atol=1e-9)
            np.testing.assert_allclose(one[:3].real, other[:3].real, atol=1e-9)
        share = expected.real.sum(-1) / np.abs(expected).sum(-1)
        np.testing.assert_allclose(tokens.positive_share(), share, atol=1e-7)


def test_copying_and_its_opposite():
    rng = np.random.default_rng(0)
    # More tokens than channels, and heads that copy, invert, turn and do nothing.
    embedding = jnp.asarray(rng.normal(size=(9, 2)).astype("f4"))
    heads = jnp.stack([jnp.eye(2), -jnp.eye(2), jnp.array([[0.0, 1], [-1, 0]]), jnp.zeros((2, 2))])
    tokens = aj.circuits.TokenCircuit(aj.circuits.Circuit(heads), embedding, embedding)
    np.testing.assert_allclose(tokens.positive_share(), [1, -1, 0, 0], atol=1e-6)
    assert np.abs(np.asarray(tokens.eigenvalues())[2].imag).min() > 1


def test_nothing_as_large_as_the_vocabulary_squared_is_made():
    rng = np.random.default_rng(0)
    left, right, rows = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in
                         ((2, 5, 2), (2, 5, 2), (101, 5)))  # fmt: skip
    tokens = aj.circuits.TokenCircuit(aj.circuits.Circuit(left, right), rows, rows)
    for function in (lambda t: t.top(2, 8), lambda t: t.positive_share()):
        text = str(jax.make_jaxpr(function)(tokens))
        assert "101,101" not in text and "[2,101,2]" in text


def test_indices_out_of_range_are_loud_and_arguments_refused():
    tokens, _ = made("qk", False)
    block = tokens.block(jnp.array([0, 11]), jnp.array([0, 1]))
    assert np.isnan(block).all((0, 2)).tolist() == [False, True]
    other = aj.circuits.TokenCircuit(tokens.circuit, tokens.rows, tokens.columns[:5])
    wrong = aj.circuits.TokenCircuit(tokens.circuit, tokens.rows[:, :5], tokens.columns)
    for call, error, match in (
        (lambda: tokens.top(12), ValueError, "k: expected at most 11"),
        (lambda: tokens.top(1, 0), ValueError, "block_size"),
        (lambda: next(tokens.blocks(2.0)), TypeError, "size"),
        (lambda: other.eigenvalues(), ValueError, "eigenvalues: .*11 and 5"),
        (lambda: wrong.block(jnp.array([0]), jnp.array([0])), ValueError, r"rows: .*tokens, 7"),
    ):
        with pytest.raises(error, match=match):
            call()
