"""Ranks and spectra of W_qk and W_ov, against matrices that are formed; and the symmetries."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attention_jax as aj
from attention_jax.algebra import symmetries
from tests.algebra.layers import layer, ov_matrices, qk_matrices

SIDES = {"qk": (aj.circuits.qk, qk_matrices), "ov": (aj.circuits.ov, ov_matrices)}


@pytest.mark.parametrize("merged", [False, True], ids=["separate", "merged"])
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_spectra_equal_those_of_the_formed_matrices(side, merged, groups):
    circuit, matrices = SIDES[side]
    params = layer(groups=groups)
    formed = matrices(params)
    made = circuit(aj.merge(params, ov=True) if merged else params)
    np.testing.assert_allclose(made.matrix(), formed, atol=1e-5)
    values = np.linalg.svd(formed, compute_uv=False)
    got = np.asarray(made.singular_values())
    np.testing.assert_allclose(got[:, :3], values[:, :3], rtol=1e-5)
    assert np.all(got[:, 3:] < 1e-5)
    assert made.rank(1e-5).tolist() == [3] * 4
    squares = values**2
    np.testing.assert_allclose(made.stable_rank(), squares.sum(1) / squares[:, 0], rtol=1e-5)
    shares = values[:, :3] / values[:, :3].sum(1, keepdims=True)
    effective = np.exp(-np.sum(shares * np.log(shares), axis=1))
    np.testing.assert_allclose(made.effective_rank(), effective, rtol=1e-4)


def test_ranks_of_known_matrices():
    matrices = np.stack([np.eye(3), np.diag([2.0, 2, 0]), np.zeros((3, 3)), np.diag([3.0, 0, 0])])
    circuit = aj.circuits.Circuit(jnp.asarray(matrices, jnp.float32))
    assert circuit.rank().tolist() == [3, 2, 0, 1]
    np.testing.assert_allclose(circuit.stable_rank(), [3, 2, 0, 1], atol=1e-6)
    np.testing.assert_allclose(circuit.effective_rank(), [3, 2, 0, 1], atol=1e-5)
    assert aj.circuits.Circuit(jnp.diag(jnp.array([1.0, 0.1, 0.01]))[None]).rank(0.05) == 2


def test_factors_wider_than_the_matrix():
    rng = np.random.default_rng(0)
    left, right = rng.normal(size=(2, 3, 5)).astype("f4"), rng.normal(size=(2, 4, 5)).astype("f4")
    circuit = aj.circuits.Circuit(jnp.asarray(left), jnp.asarray(right))
    expected = np.linalg.svd(left @ right.swapaxes(1, 2), compute_uv=False)
    np.testing.assert_allclose(circuit.singular_values(), expected, rtol=1e-5)
    assert circuit.rank().tolist() == [3, 3]


@pytest.mark.parametrize("merged", [False, True], ids=["separate", "merged"])
def test_symmetry(merged):
    params = layer(d=5, e=5)
    formed = qk_matrices(params)
    expected = np.sum(formed * formed.swapaxes(1, 2), (1, 2)) / np.sum(formed**2, (1, 2))
    circuit = aj.circuits.qk(aj.merge(params) if merged else params)
    np.testing.assert_allclose(circuit.symmetry(), expected, atol=1e-5)
    assert np.ptp(expected) > 0.05
    turn = jnp.array([[[0.0, 1.0], [-1.0, 0.0]], [[2.0, 1.0], [1.0, 0.0]], [[0.0, 0], [0, 0]]])
    np.testing.assert_allclose(aj.circuits.Circuit(turn).symmetry(), [-1, 1, 0], atol=1e-6)
    with pytest.raises(ValueError, match="symmetry: expected square matrices.*7 x 5"):
        aj.circuits.qk(layer()).symmetry()


def test_circuits_pass_through_jit():
    circuit = jax.jit(aj.circuits.qk)(layer())
    np.testing.assert_allclose(circuit.matrix(), qk_matrices(layer()), atol=1e-5)


def test_circuits_refuse_what_is_not_one_layer():
    for side in (aj.circuits.qk, aj.circuits.ov):
        with pytest.raises(ValueError, match="one attention layer"):
            side({"a": layer()})


def changed_matrices(changed, params):
    assert np.abs(changed["query"]["kernel"] - params["query"]["kernel"]).max() > 0.1
    return qk_matrices(changed), ov_matrices(changed)


def test_permuted_heads_have_permuted_matrices():
    params, order = layer(), [3, 2, 0, 1]
    qk, ov = changed_matrices(symmetries.permute_heads(params, order), params)
    np.testing.assert_allclose(qk, qk_matrices(params)[order], atol=1e-6)
    np.testing.assert_allclose(ov, ov_matrices(params)[order], atol=1e-6)
    with pytest.raises(ValueError, match="groups of 2 query heads"):
        symmetries.permute_heads(params, [1, 2, 3, 0])
    with pytest.raises(ValueError, match="permutation of 4 heads"):
        symmetries.permute_heads(params, [0, 0, 1, 2])


def test_a_change_of_gauge_leaves_the_matrices():
    params = layer()
    matrices = np.random.default_rng(0).normal(size=(2, 3, 3)).astype("f4") + 2 * np.eye(
        3, dtype="f4"
    )
    changed = symmetries.change_gauge(params, qk=matrices, ov=matrices)
    qk, ov = changed_matrices(changed, params)
    np.testing.assert_allclose(qk, qk_matrices(params), atol=1e-4)
    np.testing.assert_allclose(ov, ov_matrices(params), atol=1e-4)
    assert np.abs(changed["value"]["kernel"] - params["value"]["kernel"]).max() > 0.1
    with pytest.raises(ValueError, match="query and key"):
        symmetries.change_gauge(aj.merge(params), qk=matrices)


def test_a_change_of_basis_turns_the_matrices():
    params = layer(d=5, e=5)
    q = np.linalg.qr(np.random.default_rng(0).normal(size=(5, 5)))[0].astype("f4")
    changed = symmetries.change_basis(params, q, q, q)
    qk, ov = changed_matrices(changed, params)
    np.testing.assert_allclose(qk, q.T @ qk_matrices(params) @ q, atol=1e-5)
    np.testing.assert_allclose(ov, q.T @ ov_matrices(params), atol=1e-5)
    merged = symmetries.change_basis(aj.merge(params, ov=True, softcap=1.0), q, q, q)
    again = aj.merge(changed, ov=True, softcap=1.0)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), merged, again)


def test_heads_that_are_not_finite_are_not_called_zero():
    matrices = np.stack([np.eye(3), np.full((3, 3), np.nan), np.diag([np.inf, 1, 1])])
    circuit = aj.circuits.Circuit(jnp.asarray(matrices, jnp.float32))
    assert circuit.rank().tolist() == [3, -1, -1]
    for found in (circuit.stable_rank(), circuit.effective_rank(), circuit.symmetry()):
        assert np.isfinite(found).tolist() == [True, False, False]


def test_ranks_do_not_depend_on_the_size_of_the_weights():
    params = layer(d=5, e=5, bias=False)
    tiny = {name: {"kernel": entry["kernel"] * 1e-12} for name, entry in params.items()}
    for one, other in ((params, tiny), (aj.merge(params), aj.merge(tiny))):
        big, small = aj.circuits.qk(one), aj.circuits.qk(other)
        assert small.rank(1e-5).tolist() == [3] * 4
        for name in ("stable_rank", "effective_rank", "symmetry"):
            np.testing.assert_allclose(
                getattr(small, name)(), getattr(big, name)(), rtol=1e-4, atol=1e-5
            )
