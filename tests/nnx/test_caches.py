"""The NNX modules decode as the linen modules do."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import attention_jax as aj
from tests.paths import q_fill, variables_of

X, Y = jnp.asarray(q_fill(2, 5, 8)), jnp.asarray(q_fill(2, 3, 8))


def decoded(module, valid, kind):
    cache = module.init_cache(2, 6, features=8, window=4, kind=kind)
    first, cache = module.extend(X[:, :3], cache, valid=valid[:, :3])
    last, cache = module.extend(X[:, 3:], cache, mask=aj.sliding_window(2))
    cross = module.cross_cache(Y, kind=kind)
    return first, last, module.extend(X, cross)[0], cache.positions


def test_caches_are_those_of_linen():
    valid = jnp.ones((2, 5), bool).at[0, :2].set(False)
    for linen, kind in (
        (aj.SeparateAttention(2, dropout_rate=0.5), "inputs"),
        (aj.MergedAttention(2, ov="merged"), None),
    ):
        variables = variables_of(linen, X, deterministic=True)
        modules = linen.bind(variables), aj.nnx.from_linen(linen, variables["params"])
        one, other = jax.jit(
            lambda valid, modules=modules, kind=kind: [decoded(m, valid, kind) for m in modules]
        )(valid)
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b)
        assert np.abs(one[0][0, 2] - one[0][1, 2]).max() > 0


def test_weights_are_captured():
    @jax.jit
    def run(x):
        module = aj.nnx.RawAttention()
        forward = nnx.capture(lambda m, x, c: m.extend(x, c, sow_weights=True), nnx.Intermediate)
        (output, cache), state = forward(module, x, module.init_cache(2, 7))
        return output, cache, nnx.to_pure_dict(state)["attention_weights"][0]

    output, cache, weights = run(X)
    assert output.shape == X.shape and weights.shape == (2, 1, 5, 7)
    np.testing.assert_allclose(weights.sum(-1), np.ones((2, 1, 5)), atol=1e-6)
    assert int(cache.length) == 5
