"""Splash attention, step by step on a CPU, against the dense path in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

import attention_jax as aj
from attention_jax.core.dense import dense_attention
from attention_jax.kernels import block_size, splash_attention
from attention_jax.kernels.band import mask_of
from attention_jax.kernels.blocks import padded, widest_row_bytes
from attention_jax.masks.kinds import Causal, SlidingWindow
from tests.kernels.cases import FORMS, arrays, request

RNG = np.random.default_rng(0)
IDS = RNG.integers(-1, 3, (2, 300))
IDS[:, :140] = 2

# (T, S), (H, G, N), (K, V), settings.
CASES = {
    "whole blocks": ((128, 256), (2, 2, 2), (16, 16), {}),
    "window, multi-query": (
        (150, 261), (3, 1, 1), (16, 16), {"mask": aj.sliding_window(40), "softcap": 1.5},
    ),
    "more queries than keys, merged": (
        (300, 150), (4, 1, 4), (24, 8), {"mask": aj.causal(), "scale": jnp.array(0.3)},
    ),
    "padding, merged outputs": (
        (130, 270), (4, 4, 1), (8, 24),
        {"mask": aj.padding(np.array([0, 200])) & aj.causal() & aj.sliding_window(50)},
    ),
    "segments": ((300, 300), (4, 2, 4), (16, 16), {"mask": aj.segments(IDS) & aj.causal()}),
    "segments and padding": (
        (300, 129), (4, 2, 2), (16, 8),
        {"mask": aj.segments(IDS[:1], IDS[1:, :129]) & aj.padding(np.array([1000, 128]))},
    ),
}  # fmt: skip

WITH_LONELY_QUERIES = [
    name for name in CASES if name not in ("whole blocks", "window, multi-query")
]


def inputs(name, dtype=np.float32):
    (length, keys), (heads, groups, values), (width, value_width), _ = CASES[name]
    shapes = ((length, heads, width), (keys, groups, width), (keys, values, value_width))
    return [jnp.asarray(RNG.normal(size=(2, *shape)), dtype) for shape in shapes]


def dense(asked):
    return dense_attention(asked)[0]


interpreted = functools.partial(splash_attention, interpret=True)


def loss_of(evaluate, settings):
    def loss(*given):
        output = evaluate(request(*given, **settings))
        return jnp.sum(jnp.sin(output) * jnp.arange(1.0, 3.0)[:, None, None, None]), output

    return jax.value_and_grad(loss, (0, 1, 2), has_aux=True)


def judged(settings, *given):
    """Output and gradients of the dense path, its weights, and outputs without each setting."""
    asked = request(*given, **settings)
    fewer = [{k: v for k, v in settings.items() if k != setting} for setting in settings]
    outputs = [dense(request(*given, **rest)) for rest in fewer]
    return loss_of(dense, settings)(*given), dense_attention(asked)[1], outputs


@pytest.mark.parametrize("name", CASES)
def test_outputs_and_gradients_are_the_dense_ones(name):
    settings, given = CASES[name][3], inputs(name)
    (_, output), gradients = jax.jit(loss_of(interpreted, settings))(*given)
    with jax.enable_x64(True):
        wide = [np.asarray(x, np.float64) for x in given]
        run = jax.jit(functools.partial(judged, settings))
        ((_, expected), slopes), weights, others = jax.device_get(run(*wide))
    for other in others:
        assert np.max(np.abs(other - expected)) > 0.01
    np.testing.assert_allclose(output, expected, atol=2e-6)
    for found, slope in zip(gradients, slopes, strict=True):
        assert np.max(np.abs(slope)) > 0.1
        np.testing.assert_allclose(found, slope, atol=2e-5)
    # What has no partners gets exactly nothing.
    lonely_queries, lonely_keys = np.all(weights == 0, (1, 3)), np.all(weights == 0, (1, 2))
    assert np.any(lonely_queries) == (name in WITH_LONELY_QUERIES)
    for found, lonely in zip(
        (output, *gradients), (lonely_queries,) * 2 + (lonely_keys,) * 2, strict=True
    ):
        assert np.all(np.asarray(found)[lonely] == 0.0)


def test_bfloat16_and_scales():
    given = [jnp.full((1, 3, 1, 4), 3.0), jnp.ones((1, 3, 1, 4)), jnp.arange(3.0)[None, :, None]]
    query, key, value = (x.astype(jnp.bfloat16).reshape(1, 3, 1, -1) for x in given)
    key = key * jnp.array([0.0, 1.0, 0.0], jnp.bfloat16)[None, :, None, None]

    @jax.jit
    def run(scale):
        asked = [scale, 0.0, -1.0, None]
        return [
            interpreted(request(query, key, value, scale=factor))[0, :, 0, 0] for factor in asked
        ]

    zero, known, negative, default = run(jnp.array(0.0))
    assert zero.dtype == jnp.bfloat16
    np.testing.assert_array_equal(zero, np.ones(3))
    np.testing.assert_array_equal(known, np.ones(3))
    wide = [x.astype(jnp.float32) for x in (query, key, value)]
    np.testing.assert_allclose(default, dense(request(*wide))[0, :, 0, 0], rtol=2**-8)
    np.testing.assert_allclose(negative, np.ones(3), rtol=2**-8)
    assert np.all(np.asarray(default) == 1.0)


def test_any_leading_axes():
    query, key, value = (RNG.normal(size=(2, 3, 5, 2, 8)).astype(np.float32) for _ in range(3))
    settings = {"mask": aj.padding(np.array([[5, 1, 0], [2, 3, 4]]))}
    run = jax.jit(lambda *x: interpreted(request(*x, **settings)))
    found = run(query, key, value)
    expected = dense(request(query, key, value, **settings))
    np.testing.assert_allclose(found, expected, atol=2e-6)
    assert np.all(found[0, 2] == 0.0) and np.any(found[0, 1])
    alone = jax.jit(lambda *x: interpreted(request(*x)))(query[0, 0], key[0, 0], value[0, 0])
    np.testing.assert_allclose(alone, found[0, 0], atol=2e-6)


def test_by_hand_on_four_devices():
    query, key, value = jax.random.normal(jax.random.key(0), (3, 2, 130, 4, 8))
    mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    lengths = jnp.array([130, 70])

    def loss(evaluate, *given):
        query, key, value, lengths = given
        mask = aj.causal() & aj.padding(lengths)
        return jnp.sin(evaluate(request(query, key, value, mask=mask)))

    spec = PartitionSpec("data", None, "model")
    cut = jax.shard_map(
        functools.partial(loss, interpreted),
        mesh=mesh,
        in_specs=(spec, spec, spec, PartitionSpec("data")),
        out_specs=spec,
        check_vma=False,
    )

    def gradient(evaluate):
        return jax.jit(jax.value_and_grad(lambda *x: jnp.sum(evaluate(*x, lengths)), (0, 1, 2)))

    found = gradient(cut)(query, key, value)
    expected = gradient(functools.partial(loss, dense))(query, key, value)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=2e-4), found, expected)
    assert np.max(np.abs(expected[1][0])) > 0.1


@pytest.mark.parametrize("form", FORMS)
def test_lowered_for_a_tpu_without_an_array_as_large_as_the_scores(form):
    length = 2048
    shapes, split = arrays(form, length)

    def loss(*given):
        asked = request(*split(*given), mask=aj.causal() & aj.sliding_window(300))
        return jnp.sum(splash_attention(asked).astype(jnp.float32))

    device = jax.sharding.AbstractDevice(device_kind="TPU v5 lite", num_cores=1, platform="tpu")
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), (), abstract_device=device)):
        traced = jax.jit(jax.grad(loss, tuple(range(len(shapes))))).trace(*shapes)
    text = traced.lower(lowering_platforms=("tpu",)).as_text()
    assert text.count("@tpu_custom_call") == 3
    assert f"x{length}x512x" in text or f"x{length}x64x" in text
    assert f"{length}x{length}x" not in text


@pytest.mark.parametrize("length", [1, 127, 128, 129, 640, 1000, 8192, 65536])
@pytest.mark.parametrize("most", [128, 256, 512])
def test_blocks_cover_a_length_with_little_filling(length, most):
    block, whole = padded(length, most)
    assert block % 128 == 0 and block <= most and whole % block == 0
    assert length <= whole < length + 128 * (whole // block)


def test_wider_rows_have_smaller_blocks_and_more_memory_larger_ones():
    widths = [1, 1536, 1537, 3072, 3073, 6144]
    assert [block_size(n, "TPU v5 lite") for n in widths] == [512, 512, 256, 256, 128, 128]
    assert [block_size(n, "TPU v6 lite") for n in widths] == [512, 512, 512, 512, 256, 256]
    assert block_size(widest_row_bytes("TPU v6 lite"), "TPU v6 lite") == 128


@pytest.mark.parametrize("length", [3, 7, 10])
@pytest.mark.parametrize("width", [None, 1, 3, 2**31 - 1])
@pytest.mark.parametrize("causal", [False, True])
def test_bands_are_the_masks_of_the_library(length, width, causal):
    keys, size = 7, (12, 9)
    around = None if width is None else width - 1
    band = mask_of(size, keys - length, around, 0 if causal else around, keys)
    found = band[slice(0, 12), slice(0, 9)]
    assert not np.any(found[:length, keys:])
    positions = np.arange(length) + keys - length, np.arange(keys)
    expected = np.ones((length, keys), bool)
    for mask in [Causal()] * causal + ([] if width is None else [SlidingWindow(width)]):
        expected &= np.asarray(mask.render(*positions))[0]
    np.testing.assert_array_equal(found[:length, :keys], expected)
    again = mask_of(size, keys - length, around, 0 if causal else around, keys)
    assert band == again and hash(band) == hash(again)
