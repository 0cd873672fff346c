"""JAX's default mesh, whose axes are explicit: every form under a sharded batch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attention_jax as aj
from tests.paths import variables_of

MODULES = {
    "separate": aj.SeparateAttention(4),
    "grouped": aj.SeparateAttention(4, num_kv_heads=2, position=aj.Rotary()),
    "merged": aj.MergedAttention(4, position=aj.ALiBi(4)),
    "merged with values": aj.MergedAttention(4, ov="merged"),
    "softcap": aj.MergedAttention(4, softcap=2.0),
    "raw": aj.RawAttention(),
}


@pytest.mark.parametrize("module", MODULES.values(), ids=MODULES)
def test_a_batch_sharded_over_explicit_axes(module):
    mesh = jax.make_mesh((2,), ("data",), devices=jax.devices()[:2])
    assert mesh.axis_types == (jax.sharding.AxisType.Explicit,)
    x = jax.random.normal(jax.random.key(0), (4, 5, 16))
    variables = variables_of(module, x)
    mask = aj.causal() & aj.padding(jnp.array([5, 2, 0, 4]))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))

    @jax.jit
    def both(variables, x):
        def loss(variables, x):
            output = module.apply(variables, x, mask=mask)
            return jnp.sum(output**2), output

        return jax.grad(loss, argnums=1, has_aux=True)(variables, x)

    expected = both(variables, x)
    with jax.set_mesh(mesh):
        got = both(variables, jax.device_put(x, sharding))
    assert len(got[0].devices()) == 2
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-6 * np.abs(other).max(), rtol=0)
