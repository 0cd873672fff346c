"""The blockwise path: equal to the dense one for every block size, and never as large."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import attention_jax as aj
from attention_jax.core.blockwise import Plan, blockwise_attention, plan
from attention_jax.core.dense import dense_attention
from attention_jax.masks import Mask, check_mask
from attention_jax.masks.kinds import Causal
from attention_jax.positions import ScorePosition, positions_or_default
from attention_jax.request import Request
from attention_jax.testing import reference
from tests.paths import k_fill, q_fill, v_fill


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Relative(ScorePosition):
    """A learned bias per head and clipped offset, with derivatives."""

    table: jax.Array

    def bias(self, query_positions, key_positions, dtype=jnp.float32):
        offsets = query_positions[..., :, None] - key_positions[..., None, :]
        index = jnp.clip(offsets, -3, 3) + 3
        return jnp.moveaxis(self.table.astype(dtype)[:, index], 0, -3)


def request(query, key, value, *, mask=None, bias=None, position=None, scale=None, softcap=None,
            dropout_rate=0.0, dropout_key=None):  # fmt: skip
    *batch, length, heads, width = query.shape
    shape = (*batch, heads, length, key.shape[-3])
    positions = positions_or_default(None, None, query.shape[:-2], key.shape[:-2])
    return Request(
        query, key, value, check_mask(mask, shape, *positions), bias, position,
        width**-0.5 if scale is None else scale, softcap, dropout_rate, dropout_key, None,
        *positions, aligned=True, return_weights=False,
    )  # fmt: skip


def both(size, *arrays, **settings):
    """Dense and blockwise outputs, with tiles of `size` = (rows, heads, queries, keys)."""
    asked = request(*arrays, **settings)
    return dense_attention(asked)[0], blockwise_attention(asked, Plan(*size))


def test_c32_lengths_that_are_no_multiple_of_the_block():
    value = jnp.arange(1.0, 6.0).reshape(1, 5, 1, 1)
    zero = jnp.zeros_like(value)

    @jax.jit
    def run():
        found = []
        for tile in ((1, 1), (2, 4), (4, 2), (5, 8), (8, 5), (128, 128), (1, 128), (128, 1)):
            size = (1, 1, *tile)
            found.append(
                (
                    both(size, zero, zero, value)[1].ravel(),
                    both(size, zero, zero, value, mask=aj.causal())[1].ravel(),
                    both(size, zero[:, :3], zero, value, mask=aj.causal())[1].ravel(),
                )
            )
        return found

    for everything, causal, fewer in run():
        np.testing.assert_allclose(everything, [3.0] * 5, atol=1e-6)
        np.testing.assert_allclose(causal, [1, 1.5, 2, 2.5, 3], atol=1e-6)
        np.testing.assert_allclose(fewer, [2, 2.5, 3], atol=1e-6)


def test_c32_outputs_and_gradients_of_fills():
    length, heads = 137, 4
    query = q_fill(2, length, heads, 4)
    key, value = k_fill(2, length, 2, 4), v_fill(2, length, 1, 3)
    bias = jnp.asarray(k_fill(1, heads, length, 1)) * jnp.asarray(q_fill(1, 1, 1, length))
    expected, _ = reference.attend(query, key, value, bias=bias, mask=np.tri(length, dtype=bool))

    def gradients(evaluate):
        def loss(query, key, value, bias):
            output = evaluate(query, key, value, bias=bias, mask=aj.causal())
            return jnp.sum(output * jnp.cos(jnp.arange(output.size)).reshape(output.shape)), output

        return jax.grad(loss, argnums=(0, 1, 2, 3), has_aux=True)(query, key, value, bias)

    @jax.jit
    def run():
        sizes = [(1, 2, 32, 64), (2, 4, 137, 16), (1, 1, 40, 137)]
        blocks = [gradients(lambda *x, size=size, **kw: both(size, *x, **kw)[1]) for size in sizes]
        return gradients(lambda *x, **kw: both((1, 1, 8, 8), *x, **kw)[0]), blocks

    (dense, output), blocks = run()
    np.testing.assert_allclose(output, expected, atol=2e-6)
    for found, output in blocks:
        np.testing.assert_allclose(output, expected, atol=2e-6)
        for one, other in zip(dense, found, strict=True):
            assert np.any(one)
            np.testing.assert_allclose(one, other, atol=1e-5)


def settings_of(rng, lengths):
    """Masks, biases, and what else may stand in a request, for 2 rows and 6 heads."""
    t, s = lengths
    array = rng.random((2, 6, t, s)) < 0.7
    array[0, 2, 3] = False
    ids = rng.integers(0, 3, (2, max(lengths)))
    return {
        "nothing": {},
        "causal": {"mask": aj.causal()},
        "window": {"mask": aj.sliding_window(7), "softcap": 1.5},
        "padding": {"mask": aj.padding(np.array([s, 4])), "scale": jnp.array(0.3)},
        "no keys": {"mask": aj.padding(np.array([0, s]))},
        "segments": {"mask": aj.segments(ids[:, :t], ids[:, :s]) & aj.causal()},
        "array": {"mask": array, "bias": jnp.asarray(rng.normal(size=(2, 6, t, s)))},
        "heads": {"mask": array[:1, :, :1], "bias": jnp.asarray(rng.normal(size=(1, 6, 1, s)))},
        "rows": {"mask": array[:, :1, :, :1], "bias": jnp.asarray(rng.normal(size=(2, 1, t, 1)))},
        "alibi": {"mask": aj.causal() & aj.padding(5), "position": aj.ALiBi(6)},
        "relative": {"position": Relative(jnp.asarray(rng.normal(size=(6, 7)))), "softcap": 2.0},
        "dropout": {"mask": aj.causal(), "dropout_rate": 0.4, "dropout_key": jax.random.key(1)},
    }


@pytest.mark.parametrize(
    ("lengths", "heads", "size", "names"),
    [
        ((13, 17), (6, 3, 2), (1, 6, 5, 4), None),
        ((17, 11), (6, 6, 1), (2, 2, 8, 16), ("array", "relative", "dropout")),
    ],
)
def test_outputs_and_all_gradients_in_float64(lengths, heads, size, names):
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        t, s = lengths
        arrays = [
            jnp.asarray(rng.normal(size=shape))
            for shape in ((2, t, heads[0], 5), (2, s, heads[1], 5), (2, s, heads[2], 3))
        ]
        everything = settings_of(rng, lengths)
        everything = {name: everything[name] for name in names or everything}

        def compare(name, way):
            settings = everything[name]
            traced = {
                key: value
                for key, value in settings.items()
                if key in ("bias", "position", "scale") and jax.tree.leaves(value)
                and name != "alibi"
            }  # fmt: skip

            def loss(arrays, traced):
                output = both(size, *arrays, **settings | traced)[way]
                return jnp.sum(jnp.sin(output) * jnp.arange(3.0)[None, None, None]), output

            return jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(arrays, traced)

        run = jax.jit(lambda: [{name: compare(name, way) for name in everything} for way in (0, 1)])
        dense, blocks = run()
    for name, expected in dense.items():
        found = jax.tree.leaves(blocks[name])
        for one, other in zip(jax.tree.leaves(expected), found, strict=True):
            assert np.all(np.isfinite(one))
            np.testing.assert_allclose(other, one, atol=1e-12, err_msg=name)


def arrays_of(length, heads=1, batch=1):
    return [jax.ShapeDtypeStruct((batch, length, heads, 64), jnp.float32)] * 3


def kinds(length):
    ids = jnp.arange(length) // 300
    return {
        "plain": {},
        "causal": {"mask": aj.causal()},
        "window": {"mask": aj.causal() & aj.sliding_window(256)},
        "padding": {"mask": aj.padding(jnp.array([length - 5]))},
        "segments": {"mask": aj.segments(ids) & aj.causal()},
        "array": {"mask": aj.causal() & jnp.arange(length)[None, None, None, :].astype(bool)},
        "bias": {"bias": jnp.ones((1, 1, 1, length))},
        "alibi": {"position": aj.ALiBi(1), "softcap": 20.0},
        "dropout": {"dropout_rate": 0.1, "dropout_key": jax.random.key(0)},
    }


def loss_of(implementation, settings):
    def loss(*arrays):
        return jnp.sum(aj.attend(*arrays, implementation=implementation, **settings) ** 2)

    return loss


def gradient(implementation, settings):
    return jax.value_and_grad(loss_of(implementation, settings), argnums=(0, 1, 2))


def largest(jaxpr):
    """The largest array of a jaxpr and of all that are inside it."""
    sizes = [0]
    for equation in jaxpr.eqns:
        sizes += [getattr(out.aval, "size", 0) for out in equation.outvars]
        for inner in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")
        ):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                sizes.append(largest(inner))
    return max(sizes)


@pytest.mark.parametrize("kind", kinds(8))
def test_c35_no_array_is_as_large_as_the_scores(kind):
    length = 4096
    settings = kinds(length)[kind]
    traced = jax.make_jaxpr(gradient("blockwise", settings))(*arrays_of(length))
    assert largest(traced.jaxpr) < length**2 / 8
    if kind == "causal":
        dense = jax.make_jaxpr(gradient("dense", settings))(*arrays_of(length))
        assert largest(dense.jaxpr) == length**2


@pytest.mark.parametrize("kind", ["causal", "dropout"])
def test_c35_temporary_memory_grows_linearly(kind):
    def temporary(length):
        lowered = jax.jit(gradient("blockwise", kinds(length)[kind])).lower(*arrays_of(length))
        return lowered.compile().memory_analysis().temp_size_in_bytes

    assert temporary(8192) < 2.2 * temporary(4096)


@pytest.mark.slow
def test_a_sequence_of_65536_tokens():
    query, key, value = jax.random.normal(jax.random.key(0), (3, 1, 65536, 1, 64))
    loss, gradients = jax.jit(gradient("blockwise", {"mask": aj.causal()}))(query, key, value)
    assert np.isfinite(loss) and all(np.all(np.isfinite(x)) for x in gradients)
    first = aj.attend(query[:, :100], key[:, :100], value[:, :100], mask=aj.causal())
    whole = aj.attend(query, key, value, mask=aj.causal(), implementation="blockwise")
    np.testing.assert_allclose(whole[:, :100], first, atol=2e-6)
    np.testing.assert_allclose(jnp.sum(whole**2), loss, rtol=1e-5)


def test_sharded_mapped_and_recomputed():
    arrays = jax.random.normal(jax.random.key(0), (3, 4, 40, 2, 8))
    single = jax.jit(gradient("dense", {"mask": aj.causal()}))(*arrays)
    run = gradient("blockwise", {"mask": aj.causal()})
    mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))
    data = PartitionSpec("data")
    cut = [jax.device_put(x, NamedSharding(mesh, data)) for x in arrays]

    def per_device(*arrays):
        loss, gradients = run(*arrays)
        return jax.lax.psum(loss, "data"), gradients

    specs = {"mesh": mesh, "in_specs": (data,) * 3, "out_specs": (PartitionSpec(), (data,) * 3)}
    compiled = jax.jit(run).lower(*cut).compile()
    assert "all-gather" not in compiled.as_text()
    found = {
        "sharded": compiled(*cut),
        "shard_map": jax.jit(jax.shard_map(per_device, **specs))(*cut),
        "unchecked": jax.jit(jax.shard_map(per_device, check_vma=False, **specs))(*cut),
        "remat": jax.jit(jax.checkpoint(run))(*arrays),
    }
    loss, gradients = jax.jit(jax.vmap(run))(*arrays)
    found["vmap"] = jnp.sum(loss), gradients
    whole = jax.vmap(loss_of("blockwise", {"mask": aj.causal()}))
    found["gradient of vmap"] = jax.jit(
        jax.value_and_grad(lambda *x: jnp.sum(whole(*x)), (0, 1, 2))
    )(*arrays)
    loss, gradients = jax.pmap(run)(*(x[:, None] for x in arrays))
    found["pmap"] = jnp.sum(loss), [x[:, 0] for x in gradients]
    for name, (loss, gradients) in found.items():
        np.testing.assert_allclose(loss, single[0], rtol=1e-6, err_msg=name)
        for one, other in zip(gradients, single[1], strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5, err_msg=name)


def test_what_devices_share_gets_the_sum_of_gradients():
    query, key, value = jax.random.normal(jax.random.key(0), (3, 4, 24, 2, 8))
    mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))

    def loss(query, key, value):
        key, value = (jnp.broadcast_to(x, (len(query), *x.shape[1:])) for x in (key, value))
        output = aj.attend(query, key, value, mask=aj.causal(), implementation="blockwise")
        return jnp.sum(output**2)

    expected = jax.jit(jax.grad(loss, 1))(query, key[:1], value[:1])
    data, same = PartitionSpec("data"), PartitionSpec()
    split = jax.shard_map(jax.grad(loss, 1), mesh=mesh, in_specs=(data, same, same), out_specs=same)
    np.testing.assert_allclose(jax.jit(split)(query, key[:1], value[:1]), expected, atol=1e-5)


@pytest.mark.parametrize("differentiate", ["jvp", "hessian", "jit", "twice"])
def test_other_derivatives_are_refused_with_the_dense_path_named(differentiate):
    x = jnp.ones((1, 3, 1, 2))

    def loss(x):
        return jnp.sum(aj.attend(x, x, x, implementation="blockwise") ** 2)

    run = {
        "jvp": lambda: jax.jvp(loss, (x,), (x,)),
        "hessian": lambda: jax.hessian(loss)(x),
        "twice": lambda: jax.grad(lambda x: jnp.sum(jax.grad(loss)(x) ** 2))(x),
        "jit": lambda: jax.jit(lambda x: jax.jvp(loss, (x,), (x,)))(x),
    }
    with pytest.raises(NotImplementedError, match="'dense' in (forward-mode|second)"):
        run[differentiate]()


@pytest.mark.parametrize(
    "sizes",
    [(1, 8, 8, 8), (32, 8, 8, 8), (3, 9, 3, 3), (2, 12, 1, 12), (5, 6, 2, 3), (1, 32, 1, 1),
     (7, 10, 5, 2)],
)  # fmt: skip
@pytest.mark.parametrize("lengths", [(1, 5000), (600, 513), (4096, 4096), (65536, 65536)])
def test_plans_fit(sizes, lengths):
    batch, heads, key_heads, value_heads = sizes
    for on_cpu in (True, False):
        tile = plan(batch, heads, key_heads, value_heads, lengths, on_cpu)
        assert batch % tile.rows == 0 and heads % tile.heads == 0
        for groups in (key_heads, value_heads):
            assert tile.heads % (heads // groups) == 0 or (heads // groups) % tile.heads == 0
        assert 1 <= tile.queries <= lengths[0] and 1 <= tile.keys <= lengths[1]
        if on_cpu:
            assert tile.rows * tile.heads * tile.queries * tile.keys <= 2**20


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Named(Mask):
    """A user's own mask, with an array of which blocks know nothing."""

    hidden: jax.Array

    def _visible(self, block):
        return (block.key_positions != self.hidden)[None, None]


