"""Identities of the weights in float64: homogeneous form, gauge, norms, norm layers, symmetry."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attention_jax as aj
from attention_jax.algebra import pairs
from attention_jax.core import merged, separate
from attention_jax.core.layer import attention
from tests.algebra.layers import layer, qk_matrices

RNG = np.random.default_rng(7)
X, Y = RNG.normal(size=(13, 7)), RNG.normal(size=(11, 5))
SCALE = 3**-0.5


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def wide_layer(**settings):
    return layer(dtype=np.float64, **settings)


def kernels(params):
    return {name: {"kernel": entries["kernel"]} for name, entries in params.items()}


@functools.partial(jax.jit, static_argnames="form")
def scores(params, x=X, y=Y, form=separate):
    """`[H, T, S]` of the queries and keys that the layer projects."""
    query, key = form.query_key.project(params, jnp.asarray(x), jnp.asarray(y), None)
    key = jnp.repeat(key, query.shape[1] // key.shape[1], axis=1)
    return jnp.einsum("thk,shk->hts", query, key)


def numerical_rank(jacobian, tol=1e-9):
    """Rank of a Jacobian whose columns are the last axes, and that the gap behind it is wide."""
    values = np.linalg.svd(jacobian, compute_uv=False)
    rank = int(np.sum(values > tol * values[0]))
    assert values[rank - 1] > 1e4 * max(values[rank:], default=0.0)
    return rank


def flat(tree):
    return jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(tree)])


def test_identity_1_homogeneous_form():
    """(W_q^T x + b_q)^T (W_k^T y + b_k) = [x;1]^T B_q B_k^T [y;1], B = [W; b^T], rank <= r."""
    params = wide_layer()
    circuit = aj.circuits.qk(params, homogeneous=True)
    x1, y1 = (np.concatenate([a, np.ones((len(a), 1))], -1) for a in (X, Y))
    expected = np.einsum("td,hde,se->hts", x1, circuit.matrix(), y1)
    np.testing.assert_allclose(scores(params), expected, atol=1e-10)
    assert circuit.rank().tolist() == [3] * 4
    for lost in ("query", "key"):
        without = params | {lost: {"kernel": params[lost]["kernel"]}}
        assert np.abs(scores(without) - expected).max() > 0.1


def generators(params, apply):
    """The Jacobian of a function of the layer over the changes of gauge of its queries, at A = I.

    `A = I + E` of one key head; one row for each of the K^2 entries of E.
    """
    width = params["query"]["kernel"].shape[2]

    def moved(change):
        return flat(apply(aj.gauge.change(params, qk=jnp.eye(width)[None] + change[None])))

    jacobian = jax.jit(jax.jacfwd(moved))(jnp.zeros((width, width)))
    return np.asarray(jacobian).reshape(-1, width**2)


def test_identity_2_gauge_orbit_and_dimension():
    """(W_q A)(W_k A^-T)^T = W; the orbit has dimension r^2, the rank-r set 2 d r - r^2."""
    d, r = 5, 2
    params = wide_layer(d=d, e=d, heads=1, groups=1, width=r, out=d, bias=False)
    orbit = generators(params, lambda p: (p["query"], p["key"]))
    assert numerical_rank(orbit) == r**2
    np.testing.assert_allclose(generators(params, aj.merge), 0.0, atol=1e-10)

    def product(factors):
        return aj.merge({**params, **factors})["qk"]["kernel"].ravel()

    factors = {name: params[name] for name in ("query", "key")}
    jacobian = jax.jit(jax.jacrev(product))(factors)
    columns = np.concatenate(
        [np.reshape(leaf, (d * d, -1)) for leaf in jax.tree.leaves(jacobian)], axis=1
    )
    assert columns.shape == (d * d, 2 * d * r)
    assert numerical_rank(columns) == 2 * d * r - r**2


def separate_loss(params, position=None):
    output = attention(
        separate.query_key, separate.value_output, params, X, Y, scale=SCALE, position=position
    )
    return jnp.sum(jnp.sin(output + jnp.arange(output.shape[-1])[None]))


def moments(params, gradients, side):
    """`left^T G_left` and `(right^T G_right)^T` for each group."""
    (left, right), (g_left, g_right) = (pairs.split(p, side) for p in (params, gradients))
    one = np.einsum("gmk,gmr->gkr", left, g_left)
    return one, np.einsum("gmk,gmr->grk", right, g_right)


def test_identity_2_autodiff():
    """W_q^T G_q = (W_k^T G_k)^T, with biases as rows and summed over the heads of a group."""
    params = wide_layer()
    gradients = jax.jit(jax.grad(separate_loss))(params)
    for side in ("qk", "ov"):
        one, other = moments(params, gradients, side)
        np.testing.assert_allclose(one, other, atol=1e-10)
        assert np.abs(one - one.swapaxes(1, 2)).max() > 1e-3
    one, other = moments(kernels(params), kernels(gradients), "qk")
    assert np.abs(one - other).max() > 1e-3


def test_identity_2_rotation_shrinks_the_gauge():
    """RoPE leaves blockdiag(a I + c J), dimension r, of the r^2 dimensions."""
    width = 6
    params = wide_layer(heads=1, groups=1, width=width)
    position = aj.Rotary(theta=9.0)

    def weights(p):
        query, key = separate.query_key.project(p, jnp.asarray(X), jnp.asarray(Y), None)
        query = position.rotate(query, jnp.arange(13))
        return jnp.einsum("thk,shk->hts", query, position.rotate(key, jnp.arange(11)))

    jacobian = generators(params, weights)
    assert width**2 - numerical_rank(jacobian) == width
    drawn = aj.gauge.draw(jax.random.key(0), 8, width, jnp.float64, position)
    matrices = np.asarray(drawn).reshape(8, -1)
    np.testing.assert_allclose(jacobian @ matrices.T, 0.0, atol=1e-10)
    assert numerical_rank(matrices) == width
    np.testing.assert_allclose(generators(params, scores), 0.0, atol=1e-10)
    gradients = jax.jit(jax.grad(separate_loss), static_argnums=1)(params, position)
    one, other = moments(params, gradients, "qk")
    assert np.abs(one - other).max() > 1e-3
    np.testing.assert_allclose(matrices @ (one - other).ravel(), 0.0, atol=1e-10)


def test_identity_2_norms_shrink_the_gauge():
    """QK-norm leaves orthogonal matrices; those that keep the mean, as it takes the mean away."""
    width = 4
    norms = {name: {"scale": jnp.ones(width)} for name in ("query_ln", "key_ln")}
    params = wide_layer(heads=1, groups=1, width=width) | norms
    jacobian = generators(params, scores)
    _, values, rows = np.linalg.svd(jacobian)
    flat_directions = rows[np.sum(values > 1e-4 * values[0]) :].reshape(-1, width, width)
    # Rotations among the channels without mean, a scale, and a scale of the mean alone.
    assert len(flat_directions) == (width - 1) * (width - 2) // 2 + 2
    centre = np.eye(width) - 1 / width
    inside = centre @ flat_directions @ centre
    symmetric = (inside + inside.swapaxes(1, 2)) / 2
    scale = np.trace(symmetric, axis1=1, axis2=2)[:, None, None] / (width - 1) * centre
    np.testing.assert_allclose(symmetric, scale, atol=1e-5)

    def turned(orthogonal):
        return np.abs(scores(aj.gauge.change(params, qk=orthogonal[None])) - scores(params)).max()

    rng = np.random.default_rng(0)
    basis = np.linalg.qr(np.concatenate([np.ones((width, 1)), np.eye(width)[:, 1:]], 1))[0]
    inner = np.linalg.qr(rng.normal(size=(width - 1, width - 1)))[0]
    block = np.block([[np.ones((1, 1)), np.zeros((1, 3))], [np.zeros((3, 1)), inner]])
    assert turned(basis @ block @ basis.T) < 1e-10
    assert turned(np.linalg.qr(rng.normal(size=(width, width)))[0]) > 1e-3
    assert turned(basis @ (block * 1.5) @ basis.T) < 1e-3


def test_identity_4_nuclear_norm_is_the_least_square_norm():
    """|W|_* = min over W = A B^T of (|A|^2 + |B|^2) / 2, reached by balanced factors."""
    params = wide_layer(groups=4, bias=False)

    def half_squares(p):
        return sum(jnp.sum(jnp.square(p[name]["kernel"]), (0, 2)) for name in ("query", "key")) / 2

    norm = np.asarray(jax.jit(lambda p: aj.circuits.qk(p).nuclear_norm())(params))
    values = np.linalg.svd(qk_matrices(params), compute_uv=False)
    np.testing.assert_allclose(norm, values.sum(1), atol=1e-10)
    balanced = jax.jit(aj.gauge.balance)(params)
    np.testing.assert_allclose(half_squares(balanced), norm, atol=1e-10)
    keys = jax.random.split(jax.random.key(0), 8)
    moved = jax.lax.map(lambda key: half_squares(aj.gauge.random(balanced, key, ov=False)), keys)
    assert np.all(np.asarray(moved) > norm + 1e-3)
    slope = jax.jit(jax.grad(lambda a, p: half_squares(aj.gauge.change(p, qk=a)).sum()))
    unit = jnp.broadcast_to(jnp.eye(3), (4, 3, 3))
    np.testing.assert_allclose(slope(unit, balanced), 0.0, atol=1e-10)
    assert np.abs(slope(unit, params)).max() > 0.1


@jax.jit
def weights_of(kernel, x, y):
    value = {
        "value": {"kernel": jnp.ones((y.shape[-1], 1, 1))},
        "out": {"kernel": jnp.ones((1, 1, 1))},
    }
    return attention(merged.query_key, separate.value_output, {"qk": {"kernel": kernel}, **value},
                     x, y, scale=1.0, return_weights=True)[1]  # fmt: skip


def test_identity_7_flat_directions_of_normalised_inputs():
    """Rows of a LayerNorm without gain sum to 0: W + a 1^T + 1 b^T are 2 d - 1 flat directions."""
    d, rng = 4, np.random.default_rng(0)
    kernel = rng.normal(size=(d, 1, d))
    added = rng.normal(size=(d, 1, 1)) + rng.normal(size=(1, 1, d))
    x, y = rng.normal(size=(6, d)), rng.normal(size=(7, d))
    centred = []
    for tokens in (x, y):
        tokens = tokens - tokens.mean(-1, keepdims=True)
        centred.append(tokens / tokens.std(-1, keepdims=True))
    jacobian = jax.jit(jax.jacfwd(lambda w, x, y: weights_of(w, x, y).ravel()))
    for inputs, dimension in ((centred, 2 * d - 1), ([x, y], 0)):
        slopes = np.asarray(jacobian(kernel, *inputs)).reshape(-1, d * d)
        assert d * d - numerical_rank(slopes) == dimension
        moved = np.abs(weights_of(kernel + added, *inputs) - weights_of(kernel, *inputs)).max()
        assert moved < 1e-10 if dimension else moved > 1e-3


def test_identity_8_symmetry():
    """s(x,y) - s(y,x) = 2 x^T W_anti y; W_q = W_k gives W >= 0; <W, W^T> / |W|^2 in [-1, 1]."""
    params = wide_layer(d=5, e=5, groups=4, bias=False)
    x = X[:, :5]

    @jax.jit
    def measures(params):
        circuit = aj.circuits.qk(params)
        return circuit.symmetry(), circuit.antisymmetric_share(), circuit.eigenvalues()

    w = qk_matrices(params)
    anti = (w - w.swapaxes(1, 2)) / 2
    there, back = scores(params, x, Y), scores(params, Y, x).swapaxes(1, 2)
    np.testing.assert_allclose(
        there - back, 2 * np.einsum("td,hde,se->hts", x, anti, Y), atol=1e-10
    )
    assert np.abs(there - back).max() > 1
    expected = 1 - 2 * np.sum(anti**2, (1, 2)) / np.sum(w**2, (1, 2))
    symmetry, share, values = measures(params)
    np.testing.assert_allclose(symmetry, expected, atol=1e-10)
    np.testing.assert_allclose(share, (1 - expected) / 2, atol=1e-10)
    assert np.all(np.abs(expected) < 1) and np.ptp(expected) > 0.05
    assert np.asarray(values).real.min() < -1e-3
    symmetry, _, values = measures({**params, "key": params["query"]})
    np.testing.assert_allclose(symmetry, 1.0, atol=1e-10)
    assert np.asarray(values).real.min() > 1e-3
    np.testing.assert_allclose(np.asarray(values).imag, 0.0, atol=1e-10)
    np.testing.assert_allclose(aj.circuits.Circuit(anti).symmetry(), -1.0, atol=1e-10)
