"""The NNX modules under Flax's transformations."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from flax import nnx

import attention_jax as aj
from tests.paths import q_fill

X = q_fill(2, 5, 8)


def pure(module):
    return nnx.to_pure_dict(nnx.state(module, nnx.Param))


def test_gradients_are_those_of_linen():
    twin = aj.nnx.MergedAttention(2, 8, softcap=2.0, rngs=nnx.Rngs(0))
    module, params = aj.nnx.to_linen(twin)
    got = nnx.jit(nnx.grad(lambda twin: jnp.sin(twin(X)).sum()))(twin)
    expected = jax.jit(jax.grad(lambda p: jnp.sin(module.apply({"params": p}, X)).sum()))(params)
    jax.tree.map(np.testing.assert_array_equal, nnx.to_pure_dict(got), expected)
    assert all(np.abs(leaf).max() > 1e-3 for leaf in jax.tree.leaves(expected))


def take(tree, i):
    return jax.tree.map(lambda x: x[i], tree)


def test_stacked_layers_under_vmap_scan_and_remat():
    @nnx.split_rngs(splits=2)
    @nnx.vmap
    def create(rngs):
        return aj.nnx.MergedAttention(2, 8, rngs=rngs)

    @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
    @nnx.remat
    def scanned(x, layer):
        return x + layer(x, mask=aj.causal())

    def looped(x, layers):
        for layer in layers:
            x = x + layer(x, mask=aj.causal())
        return x

    @nnx.jit
    def run(stack, layers):
        mapped = nnx.vmap(lambda layer: layer(X))(stack)
        one = nnx.value_and_grad(lambda stack: scanned(X, stack).sum())(stack)
        other = nnx.value_and_grad(lambda layers: looped(X, layers).sum())(layers)
        return mapped, [layer(X) for layer in layers], one, other

    stack = nnx.jit(create)(nnx.Rngs(0))
    layers = [aj.nnx.from_linen(stack.settings, take(pure(stack), i)) for i in range(2)]
    mapped, outputs, (one, gradient), (other, gradients) = run(stack, nnx.List(layers))
    assert np.abs(outputs[0] - outputs[1]).max() > 0.01
    np.testing.assert_allclose(mapped, outputs, atol=1e-6)
    np.testing.assert_allclose(one, other, rtol=1e-6)
    for i, expected in nnx.to_pure_dict(gradients).items():
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4),
            take(nnx.to_pure_dict(gradient), i),
            expected,
        )


def test_split_merge_and_clone():
    twin = aj.nnx.MergedAttention(2, 8, position=aj.ALiBi(2), softcap=2.0, rngs=nnx.Rngs(0))
    graphdef, state = nnx.split(twin)
    other = nnx.split(
        aj.nnx.MergedAttention(2, 8, position=aj.ALiBi(2), softcap=2.0, rngs=nnx.Rngs(1))
    )
    # Equal settings are one compilation.
    assert graphdef == other[0] and hash(graphdef) == hash(other[0])
    np.testing.assert_array_equal(nnx.merge(graphdef, state)(X), twin(X))
    np.testing.assert_array_equal(nnx.clone(twin)(X), twin(X))
    assert np.abs(nnx.merge(*other)(X) - twin(X)).max() > 0.01


def test_an_optimizer_trains_in_place():
    twin = aj.nnx.MergedAttention(2, 8, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(twin, optax.sgd(0.05), wrt=nnx.Param)

    @nnx.jit
    def step(twin, optimizer):
        loss, grads = nnx.value_and_grad(lambda twin: jnp.square(twin(X) - X).mean())(twin)
        optimizer.update(twin, grads)
        return loss

    losses = [step(twin, optimizer) for _ in range(4)]
    assert losses == sorted(losses, reverse=True) and losses[-1] < 0.95 * losses[0]


def test_a_dropout_stream_advances_under_jit():
    twin = aj.nnx.SeparateAttention(2, 8, dropout_rate=0.5, deterministic=False, rngs=nnx.Rngs(0))
    step = nnx.jit(lambda twin, x: twin(x))
    assert np.abs(step(twin, X) - step(twin, X)).max() > 0.01
    assert twin.rngs.count[...] == 2


def test_partition_names_shard_the_variables_and_travel():
    init = nn.with_partitioning(nn.initializers.lecun_normal(), (None, "model", None))
    mesh = jax.make_mesh((2,), ("model",), axis_types=(jax.sharding.AxisType.Auto,))
    with jax.set_mesh(mesh):
        twin = aj.nnx.SeparateAttention(2, 8, kernel_init=init, rngs=nnx.Rngs(0))
        kernel = twin.query.kernel
        assert kernel[...].sharding.spec == jax.P(None, "model", None)
        module, params = aj.nnx.to_linen(twin)
        assert params["query"]["kernel"].names == (None, "model", None)
        back = aj.nnx.from_linen(module, params)
        assert back.query.kernel.get_metadata() == kernel.get_metadata()
        output = nnx.jit(lambda twin: twin(X))(back)
    plain = aj.nnx.SeparateAttention(2, 8, rngs=nnx.Rngs(0))
    np.testing.assert_allclose(output, plain(X), atol=1e-6)
