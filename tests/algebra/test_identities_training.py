"""Identities of training in float64: what gradient descent conserves, and what Adam does not."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import attention_jax as aj
from attention_jax.algebra import pairs, symmetries
from attention_jax.core import merged, separate
from attention_jax.core.layer import attention
from tests.algebra.layers import layer

RNG = np.random.default_rng(11)
X, Y = RNG.normal(size=(6, 7)), RNG.normal(size=(8, 5))
TARGET = RNG.normal(size=(6, 6))
SCALE = 3**-0.5


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def small_layer(**settings):
    params = layer(dtype=np.float64, **settings)
    return jax.tree.map(lambda leaf: jnp.asarray(0.6 * leaf), params)


def loss(params, form=separate, x=X, y=Y, scale=SCALE):
    output = attention(form.query_key, separate.value_output, params, x, y, scale=scale)
    return jnp.mean(jnp.square(output - TARGET))


def train(gradient, optimizer, params, steps):
    """Returns the parameters after the steps; their number may be traced."""

    def step(_, carry):
        params, state = carry
        updates, state = optimizer.update(gradient(params), state, params)
        return optax.apply_updates(params, updates), state

    return jax.lax.fori_loop(0, steps, step, (params, optimizer.init(params)))[0]


def distance(one, other):
    differences = jax.tree.map(lambda a, b: np.abs(np.asarray(a) - b).max(), one, other)
    return max(jax.tree.leaves(differences))


def imbalance(params, side):
    """`left^T left - right^T right` for each group, biases being rows."""
    left, right = pairs.split(params, side)
    return np.einsum("gmk,gmr->gkr", left, left) - np.einsum("gmk,gmr->gkr", right, right)


@functools.partial(jax.jit, static_argnames="steps")
def flow(params, decay, time, steps):
    """Gradient flow with L2 `decay`, by the classical Runge-Kutta method."""

    def slope(p):
        return jax.tree.map(lambda g, w: -g - decay * w, jax.grad(loss)(p), p)

    def moved(p, k, h):
        return jax.tree.map(lambda w, d: w + h * d, p, k)

    def step(_, p):
        h = time / steps
        k1 = slope(p)
        k2 = slope(moved(p, k1, h / 2))
        k3 = slope(moved(p, k2, h / 2))
        k4 = slope(moved(p, k3, h))
        return jax.tree.map(
            lambda w, a, b, c, d: w + h / 6 * (a + 2 * b + 2 * c + d), p, k1, k2, k3, k4
        )

    return jax.lax.fori_loop(0, steps, step, params)


def test_identity_3_conserved_under_gradient_flow():
    """W_q^T W_q - W_k^T W_k is constant, and with L2 lam on both it decays as e^(-2 lam t)."""
    params, time = small_layer(), 1.0
    for decay in (0.0, 0.3):
        after = flow(params, decay, time, 400)
        assert distance(after, params) > 0.05
        for side in ("qk", "ov"):
            before = imbalance(params, side)
            expected = np.exp(-2 * decay * time) * before
            np.testing.assert_allclose(imbalance(after, side), expected, atol=1e-10)
            if decay:
                assert np.abs(expected - before).max() > 0.1


def test_identity_3_drift_of_one_step_of_gradient_descent():
    """One step moves it by eta^2 (W_k^T G^T G W_k - W_q^T G G^T W_q), G = dL/dW."""
    params, rate = small_layer(bias=False), 0.5
    gradient = jax.jit(jax.grad(loss))(params)
    after = jax.tree.map(lambda w, g: w - rate * g, params, gradient)
    whole = jax.jit(jax.grad(functools.partial(loss, form=merged)))(aj.merge(params))
    stacks = np.asarray(whole["qk"]["kernel"]).swapaxes(0, 1).reshape(2, -1, 5)
    left, right = (np.asarray(factor) for factor in pairs.split(params, "qk"))
    left, right = left.reshape(2, 2, 8, 3)[:, :, :-1].reshape(2, -1, 3), right[:, :-1]
    one, other = stacks @ right, stacks.swapaxes(1, 2) @ left
    drift = rate**2 * (one.swapaxes(1, 2) @ one - other.swapaxes(1, 2) @ other)
    found = imbalance(after, "qk") - imbalance(params, "qk")
    np.testing.assert_allclose(found, drift, atol=1e-12)
    assert np.abs(drift).max() > 1e-3


def test_identity_3_adam_does_not_conserve_it():
    """At an equal path, steps of half the size halve the drift of gradient descent, not Adam's."""
    params, drifts = small_layer(), {}
    for name, optimizer, time in (("sgd", optax.sgd, 1.0), ("adam", optax.adam, 0.2)):

        @jax.jit
        def trained(params, rate, steps, optimizer=optimizer):
            return train(jax.grad(loss), optimizer(rate), params, steps)

        for steps in (100, 200):
            after = trained(params, time / steps, steps)
            assert distance(after, params) > 0.05
            moved = imbalance(after, "qk") - imbalance(params, "qk")
            drifts[name, steps] = np.abs(moved).max()
    assert drifts["sgd", 200] / drifts["sgd", 100] == pytest.approx(0.5, abs=0.05)
    assert drifts["adam", 200] / drifts["adam", 100] == pytest.approx(1.0, abs=0.05)
    assert drifts["adam", 200] > 0.1 > 10 * drifts["sgd", 200]