def test_what_blocks_cannot_do_goes_to_the_dense_path():
    query, key, value = jax.random.normal(jax.random.key(0), (3, 1024, 1, 4))
    moving = {"position": aj.ALiBi(1), "key_positions": jnp.arange(1024.0)}
    for settings, argument in (
        ({"mask": Named(jnp.array(3))}, "mask"),
        (moving, "query_positions"),
    ):
        with pytest.raises(NotImplementedError, match=f"^{argument}: .*'blockwise'.*'dense'"):
            aj.attend(query, key, value, implementation="blockwise", **settings)
        found = aj.attend(query, key, value, **settings)
        dense = aj.attend(query, key, value, implementation="dense", **settings)
        np.testing.assert_array_equal(found, dense)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Later(Causal):
    """Shows the opposite of its base, whose knowledge of blocks would hide it."""

    def _visible(self, block):
        return (block.key_positions[None, :] >= block.query_positions[:, None])[None]


def test_a_subclass_does_not_inherit_which_blocks_are_hidden():
    query, key, value = jax.random.normal(jax.random.key(0), (3, 40, 1, 4))
    dense, blocks = both((1, 1, 8, 8), query, key, value, mask=Later())
    assert np.any(dense != both((1, 1, 8, 8), query, key, value, mask=aj.causal())[0])
    np.testing.assert_allclose(blocks, dense, atol=1e-6)
