"""Masks by row sums, by hand, in blocks, and combined."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attention_jax as aj
from attention_jax import masks
from attention_jax.masks import Mask

IDS = np.array([[1, 1, 1, 2, 2, 0], [3, 3, 1, 1, -1, -1]])


def whole(mask, queries=6, keys=6, rank=4):
    shape = (2, 3, queries, keys)[4 - rank :]
    positions = jnp.arange(queries) + keys - queries, jnp.arange(keys)
    return np.asarray(masks.render(mask, shape, *positions))


def sums(mask, **sizes):
    return whole(mask, **sizes).sum(-1).reshape(-1).tolist()


def test_row_sums():
    assert sums(aj.causal()) == [1, 2, 3, 4, 5, 6]
    assert sums(aj.causal(), queries=2) == [5, 6]
    assert sums(aj.causal(), queries=6, keys=4) == [0, 0, 1, 2, 3, 4]
    assert sums(aj.sliding_window(1)) == [1] * 6
    assert sums(aj.sliding_window(2)) == [2, 3, 3, 3, 3, 2]
    assert sums(aj.sliding_window(3)) == [3, 4, 5, 5, 4, 3]
    assert sums(aj.sliding_window(99)) == [6] * 6
    assert sums(aj.causal() & aj.sliding_window(3)) == [1, 2, 3, 3, 3, 3]
    assert sums(aj.padding(np.array([4, 0]))) == [4, 0]
    assert sums(aj.padding(5)) == [5]
    assert sums(aj.padding([9, 6])) == [6, 6]
    assert sums(aj.segments(IDS)) == [3, 3, 3, 2, 2, 0, 2, 2, 2, 2, 0, 0]
    assert sums(aj.segments(IDS) & aj.causal()) == [1, 2, 3, 1, 2, 0, 1, 2, 1, 2, 0, 0]
    assert sums(aj.segments(IDS[0])) == [3, 3, 3, 2, 2, 0]


def test_segments_for_cross_attention():
    rendered = whole(aj.segments(IDS[:, :2], IDS), queries=2)
    expected = (IDS[:, :2, None] == IDS[:, None]) & (IDS[:, :2, None] > 0)
    np.testing.assert_array_equal(rendered, expected[:, None])


def test_c45_mask_of_packed_documents_by_hand():
    expected = np.zeros((6, 6), bool)
    expected[:3, :3], expected[3:5, 3:5] = np.tril(np.ones((3, 3))), np.tril(np.ones((2, 2)))
    for padding_id in (0, -1):
        ids = np.array([1, 1, 1, 2, 2, padding_id])
        rendered = whole(aj.causal() & aj.segments(ids))
        np.testing.assert_array_equal(rendered[0, 0], expected)


def test_rows_have_their_own_positions():
    positions = jnp.array([[0, 1, 2], [5, 3, 4]])
    rendered = aj.causal().render(positions, positions)
    expected = positions[:, None, None, :] <= positions[:, None, :, None]
    np.testing.assert_array_equal(rendered, expected)
    assert rendered.shape == (2, 1, 3, 3)
    window = aj.sliding_window(2).render(positions, jnp.arange(6))
    np.testing.assert_array_equal(
        window, np.abs(np.asarray(positions)[:, None, :, None] - np.arange(6)) < 2
    )


def test_left_padding_by_negative_positions():
    positions = jnp.array([[-2, -1, 0, 1], [0, 1, 2, 3]])
    mask = aj.causal() & aj.padding(jnp.array([2, 4]))
    x = jax.random.normal(jax.random.key(0), (2, 4, 1, 3))
    output = aj.attend(x, x, x, mask=mask, query_positions=positions, key_positions=positions)
    alone = aj.attend(x[:1, 2:], x[:1, 2:], x[:1, 2:], mask=aj.causal())
    np.testing.assert_allclose(output[:1, 2:], alone, atol=1e-6)
    assert not np.any(output[0, :2])
    np.testing.assert_allclose(
        output[1:], aj.attend(x[1:], x[1:], x[1:], mask=aj.causal()), atol=1e-6
    )


ARRAY = np.random.default_rng(0).random((2, 3, 6, 6)) < 0.7
BLOCKED = {
    "causal": aj.causal(),
    "window": aj.sliding_window(2),
    "padding": aj.padding(np.array([4, 5])),
    "segments": aj.segments(IDS),
    "array": ARRAY & aj.sliding_window(6),
    "broadcast array": ARRAY[:, :, :1] & aj.causal(),
    "all": ARRAY & aj.causal() & aj.segments(IDS) & aj.padding(np.array([4, 5])),
}


@pytest.mark.parametrize("mask", BLOCKED.values(), ids=BLOCKED)
@pytest.mark.parametrize("traced", [False, True], ids=["static", "traced"])
def test_blocks_tile_to_the_whole(mask, traced):
    positions = jnp.arange(6)
    expected = np.broadcast_to(mask.render(positions, positions), (2, 3, 6, 6))

    def block(mask, queries, keys, query_start, key_start):
        return mask.render(queries, keys, query_start=query_start, key_start=key_start)

    block = jax.jit(block) if traced else block
    tiled = np.zeros((2, 3, 6, 6), bool)
    for i in range(0, 6, 2):
        for j in range(0, 6, 3):
            tiled[..., i : i + 2, j : j + 3] = block(
                mask, positions[i : i + 2], positions[j : j + 3], i, j
            )
    np.testing.assert_array_equal(tiled, expected)
    assert not expected.all()


@pytest.mark.parametrize("mask", [aj.segments(IDS), BLOCKED["array"]], ids=["segments", "array"])
def test_a_block_beyond_the_end_is_not_shifted_silently(mask):
    positions = jnp.arange(6)
    expected = np.broadcast_to(mask.render(positions, positions), (2, 3, 6, 6))[..., 4:, :]
    try:
        block = mask.render(jnp.arange(3) + 4, positions, query_start=4)
    except ValueError:
        return
    block = np.broadcast_to(block, (2, 3, 3, 6))
    np.testing.assert_array_equal(block[..., :2, :], expected)
    assert not block[..., 2, :].any()


@pytest.mark.parametrize("module", [np, jnp])
def test_arrays_combine_on_both_sides(module):
    array = module.asarray(ARRAY)
    expected = ARRAY & np.tril(np.ones((6, 6), bool))
    for mask in (array & aj.causal(), aj.causal() & array):
        assert isinstance(mask, Mask)
        np.testing.assert_array_equal(whole(mask), expected)
    traced = jax.jit(lambda a: (a & aj.causal() & a).render(jnp.arange(6), jnp.arange(6)))
    np.testing.assert_array_equal(traced(array), expected)


def test_intersections_are_associative_and_flat():
    a, b, c = aj.causal(), aj.sliding_window(3), aj.padding(np.array([4, 5]))
    np.testing.assert_array_equal(whole((a & b) & c), whole(a & (b & c)))
    assert len(jax.tree.leaves((a & b) & c)) == 1
    assert a & b == aj.causal() & aj.sliding_window(3)
    assert hash(a & b) == hash(aj.causal() & aj.sliding_window(3))
    assert a & b != aj.causal() & aj.sliding_window(4)


@pytest.mark.parametrize("mask", BLOCKED.values(), ids=BLOCKED)
def test_masks_are_pytrees(mask):
    leaves, structure = jax.tree.flatten(mask)
    again = structure.unflatten(leaves)
    assert type(again) is type(mask)
    positions = jnp.arange(6)
    through = jax.jit(lambda mask: mask)(mask)
    np.testing.assert_array_equal(
        through.render(positions, positions), mask.render(positions, positions)
    )


def test_masks_map_over_a_batch():
    lengths = jnp.array([4, 1])
    x = jax.random.normal(jax.random.key(0), (2, 6, 3, 2))
    mapped = jax.vmap(lambda x, mask: aj.attend(x, x, x, mask=mask))(x, aj.padding(lengths))
    np.testing.assert_allclose(mapped, aj.attend(x, x, x, mask=aj.padding(lengths)), atol=1e-6)


def test_masks_are_frozen():
    with pytest.raises(AttributeError):
        aj.sliding_window(3).width = 4


@pytest.mark.parametrize(
    "call,error,match",
    [
        (lambda: aj.sliding_window(0), ValueError, "width"),
        (lambda: aj.sliding_window(2.0), TypeError, "width"),
        (lambda: aj.sliding_window(True), TypeError, "width"),
        (lambda: aj.padding([2.0]), TypeError, "lengths"),
        (lambda: aj.padding([True]), TypeError, "lengths"),
        (lambda: aj.padding(None), TypeError, "lengths"),
        (lambda: aj.padding([3, -1]), ValueError, "lengths"),
        (lambda: aj.segments(np.ones(3)), TypeError, "query_ids"),
        (lambda: aj.segments([1], np.ones(3)), TypeError, "key_ids"),
        (lambda: aj.segments(1), ValueError, "query_ids"),
        (lambda: aj.causal() & None, TypeError, "mask"),
        (lambda: aj.causal() & 1, TypeError, "mask"),
        (lambda: aj.causal() & [[True]], TypeError, "mask.*list"),
        (lambda: np.ones((1, 1, 3, 3)) & aj.causal(), TypeError, "mask.*float64"),
        (lambda: jnp.ones((1, 1, 3, 3), int) & aj.causal(), TypeError, "mask.*int32"),
        (lambda: whole(aj.segments(IDS[:, :5])), ValueError, "segments query_ids"),
        (lambda: whole(aj.segments(IDS, IDS[:, :5])), ValueError, "segments key_ids"),
        (lambda: whole(aj.padding([1, 2, 3])), ValueError, "mask"),
        (lambda: whole(aj.padding([1, 2]), rank=3), ValueError, "mask"),
        (lambda: whole(np.array(True) & aj.causal()), ValueError, "mask"),
    ],
)
def test_refusals(call, error, match):
    with pytest.raises(error, match=match):
        call()


@pytest.mark.parametrize("dtype", [jnp.uint8, jnp.uint32, jnp.int8])
def test_positions_of_any_integer_kind_mean_the_same(dtype):
    positions = jnp.arange(5)
    for mask in (aj.sliding_window(2), aj.sliding_window(300), aj.causal()):
        expected = mask.render(positions, positions)
        np.testing.assert_array_equal(
            mask.render(positions.astype(dtype), positions.astype(dtype)), expected
        )


def test_numbers_beyond_32_bits_are_refused():
    with pytest.raises(ValueError, match="lengths: expected numbers of 32 bits"):
        aj.padding(np.array([2**32 + 1]))
    with pytest.raises(ValueError, match="width: expected numbers of 32 bits"):
        aj.sliding_window(2**40)