def test_identity_6_descent_on_merged_weights_turns_with_the_basis():
    """x -> x Q, W -> Q^T W Q leaves scores alone; GD commutes with it, Adam does not."""
    params = aj.merge(small_layer(d=5, e=5))
    q = np.linalg.qr(np.random.default_rng(0).normal(size=(5, 5)))[0]
    x, y = X[:, :5], Y

    def turned(p):
        return symmetries.change_basis(p, q, q, q)

    forward = functools.partial(attention, merged.query_key, separate.value_output, scale=SCALE)
    weights = [
        np.asarray(forward(p, a, b, return_weights=True)[1])
        for p, a, b in ((params, x, y), (turned(params), x @ q, y @ q), (params, x @ q, y @ q))
    ]
    np.testing.assert_allclose(weights[1], weights[0], atol=1e-10)
    assert np.abs(weights[2] - weights[0]).max() > 0.01
    slope_turned = jax.grad(functools.partial(loss, form=merged, x=x @ q, y=y @ q))
    slope = jax.grad(functools.partial(loss, form=merged, x=x, y=y))
    apart = {}
    for name, optimizer in (("sgd", optax.sgd(0.3)), ("adam", optax.adam(0.01))):

        @jax.jit
        def both(p, optimizer=optimizer):
            one = train(slope, optimizer, p, 5)
            return one, train(slope_turned, optimizer, turned(p), 5)

        one, other = both(params)
        assert distance(one, params) > 0.01
        apart[name] = distance(turned(one), other)
    assert apart["sgd"] < 1e-10 and apart["adam"] > 1e-3


def with_zeros(params, *names):
    zeros = {name: jax.tree.map(jnp.zeros_like, params[name]) for name in names}
    return {**params, **zeros}


def test_identity_9_zero_trains_merged_and_is_a_saddle_of_two_factors():
    """W = 0 trains when merged, W_q = W_k = 0 never moves, W_q = 0 with random W_k trains."""
    params = small_layer(bias=False)
    starts = {
        "merged": (merged, with_zeros(aj.merge(params), "qk"), ("qk",)),
        "both zero": (separate, with_zeros(params, "query", "key"), ("query", "key")),
        "queries zero": (separate, with_zeros(params, "query"), ("query", "key")),
    }
    moved = {}
    for name, (form, start, watched) in starts.items():
        value = functools.partial(loss, form=form)

        @jax.jit
        def trained(start, value=value):
            after = train(jax.grad(value), optax.sgd(0.3), start, 10)
            return after, value(start) - value(after), jax.grad(value)(start)

        after, progress, gradient = trained(start)
        moved[name] = [distance(after[entry], start[entry]) for entry in watched]
        assert progress > 0
        if name == "queries zero":
            assert np.abs(gradient["query"]["kernel"]).max() > 1e-3
            assert not np.any(gradient["key"]["kernel"])
    assert moved["both zero"] == [0, 0]
    assert min(moved["merged"]) > 1e-2 and min(moved["queries zero"]) > 1e-4


C, DECAY = 4.0, 0.1
# Optimisers of W at rate 0.1, and of W / c: the one that follows, and others that do not.
TEMPERATURES = {
    "gradient descent": (
        optax.sgd(0.1),
        optax.sgd(0.1 / C**2),
        [optax.sgd(0.1), optax.sgd(0.1 / C)],
    ),
    "Adam": (
        optax.adam(0.1, eps=1e-3),
        optax.adam(0.1 / C, eps=1e-3 * C),
        [optax.adam(0.1, eps=1e-3 * C), optax.adam(0.1 / C**2, eps=1e-3 * C),
         optax.adam(0.1 / C, eps=1e-3)],
    ),
    "AdamW": (
        optax.adamw(0.1, eps=1e-3, weight_decay=DECAY),
        optax.adamw(0.1 / C, eps=1e-3 * C, weight_decay=DECAY * C),
        [optax.adamw(0.1 / C, eps=1e-3 * C, weight_decay=DECAY),
         optax.adamw(0.1 / C, eps=1e-3 * C, weight_decay=DECAY / C)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TEMPERATURES)
def test_identity_10_temperature(name):
    """(W, scale) ~ (c W, scale / c): GD needs eta / c^2, Adam eta / c with c eps, decay c lam."""
    optimizer, follower, strangers = TEMPERATURES[name]
    params = aj.merge(small_layer(bias=False))
    kernel, scale = params["qk"]["kernel"], SCALE * C
    np.testing.assert_allclose(
        loss({**params, "qk": {"kernel": kernel / C}}, merged, scale=scale),
        loss(params, merged), atol=1e-12,
    )  # fmt: skip

    @jax.jit
    def paths(kernel):
        def slope(scale):
            return jax.grad(lambda w: loss({**params, "qk": {"kernel": w}}, merged, scale=scale))

        path = train(slope(SCALE), optimizer, kernel, 5)
        others = [train(slope(scale), o, kernel / C, 5) for o in (follower, *strangers)]
        return path, [C * other for other in others]

    path, (same, *different) = paths(kernel)
    assert np.abs(path - kernel).max() > 1e-2
    np.testing.assert_allclose(same, path, atol=1e-10)
    for other in different:
        assert np.abs(other - path).max() > 1e-3
