"""Ranks and spectra of W_qk and W_ov, against matrices that are formed; and the symmetries."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attention_jax as aj
from attention_jax.algebra import symmetries
from tests.algebra.layers import layer, ov_matrices, qk_matrices, repeated

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


def random_pair(rows, columns, rank, seed=0, heads=2):
    rng = np.random.default_rng(seed)
    shapes = (heads, rows, rank), (heads, columns, rank)
    return aj.circuits.Circuit(*(jnp.asarray(rng.normal(size=shape)) for shape in shapes))


def whole(circuit):
    return aj.circuits.Circuit(circuit.matrix())


def test_products_and_transposes_stay_low_rank():
    with jax.enable_x64(True):
        one, other = random_pair(7, 5, 2), random_pair(5, 11, 3, seed=1)
        expected = np.asarray(one.matrix()) @ np.asarray(other.matrix())
        for a, b, rank in (
            (one, other, 2),
            (other.transpose(), one.transpose(), 2),
            (one, whole(other), 2),
            (whole(one), other, 3),
            (whole(one), whole(other), 11),
        ):
            product = a @ b
            back = np.asarray(a.matrix()) @ np.asarray(b.matrix())
            np.testing.assert_allclose(product.matrix(), back, atol=1e-12)
            assert product.left.shape[2] == rank
        np.testing.assert_allclose((one @ other).matrix(), expected, atol=1e-12)
        np.testing.assert_allclose(
            (one @ other).transpose().matrix(), np.swapaxes(expected, 1, 2), atol=1e-12
        )
    with pytest.raises(ValueError, match=r"circuits: .*\(2, 7, 5\) and \(2, 7, 5\)"):
        one @ one
    with pytest.raises(ValueError, match="equally many heads"):
        one @ random_pair(5, 11, 3, heads=4)
    with pytest.raises(TypeError, match="unsupported operand"):
        one @ 2.0


@pytest.mark.parametrize("form", [lambda c: c, whole], ids=["pair", "whole"])
def test_norms_shares_and_eigenvalues_of_formed_matrices(form):
    with jax.enable_x64(True):
        circuit = form(random_pair(7, 7, 3))
        w = np.asarray(circuit.matrix())
        norm = np.linalg.norm(w, axis=(1, 2))
        np.testing.assert_allclose(circuit.frobenius_norm(), norm, rtol=1e-12)
        np.testing.assert_allclose(circuit.nuclear_norm(), np.linalg.svd(w)[1].sum(1), rtol=1e-9)
        np.testing.assert_allclose(circuit.spectral_norm(), np.linalg.norm(w, 2, (1, 2)))
        for sign, share in ((1, circuit.symmetric_share()), (-1, circuit.antisymmetric_share())):
            part = (w + sign * np.swapaxes(w, 1, 2)) / 2
            np.testing.assert_allclose(share, np.sum(part**2, (1, 2)) / norm**2, rtol=1e-10)
        values = np.linalg.eigvals(w)
        values = np.take_along_axis(values, np.argsort(-np.abs(values), -1), -1)[:, :3]
        found = np.asarray(circuit.eigenvalues())[:, :3]
        np.testing.assert_allclose(np.abs(found), np.abs(values), rtol=1e-9)
        np.testing.assert_allclose(found.real, values.real, atol=1e-9)
        assert circuit.eigenvalues().shape == (2, 3 if circuit.right is not None else 7)
    for call in ("symmetric_share", "antisymmetric_share", "eigenvalues"):
        with pytest.raises(ValueError, match="expected square matrices.*7 x 5"):
            getattr(aj.circuits.qk(layer()), call)()


def test_values_of_heads_that_vanish_or_are_not_finite():
    turn = np.array([[0.0, 1.0], [-1.0, 0.0]])
    heads = np.stack([turn, np.eye(2), np.zeros((2, 2)), np.full((2, 2), np.inf)])
    circuit = aj.circuits.Circuit(jnp.asarray(heads, jnp.float32))
    for share, expected in (("symmetric_share", [0, 1, 0]), ("antisymmetric_share", [1, 0, 0])):
        found = np.asarray(getattr(circuit, share)())
        np.testing.assert_allclose(found[:3], expected, atol=1e-6)
        assert np.isnan(found[3])
    values = np.asarray(circuit.eigenvalues())
    assert sorted(values[0].imag) == [-1, 1] and values[1].tolist() == [1, 1]
    assert np.isnan(values[3]).all() and np.isfinite(values[:3]).all()
    assert np.isnan(circuit.truncate(1).matrix()[3]).all()
    assert np.isfinite(circuit.truncate(1).matrix()[:3]).all()


def test_narrow_factors_are_computed_wide_and_wrong_ones_refused():
    left = jnp.ones((2, 3, 1), jnp.bfloat16)
    circuit = aj.circuits.Circuit(left, left)
    assert circuit.matrix().dtype == circuit.truncate(1).left.dtype == jnp.float32
    np.testing.assert_allclose(circuit.frobenius_norm(), [3, 3], rtol=1e-6)
    for right, error, match in (
        (jnp.ones((2, 3, 2)), ValueError, r"right: expected \[H, M, R\]"),
        (jnp.ones((1, 3, 1)), ValueError, "right: expected"),
        (jnp.ones((2, 3, 1), int), TypeError, "right: expected a floating dtype"),
    ):
        with pytest.raises(error, match=match):
            aj.circuits.Circuit(left, right).singular_values()


def sizes(jaxpr):
    """The sizes of all arrays that a function makes, in its inner functions too."""
    for equation in jaxpr.eqns:
        yield from (variable.aval.size for variable in equation.outvars)
        for leaf in jax.tree.leaves(list(equation.params.values()), is_leaf=is_jaxpr):
            if is_jaxpr(leaf):
                yield from sizes(getattr(leaf, "jaxpr", leaf))


def is_jaxpr(x):
    return hasattr(x, "eqns") or hasattr(x, "jaxpr")


def test_nothing_as_large_as_the_matrix_is_made():
    params = layer(d=31, e=31, heads=2, groups=1, width=2, out=31)
    pair = aj.circuits.qk(params)
    functions = {
        "spectra": lambda c: (c.rank(), c.stable_rank(), c.effective_rank(), c.nuclear_norm()),
        "shares": lambda c: (c.symmetric_share(), c.antisymmetric_share(), c.eigenvalues()),
        "products": lambda c: (c @ c.transpose() @ c).frobenius_norm(),
        "truncation": lambda c: (c.truncate(1), c.truncation_error(1)),
        "gradient": jax.grad(lambda c: c.nuclear_norm().sum() + c.truncate(1).left.sum()),
        "curvature": lambda c: jax.jvp(lambda c: (c.truncate(1) @ c).left, (c,), (c,)),
    }
    for name, function in functions.items():
        assert 50 < max(sizes(jax.make_jaxpr(function)(pair).jaxpr)) < 31 * 31, name
    layers = {
        "truncate": lambda p: aj.circuits.truncate(p, qk_rank=1, ov_rank=1),
        "composition": lambda p: aj.circuits.composition(p, p),
        "rotary": lambda p: aj.circuits.rotary_qk(p, aj.Rotary()).at(3).singular_values(),
    }
    for name, function in layers.items():
        assert 50 < max(sizes(jax.make_jaxpr(function)(params).jaxpr)) < 31 * 31, name
    assert max(sizes(jax.make_jaxpr(lambda c: c.matrix())(pair).jaxpr)) == 2 * 31 * 31


@pytest.mark.parametrize("form", ["separate", "merged", "merged with row terms"])
def test_homogeneous_circuits_give_scores_and_values_with_biases(form):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(3, 7)), rng.normal(size=(4, 5))
    params = layer(dtype=np.float64)
    query, key = (
        np.einsum("td,dhk->thk", a, repeated(params, name)) + repeated_bias(params, name)
        for a, name in ((x, "query"), (y, "key"))
    )
    scores = np.einsum("thk,shk->hts", query, key)
    value = np.einsum("se,ehk->shk", y, repeated(params, "value")) + repeated_bias(params, "value")
    written = np.einsum("shk,hko->hso", value, params["out"]["kernel"])
    x1, y1 = (np.concatenate([a, np.ones((len(a), 1))], -1) for a in (x, y))
    with jax.enable_x64(True):
        if form != "separate":
            params = aj.merge(params, ov=True, softcap=1.0 if "row" in form else None)
        w_qk = np.asarray(aj.circuits.qk(params, homogeneous=True).matrix())
        w_ov = np.asarray(aj.circuits.ov(params, homogeneous=True).matrix())
        plain = aj.circuits.qk(params).matrix()
    np.testing.assert_allclose(y1 @ w_ov, written, atol=1e-12)
    np.testing.assert_allclose(w_qk[:, :-1, :-1], plain, atol=1e-14)
    found = x1 @ w_qk @ y1.T
    if form == "merged":
        # All but what is constant along a row.
        assert np.abs(found - scores).max() > 0.1
        found, scores = (a - a.mean(-1, keepdims=True) for a in (found, scores))
    np.testing.assert_allclose(found, scores, atol=1e-12)
    with pytest.raises(TypeError, match="homogeneous: expected True or False"):
        aj.circuits.qk(params, homogeneous="False")


def repeated_bias(params, name):
    bias = np.asarray(params[name]["bias"], np.float64)
    return np.repeat(bias, 4 // len(bias), axis=0)
