"""What "auto" takes on a CPU, by size and request."""

import jax
import jax.numpy as jnp
import numpy as np

import attention_jax as aj
from attention_jax.core import dispatch
from attention_jax.request import Request
from attention_jax.types import Array


def request(length, key_length=None, *, batch=1, dtype=jnp.bfloat16, **more):
    key_length = length if key_length is None else key_length

    def array(length: int) -> Array:
        return jax.ShapeDtypeStruct((batch, length, 8, 64), dtype)

    settings = {
        "mask": aj.causal(),
        "bias": None,
        "position": None,
        "scale": 0.125,
        "softcap": None,
        "dropout_rate": 0.0,
        "dropout_key": None,
        "precision": None,
        "query_positions": jnp.arange(length),
        "key_positions": jnp.arange(key_length),
        "aligned": True,
        "return_weights": False,
    }
    arrays = (array(length), array(key_length), array(key_length))
    return Request(*arrays, **settings | more)


def test_on_a_cpu():
    assert dispatch.chosen(request(512)) == "dense"
    assert dispatch.chosen(request(512, batch=8)) == "blockwise"
    assert dispatch.chosen(request(1024)) == "blockwise"
    assert dispatch.chosen(request(1024, return_weights=True)) == "dense"
    assert dispatch.chosen(request(1, 2**20)) == "dense"
    assert dispatch.chosen(request(16, 2**15)) == "blockwise"


def test_the_answer_of_auto_is_that_of_what_it_takes():
    query, key, value = jax.random.normal(jax.random.key(0), (3, 1, 1024, 1, 8))
    found = {
        name: aj.attend(query, key, value, mask=aj.causal(), implementation=name)
        for name in ("auto", "blockwise", "dense")
    }
    np.testing.assert_array_equal(found["auto"], found["blockwise"])
    assert np.any(found["dense"] != found["blockwise"])
    np.testing.assert_allclose(found["dense"], found["blockwise"], atol=2e-6)
