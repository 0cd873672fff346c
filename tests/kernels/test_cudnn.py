"""What cuDNN is asked: JAX gives the same arguments one meaning on all platforms.

The kernel itself needs a GPU, so here JAX's plain implementation answers.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attention_jax as aj
from attention_jax import kernels
from attention_jax.core.dense import dense_attention
from attention_jax.kernels import cudnn
from attention_jax.masks import Mask
from tests.kernels.cases import request

LENGTHS = jnp.array([[7, 0, 3], [100, 1, 5]])
MASKS: dict[str, tuple[int, Mask | None]] = {
    "nothing": (5, None),
    "causal": (7, aj.causal()),
    "window": (7, aj.causal() & aj.sliding_window(3)),
    "padding": (5, aj.padding(LENGTHS)),
    "causal and padding": (7, aj.causal() & aj.padding(LENGTHS) & aj.padding(6)),
}


def test_its_arguments_mean_what_the_masks_mean():
    rng = np.random.default_rng(0)
    key, value = (jnp.asarray(rng.normal(size=(2, 3, 7, 2, 8)), jnp.float32) for _ in range(2))

    def gradient(evaluate, query, mask):
        def loss(query, key, value):
            output = evaluate(request(query, key, value, mask=mask, scale=0.3))
            return jnp.sum(jnp.sin(output)), output

        return jax.value_and_grad(loss, (0, 1, 2), has_aux=True)(query, key, value)

    @jax.jit
    def run(queries):
        return {
            name: (
                gradient(lambda asked: cudnn.flash(asked, "xla"), queries[:, :, :length], mask),
                gradient(lambda asked: dense_attention(asked)[0], queries[:, :, :length], mask),
            )
            for name, (length, mask) in MASKS.items()
        }

    answers = run(jnp.asarray(rng.normal(size=(2, 3, 7, 4, 8)), jnp.float32))
    for name, (found, expected) in answers.items():
        for one, other in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
            np.testing.assert_allclose(one, other, atol=2e-5, err_msg=name)
    outputs = {name: np.asarray(found[0][1]) for name, (found, _) in answers.items()}
    assert not np.any(outputs["padding"][0, 1]) and np.any(outputs["nothing"][0, 1])
    for name, plain in (("causal", "window"), ("causal", "causal and padding")):
        assert np.max(np.abs(outputs[name] - outputs[plain])) > 0.1
    assert np.max(np.abs(outputs["padding"] - outputs["nothing"])) > 0.1


def test_it_is_refused_where_there_is_no_gpu():
    x = jnp.ones((1, 8, 1, 8), jnp.bfloat16)
    with pytest.raises(NotImplementedError, match="implementation: expected a GPU"):
        kernels.cudnn_attention(request(x, x, x))
