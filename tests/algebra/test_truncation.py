"""Truncation: the nearest matrices, their derivatives, and what it does to a layer."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attention_jax as aj
from attention_jax import masks
from attention_jax.core import layer as core_layer
from attention_jax.core import merged, separate
from tests.algebra.layers import layer, ov_matrices, qk_matrices
from tests.paths import q_fill

Circuit = aj.circuits.Circuit


def as_pair(matrices):
    """The matrices as products of themselves and the identity."""
    size = matrices.shape[-1]
    return Circuit(matrices, jnp.broadcast_to(jnp.eye(size), (len(matrices), size, size)))


MAKE = {"whole": Circuit, "pair": as_pair}


def nearest(matrix, rank):
    u, s, vt = np.linalg.svd(np.asarray(matrix, np.float64), full_matrices=False)
    return (u[..., :rank] * s[..., None, :rank]) @ vt[..., :rank, :]


SQUARE = np.stack([np.diag([2.0, 2, 1]), np.eye(3), np.zeros((3, 3))])
C55 = {
    "diag(2,2,1), identity and zero": (SQUARE, (1, 2), [[5.0, 2.0, 0.0], [1.0, 1.0, 0.0]]),
    "fill": (q_fill(1, 6, 10), (4, 6), [[0.621221], [0.0]]),
}
SPECTRAL = ("nuclear_norm", "frobenius_norm", "spectral_norm", "stable_rank", "effective_rank")


@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
@pytest.mark.parametrize("case", C55.values(), ids=C55)
def test_c55_products_errors_and_gradients(case, make):
    matrices, ranks, squared = case
    target = np.random.default_rng(0).normal(size=matrices.shape)

    def spectral(matrices):
        circuit = make(matrices)
        functions = [getattr(circuit, name) for name in SPECTRAL]
        if len(matrices) == 3:
            functions += [circuit.symmetry, circuit.symmetric_share]
        return sum(function().sum() for function in functions)

    def product(matrices, rank):
        cut = make(matrices).truncate(rank)
        return jnp.sum(cut.matrix() * target), (cut.left, cut.right)

    def free(matrices, rank):
        circuit = make(matrices)
        return circuit.truncation_error(rank).sum() + circuit.truncate(rank).left.sum()

    @jax.jit
    def everything(matrices):
        cuts = [jax.grad(product, has_aux=True)(matrices, rank) for rank in ranks]
        errors = [make(matrices).truncation_error(rank) for rank in ranks]
        # One that is not finite makes the sum not finite.
        rest = [jax.grad(free)(matrices, ranks[0]), jax.grad(spectral)(matrices)]
        return cuts, errors, rest

    with jax.enable_x64(True):
        result = everything(jnp.asarray(matrices, jnp.float64))
    cuts, errors, rest = jax.tree.map(np.asarray, result)
    values = np.linalg.svd(matrices, compute_uv=False)
    for rank, squares, (gradient, (left, right)), error in zip(
        ranks, squared, cuts, errors, strict=True
    ):
        products = left @ np.swapaxes(right, 1, 2)
        np.testing.assert_allclose(np.sum((products - matrices) ** 2, (1, 2)), squares, atol=1e-6)
        np.testing.assert_allclose(error**2, squares, atol=1e-6)
        np.testing.assert_allclose(squares, np.sum(values[:, rank:] ** 2, 1), atol=1e-6)
        assert np.all(np.linalg.matrix_rank(products, tol=1e-9) <= rank)
        np.testing.assert_allclose(
            np.swapaxes(left, 1, 2) @ left, np.swapaxes(right, 1, 2) @ right, atol=1e-12
        )
        assert np.isfinite(gradient).all() and np.abs(gradient).max() > 0.1
        if rank == 6:
            # Of the rank of the space nothing is cut, whatever the matrix's own rank.
            np.testing.assert_allclose(gradient, target, atol=1e-6)
    assert all(np.isfinite(gradient).all() for gradient in rest)


def test_c55_values_of_the_products_and_what_stock_gives():
    cut = Circuit(jnp.asarray(SQUARE, jnp.float32)).truncate(2).matrix()
    np.testing.assert_allclose(cut[0], np.diag([2, 2, 0]), atol=1e-6)
    assert not cut[2].any()
    broken = jax.grad(lambda m: jnp.linalg.svd(m)[0].sum())(jnp.diag(jnp.array([2.0, 2, 1])))
    assert np.isnan(broken).all()


@pytest.mark.parametrize("rank", [0, 4, 2.0])
def test_ranks_out_of_range_are_refused(rank):
    circuit = Circuit(jnp.ones((1, 3, 5)))
    error = TypeError if isinstance(rank, float) else ValueError
    for function in (circuit.truncate, circuit.truncation_error):
        with pytest.raises(error, match="rank: expected"):
            function(rank)
    assert circuit.truncate(3).left.shape == (1, 3, 3)


def derivative(function, matrix, direction, step=1e-6):
    return (function(matrix + step * direction) - function(matrix - step * direction)) / (2 * step)


# Tied singular values on one side of the cut do not matter; a gap at the cut is needed.
SPECTRA = np.array([
    [3.0, 2.2, 1.1, 0.4, 0.3],
    [2.0, 2.0, 1.1, 0.4, 0.3],
    [3.0, 2.2, 1.0, 1.0, 1.0],
    [3.0, 2.2, 0.0, 0.0, 0.0],
])  # fmt: skip


def with_spectra(spectra, rows=7, columns=5):
    rng = np.random.default_rng(0)
    u, v = (np.linalg.qr(rng.normal(size=(len(spectra), n, 5)))[0] for n in (rows, columns))
    return (u * np.asarray(spectra)[:, None]) @ np.swapaxes(v, 1, 2)


@pytest.mark.parametrize(("make", "transposed"), [(Circuit, True), (as_pair, False)])
def test_the_derivative_of_the_product_is_exact(make, transposed):
    matrices = with_spectra(SPECTRA)
    direction = np.random.default_rng(1).normal(size=matrices.shape)
    if transposed:
        matrices, direction = np.swapaxes(matrices, 1, 2), np.swapaxes(direction, 1, 2)
    expected = derivative(functools.partial(nearest, rank=2), matrices, direction)
    with jax.enable_x64(True):

        def function(m):
            return make(m).truncate(2).matrix()

        @jax.jit
        def both(m, direction):
            product, back = jax.vjp(function, m)
            return product, jax.jvp(function, (m,), (direction,))[1], *back(direction)

        product, change, returned = map(np.asarray, both(matrices, direction))
    np.testing.assert_allclose(product, nearest(matrices, 2), atol=1e-12)
    np.testing.assert_allclose(change, expected, atol=1e-7)
    np.testing.assert_allclose(
        np.sum(returned * direction, (1, 2)), np.sum(change * direction, (1, 2)), rtol=1e-9
    )
    # Without the coupling across the cut it would be wrong wherever something is dropped.
    u, _, vt = np.linalg.svd(matrices, full_matrices=False)
    left = u[..., :2] @ np.swapaxes(u[..., :2], 1, 2)
    right = np.swapaxes(vt[:, :2], 1, 2) @ vt[:, :2]
    tangent = left @ direction + direction @ right - left @ direction @ right
    apart = np.abs(tangent - expected).max((1, 2))
    assert (apart > 0.01).tolist() == [True, True, True, False]


def test_a_tie_at_the_cut_leaves_the_projection_to_the_tangent_space():
    matrix = with_spectra([[3.0, 2.0, 2.0, 1.0, 0.5]])
    direction = np.random.default_rng(1).normal(size=matrix.shape)
    with jax.enable_x64(True):
        push = jax.jit(lambda m, d: jax.jvp(lambda m: Circuit(m).truncate(2).matrix(), (m,), (d,)))
        product, change = (np.asarray(x)[0] for x in push(matrix, direction))
    u, s, vt = np.linalg.svd(product)
    np.testing.assert_allclose(s[:3], [3, 2, 0], atol=1e-12)
    left, right = u[:, :2] @ u[:, :2].T, vt[:2].T @ vt[:2]
    outside = (np.eye(7) - left) @ change @ (np.eye(5) - right)
    assert np.abs(outside).max() < 1e-12
    # The second direction is tied to the third: there the change is the direction's own.
    tied = np.linalg.svd(matrix[0] - product)[0][:, 0]
    assert np.isclose(tied @ change @ vt[1], tied @ direction[0] @ vt[1], atol=1e-9)
    assert not np.isclose(tied @ change @ vt[0], tied @ direction[0] @ vt[0], atol=1e-3)


@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
def test_derivatives_of_spectra(make):
    matrices = with_spectra(SPECTRA[:1])
    direction = np.random.default_rng(1).normal(size=matrices.shape)

    def function(m):
        return jnp.stack([getattr(make(m), name)() for name in SPECTRAL])

    @jax.jit
    def both(m, direction):
        value, change = jax.jvp(function, (m,), (direction,))
        return value, change, jax.grad(lambda m: make(m).nuclear_norm()[0])(m)

    with jax.enable_x64(True):
        change = both(matrices, direction)[1]
        expected = derivative(lambda m: np.asarray(both(m, direction)[0]), matrices, direction)
        tied = with_spectra([[2.0, 2, 2, 0, 0]])
        gradient = np.asarray(both(tied, direction)[2])
    np.testing.assert_allclose(change, expected, rtol=1e-6)
    u, _, vt = np.linalg.svd(tied[0], full_matrices=False)
    np.testing.assert_allclose(gradient[0], u[:, :3] @ vt[:3], atol=1e-9)


@pytest.mark.parametrize("form", ["separate", "merged"])
def test_c55_training_steps_through_a_truncated_layer(form):
    params = layer(d=5, e=5, out=5, groups=2)
    params = aj.merge(params, ov=True) if form == "merged" else params
    # Equal, vanishing and generic heads at once.
    params = jax.tree.map(jnp.asarray, params)
    for name, entry in params.items():
        kernel = entry["kernel"] if "kernel" in entry else None
        if kernel is not None:
            flat = jnp.zeros_like(kernel) if name in ("key", "out") else kernel
            params[name] = entry | {"kernel": flat}
    if form == "merged":
        eye = jnp.broadcast_to(jnp.eye(5)[:, None], (5, 4, 5))
        params["qk"] = {n: jnp.zeros_like(x) for n, x in params["qk"].items()} | {"kernel": eye}
    x = np.random.default_rng(0).normal(size=(2, 3, 5)).astype("f4")
    parts = merged if form == "merged" else separate

    def loss(params):
        low = aj.circuits.truncate(params, qk_rank=2, ov_rank=1)
        output = core_layer.attention(parts.query_key, parts.value_output, low, x, scale=0.5)
        return jnp.mean((output - 1) ** 2)

    @jax.jit
    def step(params):
        value, gradients = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: p - 0.01 * g, params, gradients), value

    losses = []
    for _ in range(4):
        params, value = step(params)
        losses.append(float(value))
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(params))
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(("groups", "bias"), [(1, True), (2, False), (4, True)])
def test_a_separate_layer_keeps_its_shapes_and_gets_the_nearest_matrices(groups, bias):
    with jax.enable_x64(True):
        params = layer(groups=groups, bias=bias, dtype=np.float64)
        cut = jax.jit(functools.partial(aj.circuits.truncate, qk_rank=2, ov_rank=1))(params)
        assert jax.tree.map(jnp.shape, cut) == jax.tree.map(jnp.shape, params)
        for name, axis, rank in (("query", 2, 2), ("key", 2, 2), ("value", 2, 1), ("out", 1, 1)):
            kernel = np.moveaxis(np.asarray(cut[name]["kernel"]), axis, 0)
            assert not kernel[rank:].any() and kernel[:rank].any()
        for side, rank in ((aj.circuits.qk, 2), (aj.circuits.ov, 1)):
            whole, low = (np.asarray(side(p, homogeneous=True).matrix()) for p in (params, cut))
            heads, rows, columns = whole.shape
            axis = 1 if side is aj.circuits.qk else 2
            # The matrices of a group side by side along the factor that they do not share.
            stack, got = (
                np.concatenate(
                    np.split(m.reshape(groups, -1, rows, columns), 4 // groups, 1), axis + 1
                )
                for m in (whole, low)
            )
            np.testing.assert_allclose(got[:, 0], nearest(stack[:, 0], rank), atol=1e-10)
        if bias:
            assert cut["out"]["bias"] is not None
            np.testing.assert_array_equal(cut["out"]["bias"], params["out"]["bias"])


@pytest.mark.parametrize("softcap", [None, 2.0])
def test_a_merged_layer_is_cut_head_by_head_and_agrees_with_the_separate_one(softcap):
    @jax.jit
    def everything(params):
        whole = aj.merge(params, ov=True, softcap=softcap)
        low = aj.circuits.truncate(whole, qk_rank=2, ov_rank=1)
        separate_low = aj.circuits.truncate(params, qk_rank=2, ov_rank=1)
        again = aj.merge(separate_low, ov=True, softcap=softcap)
        matrices = [aj.circuits.qk(p, homogeneous=True).matrix() for p in (whole, low)]
        return whole, low, again, matrices

    with jax.enable_x64(True):
        result = everything(layer(groups=4, dtype=np.float64))
    whole, low, again, matrices = jax.tree.map(np.asarray, result)
    assert jax.tree.map(np.shape, low) == jax.tree.map(np.shape, whole)
    np.testing.assert_allclose(matrices[1], nearest(matrices[0], 2), atol=1e-10)
    same = [np.allclose(low[n]["kernel"], again[n]["kernel"], atol=1e-10) for n in ("qk", "ov")]
    # Without a soft cap the merged layer lacks the terms that softmax cannot see.
    assert same == [softcap is not None, True]


NORMED = layer() | {name: {"scale": np.ones(3, "f4")} for name in ("query_ln", "key_ln")}


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: aj.circuits.truncate(layer()), ValueError, "qk_rank, ov_rank: .*at least one"),
        (lambda: aj.circuits.truncate(layer(), qk_rank=4), ValueError, "qk_rank: .*at most 3"),
        (lambda: aj.circuits.truncate(layer(), ov_rank=4), ValueError, "ov_rank: .*at most 3"),
        (lambda: aj.circuits.truncate(aj.merge(layer()), qk_rank=6), ValueError, "at most 5"),
        (lambda: aj.circuits.truncate(layer(), qk_rank=1.0), TypeError, "qk_rank"),
        (
            lambda: aj.circuits.truncate(layer(), qk_rank=1, position=aj.Rotary()),
            NotImplementedError, "position: .*Rotary",
        ),
        (lambda: aj.circuits.truncate(NORMED, qk_rank=1), NotImplementedError, "QK-norm"),
        (lambda: aj.circuits.truncate({"a": 1}, qk_rank=1), ValueError, "one attention layer"),
    ],
)  # fmt: skip
def test_refusals_of_truncate(call, error, match):
    with pytest.raises(error, match=match):
        call()


def test_values_and_outputs_are_cut_below_rotary_encodings_and_norms():
    for params, position in ((layer(), aj.Rotary()), (NORMED, None)):
        cut = jax.jit(functools.partial(aj.circuits.truncate, ov_rank=1, position=position))(params)
        assert np.linalg.matrix_rank(ov_matrices(cut), tol=1e-4).tolist() == [1] * 4
        np.testing.assert_allclose(qk_matrices(cut), qk_matrices(params), atol=1e-6)


# The curve.

SETTINGS = {
    "plain": {},
    "causal": {"mask": aj.causal()},
    "window and padding": {"mask": aj.sliding_window(2) & aj.padding(np.array([2, 5]))},
    "array": {"mask": np.random.default_rng(3).random((2, 4, 6, 5)) > 0.4},
    "bias": {"bias": np.where(np.eye(6, 5, 1) > 0, -np.inf, 0.3).astype("f8")[None, None]},
    "softcap": {"softcap": 2.0},
    "alibi": {"position": aj.ALiBi(4)},
}
FORMS = {
    "separate": lambda p, s: p,
    "merged": lambda p, s: aj.merge(p, ov=True, softcap=s.get("softcap")),
    "merged ov": lambda p, s: aj.merge(p, qk=False, ov=True),
}
FIELDS = ("qk_scores", "qk_output", "ov_output")
RANKS = (1, 2, 3)


def inputs(seed):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(2, 6, 7)), rng.normal(size=(2, 5, 5))


def expected_changes(params, x, y, rank, homogeneous, scale, mask=None, bias=0.0, position=None,
                     softcap=None):  # fmt: skip
    """The changes by name, of every head with its truncated matrix, in float64 NumPy."""
    x, y = (np.concatenate([a, np.ones((*a.shape[:-1], 1))], -1) for a in (x, y))
    w_qk, w_ov = (
        np.asarray(side(params, homogeneous=True).matrix())
        for side in (aj.circuits.qk, aj.circuits.ov)
    )
    shape = (2, 4, 6, 5)
    if position is not None:
        bias = np.asarray(position.bias(np.arange(-1, 5), np.arange(5)))
    shown = np.broadcast_to(True if mask is None else rendered(mask, shape), shape)
    shown = shown & (bias != -np.inf)

    def head(w_qk, w_ov):
        scores = scale * np.einsum("btd,hde,bse->bhts", x, w_qk, y)
        capped = scores if softcap is None else softcap * np.tanh(scores / softcap)
        exponentials = np.where(shown, np.exp(capped + bias), 0.0)
        weights = exponentials / np.maximum(exponentials.sum(-1, keepdims=True), 1e-300)
        return np.where(shown, scores, 0.0), np.einsum("bhts,bse,heo->bhto", weights, y, w_ov)

    def cut(matrices, rows, columns):
        low = matrices.copy()
        low[:, :rows, :columns] = nearest(matrices[:, :rows, :columns], rank)
        return low

    ends = (None, None) if homogeneous else (-1, -1)
    whole, low_qk = head(w_qk, w_ov), head(cut(w_qk, *ends), w_ov)
    low_ov = head(w_qk, cut(w_ov, ends[0], None))
    changes = {
        "qk_scores": (low_qk[0], whole[0]),
        "qk_output": (low_qk[1], whole[1]),
        "ov_output": (low_ov[1], whole[1]),
    }
    return {
        name: np.sqrt(np.sum((new - old) ** 2, (0, 2, 3)) / np.sum(old**2, (0, 2, 3)))
        for name, (new, old) in changes.items()
    }


def rendered(mask, shape):
    if isinstance(mask, np.ndarray):
        return mask
    return np.asarray(masks.render(mask, shape, jnp.arange(-1, 5), jnp.arange(5)))


@pytest.mark.parametrize("name", SETTINGS)
def test_measured_changes_are_the_truncated_layers_and_stay_below_their_bounds(name):
    number = list(SETTINGS).index(name)
    form, homogeneous = list(FORMS)[number % 3], number % 2 == 0
    settings = SETTINGS[name] | {"scale": -0.3, "homogeneous": homogeneous}
    with jax.enable_x64(True):
        for seed in range(3):
            # From nearly uniform weights to nearly hard ones.
            size = (0.2, 0.5, 1.0)[seed]
            params = layer(groups=(1, 2, 4)[number % 3], seed=seed, dtype=np.float64)
            params = jax.tree.map(lambda leaf, size=size: size * leaf, params)
            params = FORMS[form](params, SETTINGS[name])
            x, y = inputs(seed)
            curve = aj.circuits.truncation_curve(params, x, y, ranks=RANKS, **settings)
            for i, rank in enumerate(RANKS):
                expected = expected_changes(params, x, y, rank, **settings)
                for field in FIELDS:
                    measured, bound = getattr(curve, field)[i], getattr(curve, field + "_bound")[i]
                    np.testing.assert_allclose(measured, expected[field], atol=1e-8, rtol=1e-8)
                    assert np.all(measured <= bound * (1 + 1e-9) + 1e-12), field
                    assert rank > 1 or np.all(measured > 1e-4), field


def test_a_bound_is_reached():
    # One token that sees itself, along the dropped direction: nothing is lost by the estimates.
    kernel = np.diag([3.0, 2.0]).astype("f4")
    params = {"qk": {"kernel": kernel[:, None]}, "ov": {"kernel": kernel[None]}}
    x = np.array([[0.0, 1.0]], "f4")
    curve = aj.circuits.truncation_curve(params, x, ranks=(1, 2), scale=1.0)
    for field in ("qk_scores", "ov_output"):
        for found in (getattr(curve, field), getattr(curve, field + "_bound")):
            np.testing.assert_allclose(found.ravel(), [1.0, 0.0], atol=1e-6)


def test_rotary_layers_have_the_half_that_is_possible():
    params = layer(d=5, e=5, width=4)
    x = inputs(0)[1].astype("f4")
    settings = {"ranks": (1, 4), "scale": 0.5, "position": aj.Rotary(), "mask": aj.causal()}
    with pytest.raises(NotImplementedError, match="position: .*Rotary.*pass qk=False"):
        aj.circuits.truncation_curve(params, x, **settings)
    curve = aj.circuits.truncation_curve(params, x, qk=False, **settings)
    assert curve.qk_scores is None and curve.qk_output_bound is None
    assert np.all(curve.ov_output <= curve.ov_output_bound)
    other = aj.circuits.truncation_curve(params, x, qk=False, **settings | {"position": None})
    assert np.abs(other.ov_output - curve.ov_output).max() > 1e-3


def test_the_curve_passes_through_jit_and_refuses_by_name():
    params, (x, y) = layer(), (a.astype("f4") for a in inputs(0))
    call = functools.partial(aj.circuits.truncation_curve, ranks=(1, 3), scale=0.5)
    traced = jax.eval_shape(call, params, x, y)
    assert traced.ranks == (1, 3) and traced.qk_output.shape == (2, 4)
    for settings, error, match in (
        ({"ranks": (6,)}, ValueError, "ranks: .*at most 5"),
        ({"ranks": ()}, ValueError, "ranks: expected at least one"),
        ({"scale": None}, TypeError, "scale: expected a real"),
        ({"position": aj.Sinusoidal(8)}, ValueError, "position: .*inside the layer"),
        ({"mask": [True]}, TypeError, "mask: "),
        ({"qk": "False"}, TypeError, "qk: expected True or False"),
    ):
        with pytest.raises(error, match=match):
            call(params, x, y, **settings)
    with pytest.raises(NotImplementedError, match="QK-norm"):
        call(NORMED, x, y)
