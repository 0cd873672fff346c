"""The NNX modules decode as the linen modules do."""

import jax.numpy as jnp
import numpy as np
from flax import nnx

import attention_jax as aj
from tests.paths import q_fill, variables_of

X, Y = jnp.asarray(q_fill(2, 5, 8)), jnp.asarray(q_fill(2, 3, 8))


def test_caches_are_those_of_linen():
    for linen, kind in (
        (aj.SeparateAttention(2), None),
        (aj.SeparateAttention(2, dropout_rate=0.5), "inputs"),
        (aj.MergedAttention(2, ov="merged"), None),
        (aj.RawAttention(), None),
    ):
        variables = variables_of(linen, X, deterministic=True)
        twin = aj.nnx.from_linen(linen, variables.get("params", {}))
        valid = jnp.ones((2, 5), bool).at[0, :2].set(False)
        outputs = []
        for module in (linen.bind(variables), twin):
            cache = module.init_cache(2, 6, features=8, window=4, kind=kind)
            first, cache = module.extend(X[:, :3], cache, valid=valid[:, :3])
            last, cache = module.extend(X[:, 3:], cache, mask=aj.sliding_window(2))
            cross = module.cross_cache(Y, kind=kind)
            outputs.append((first, last, *module.extend(X, cross)[:1], cache.positions))
        for one, other in zip(*outputs, strict=True):
            np.testing.assert_array_equal(one, other)


def test_weights_are_captured():
    module = aj.nnx.SeparateAttention(2, 8, rngs=nnx.Rngs(0))
    forward = nnx.capture(lambda m, x, c: m.extend(x, c, sow_weights=True), nnx.Intermediate)
    (output, cache), state = forward(module, X, module.init_cache(2, 7))
    (weights,) = nnx.to_pure_dict(state)["attention_weights"]
    assert output.shape == X.shape and weights.shape == (2, 2, 5, 7)
    np.testing.assert_allclose(weights.sum(-1), np.ones((2, 2, 5)), atol=1e-6)
    assert int(cache.length) == 5
