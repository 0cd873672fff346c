"""Position encodings: values, where they act, and what is out of range."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attention_jax as aj
from tests.paths import k_fill, q_fill, v_fill, variables_of


def by_hand(x, positions, theta=10000.0, style="half"):
    x, positions = np.asarray(x, np.float64), np.asarray(positions, np.float64)
    width = x.shape[-1]
    angles = positions[:, None] * theta ** (-np.arange(0, width, 2) / width)
    c, s = np.cos(angles)[:, None], np.sin(angles)[:, None]
    turned = np.empty_like(x)
    halves = np.s_[..., : width // 2], np.s_[..., width // 2 :]
    one, two = halves if style == "half" else (np.s_[..., 0::2], np.s_[..., 1::2])
    turned[one], turned[two] = x[one] * c - x[two] * s, x[two] * c + x[one] * s
    return turned


@pytest.mark.parametrize(
    "style,first,second",
    [
        ("half", [0.540302, 0, 0.841471, 0], [0, 0.999950, 0, 0.010000]),
        ("interleaved", [0.540302, 0.841471, 0, 0], [-0.841471, 0.540302, 0, 0]),
    ],
)
def test_c23_pairs(style, first, second):
    x = jnp.eye(4)[:2].reshape(2, 1, 1, 4)
    turned = aj.Rotary(style=style).rotate(x, jnp.array([1]))
    np.testing.assert_allclose(turned[:, 0, 0], [first, second], atol=1e-6)


def test_c23_the_styles_differ_by_a_permutation():
    x = jnp.asarray(q_fill(5, 2, 4))
    positions, order = jnp.arange(5), np.array([0, 2, 1, 3])
    half = aj.Rotary().rotate(x[..., order], positions)
    interleaved = aj.Rotary(style="interleaved").rotate(x, positions)
    np.testing.assert_allclose(half, interleaved[..., order], atol=1e-6)
    assert np.abs(aj.Rotary().rotate(x, positions) - interleaved).max() > 0.1


@pytest.mark.parametrize("style", ["half", "interleaved"])
@pytest.mark.parametrize("theta", [10000.0, 1e6, 50])
def test_rotary_by_hand_in_float64(style, theta):
    with jax.enable_x64(True):
        x, positions = jnp.asarray(q_fill(5, 3, 6), jnp.float64), jnp.array([0, 1, 7, 1000, 12345])
        turned = aj.Rotary(theta=theta, style=style).rotate(x, positions)
        assert turned.dtype == jnp.float64
        np.testing.assert_allclose(turned, by_hand(x, positions, theta, style), atol=1e-10)


@pytest.mark.parametrize("style", ["half", "interleaved"])
def test_partial_rotary_turns_the_first_channels_only(style):
    x, positions = jnp.asarray(q_fill(5, 2, 8)), jnp.arange(5)
    turned = aj.Rotary(style=style, fraction=0.5).rotate(x, positions)
    np.testing.assert_array_equal(turned[..., 4:], x[..., 4:])
    expected = by_hand(x[..., :4], np.arange(5), style=style)
    np.testing.assert_allclose(turned[..., :4], expected, atol=1e-6)


def test_partial_rotary_takes_every_fraction_that_fits():
    refused = []
    for percent in range(1, 101):
        for head_dim in (25, 50, 64, 100, 128):
            if percent * head_dim % 200 == 0:
                try:
                    assert (
                        aj.Rotary(fraction=percent / 100).width(head_dim) * 100
                        == percent * head_dim
                    )
                except ValueError:
                    refused.append((percent / 100, head_dim))
    assert not refused


def scores(rotary, q, k, query_positions, key_positions):
    q, k = rotary.rotate(q, query_positions), rotary.rotate(k, key_positions)
    return np.einsum("thk,shk->hts", q, k)


@pytest.mark.parametrize("style", ["half", "interleaved"])
def test_scores_depend_on_differences_of_positions(style):
    q, k = jnp.asarray(q_fill(4, 2, 6)), jnp.asarray(k_fill(5, 2, 6))
    rotary = aj.Rotary(style=style)
    at = jnp.arange(4), jnp.arange(5)
    expected = scores(rotary, q, k, *at)
    shifted = scores(rotary, q, k, at[0] + 100, at[1] + 100)
    np.testing.assert_allclose(shifted, expected, atol=2e-4)
    assert np.abs(scores(rotary, q, k, at[0] + 1, at[1]) - expected).max() > 0.1


@pytest.mark.parametrize("position", [aj.Rotary(), aj.ALiBi(2)], ids=["rotary", "alibi"])
def test_layers_do_not_see_a_shift_of_all_positions(position):
    module = aj.SeparateAttention(2, position=position)
    x = jnp.asarray(q_fill(2, 5, 4))
    variables = variables_of(module, x)
    apply = jax.jit(
        lambda q, k: module.apply(
            variables, x, mask=aj.causal(), query_positions=q, key_positions=k
        )
    )
    at = jnp.arange(5)
    np.testing.assert_allclose(apply(at + 50, at + 50), apply(at, at), atol=2e-5)
    assert np.abs(apply(at + 1, at) - apply(at, at)).max() > 1e-3
    np.testing.assert_allclose(
        module.apply(variables, x, mask=aj.causal()), apply(at, at), atol=1e-6
    )


def test_rotation_has_positions_per_row():
    x = jnp.asarray(q_fill(2, 3, 1, 4))
    positions = jnp.array([[0, 1, 2], [5, 3, 4]])
    turned = aj.Rotary().rotate(x, positions)
    for row in range(2):
        np.testing.assert_allclose(turned[row], by_hand(x[row], positions[row]), atol=1e-5)


def test_rotary_keeps_the_dtype_and_computes_in_float32():
    x = jnp.asarray(q_fill(1, 1, 4), jnp.bfloat16)
    turned = aj.Rotary().rotate(x, jnp.array([1001]))
    assert turned.dtype == jnp.bfloat16
    np.testing.assert_allclose(turned.astype(jnp.float32), by_hand(x, np.array([1001])), atol=2e-2)


def test_alibi_slopes_of_the_paper():
    eight = [2.0**-h for h in range(1, 9)]
    assert aj.ALiBi(8).slopes() == pytest.approx(eight)
    twelve = eight + [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]
    assert aj.ALiBi(12).slopes() == pytest.approx(twelve)
    assert aj.ALiBi(16).slopes() == pytest.approx([2 ** (-h / 2) for h in range(1, 17)])
    assert aj.ALiBi(1).slopes() == pytest.approx([2.0**-8])
    assert aj.ALiBi(3).slopes() == pytest.approx([2.0**-4, 2.0**-8, 2.0**-2])


def test_alibi_in_a_layer_equals_the_bias():
    x = jnp.asarray(q_fill(2, 5, 4))
    plain, alibi = aj.MergedAttention(2), aj.MergedAttention(2, position=aj.ALiBi(2))
    variables = variables_of(plain, x)
    distance = np.abs(np.arange(5)[:, None] - np.arange(5)).astype(np.float32)
    bias = -np.array([2.0**-4, 2.0**-8], np.float32).reshape(1, 2, 1, 1) * distance
    output = alibi.apply(variables, x)
    np.testing.assert_allclose(output, plain.apply(variables, x, bias=bias), atol=1e-6)
    assert np.abs(output - plain.apply(variables, x)).max() > 1e-3
    both = alibi.apply(variables, x, bias=3 * bias)
    np.testing.assert_allclose(both, plain.apply(variables, x, bias=4 * bias), atol=1e-6)


def test_each_declares_where_it_acts():
    acts = [p.acts_on for p in (aj.Rotary(), aj.ALiBi(2), aj.Sinusoidal(4), aj.Learned(3))]
    assert acts == ["query_key", "scores", "inputs", "inputs"]


@pytest.mark.parametrize("style", ["half", "interleaved"])
def test_c54_true_scores_depend_on_the_shift(style):
    one = jnp.array([1.0, 0.0]).reshape(1, 1, 2)
    rotary = aj.Rotary(style=style)
    scores = [
        float(jnp.sum(rotary.rotate(one, jnp.array([shift])) * rotary.rotate(one, jnp.array([0]))))
        for shift in range(3)
    ]
    np.testing.assert_allclose(scores, [1, 0.540302, -0.416147], atol=1e-6)


def test_c54_a_separate_layer_rotates():
    x = jnp.broadcast_to(jnp.array([1.0, 0.0]), (3, 2))
    identity = {"kernel": jnp.eye(2)[:, None]}
    params = {name: identity for name in ("query", "key", "value")}
    params["out"] = {"kernel": jnp.eye(2)[None]}
    module = aj.SeparateAttention(1, use_bias=False, scale=1.0, position=aj.Rotary())
    _, state = module.apply({"params": params}, x, sow_weights=True, mutable=["intermediates"])
    logs = np.log(state["intermediates"]["attention_weights"][0][0, 2])
    np.testing.assert_allclose(logs - logs[2], np.array([-0.416147, 0.540302, 1]) - 1, atol=1e-5)


@pytest.mark.parametrize(
    "call,error,match",
    [
        (lambda: aj.Rotary().rotate(jnp.ones((2, 1, 3)), jnp.arange(2)), ValueError, "even"),
        (
            lambda: aj.Rotary(fraction=0.5).rotate(jnp.ones((2, 1, 6)), jnp.arange(2)),
            ValueError,
            "even",
        ),
        (lambda: aj.Rotary(fraction=0.0), ValueError, "fraction"),
        (lambda: aj.Rotary(fraction=1.5), ValueError, "fraction"),
        (lambda: aj.Rotary(theta=-1.0), ValueError, "theta"),
        (lambda: aj.Rotary(theta=float("nan")), ValueError, "theta"),
        (lambda: aj.Rotary(theta="1"), TypeError, "theta"),
        (lambda: aj.Rotary(style="neox"), ValueError, "style.*'half'.*'interleaved'"),
        (lambda: aj.Rotary().rotate(jnp.ones((2, 1, 4)), jnp.arange(3)), ValueError, "positions"),
        (lambda: aj.Rotary().rotate(jnp.ones((2, 1, 4)), [0, 1]), TypeError, "positions"),
        (lambda: aj.Rotary().rotate(jnp.ones((2, 1, 4), int), jnp.arange(2)), TypeError, "x: "),
        (lambda: aj.ALiBi(0), ValueError, "num_heads"),
        (lambda: aj.ALiBi(2.0), TypeError, "num_heads"),
        (lambda: aj.Sinusoidal(5), ValueError, "features.*even"),
        (lambda: aj.Sinusoidal(4).apply(jnp.ones((2, 6)), jnp.arange(2)), ValueError, "features=4"),
        (lambda: aj.Learned(0), ValueError, "capacity"),
        (
            lambda: aj.SeparateAttention(3, position=aj.ALiBi(2)),
            ValueError,
            "ALiBi\\(num_heads=3\\)",
        ),
        (lambda: aj.SeparateAttention(2, position=aj.Sinusoidal(4)), ValueError, "acts on inputs"),
        (lambda: aj.SeparateAttention(2, position="rope"), TypeError, "position"),
        (lambda: aj.MergedAttention(2, position=aj.Rotary()), NotImplementedError, "Rotary"),
        (
            lambda: aj.RawAttention(position=aj.ALiBi(2)).apply({}, jnp.ones((3, 2))),
            ValueError,
            ".",
        ),
        (
            lambda: aj.RawAttention(position=aj.Rotary()).apply({}, jnp.ones((3, 3))),
            ValueError,
            "even",
        ),
        (
            lambda: aj.attend(*[jnp.ones((2, 3, 1, 4))] * 3, query_positions=jnp.zeros((3, 3))),
            ValueError,
            "query_positions",
        ),
        (
            lambda: aj.attend(*[jnp.ones((3, 1, 4))] * 3, key_positions=jnp.ones(3, bool)),
            TypeError,
            "key_positions",
        ),
    ],
)
def test_refusals(call, error, match):
    with pytest.raises(error, match=match):
        call()


def test_values_are_not_rotated():
    module = aj.RawAttention(position=aj.Rotary())
    x, v = jnp.asarray(q_fill(1, 1, 4)), jnp.asarray(v_fill(1, 1, 4))
    np.testing.assert_allclose(
        module.apply({}, x, x, v, query_positions=jnp.array([5]), key_positions=jnp.array([3])),
        v,
        atol=1e-6,
    )


@pytest.mark.parametrize("dtype", [jnp.uint8, jnp.uint32, jnp.int8])
def test_positions_of_any_integer_kind_mean_the_same(dtype):
    positions = jnp.array([1, 100, 3])
    narrow = positions.astype(dtype)
    table = jnp.arange(600.0).reshape(300, 2)
    cases = {
        "alibi": lambda p: aj.ALiBi(3).bias(p, p),
        "learned": lambda p: aj.Learned(300).apply(jnp.zeros((3, 2)), p, table),
        "rotary": lambda p: aj.Rotary().rotate(jnp.ones((3, 1, 4)), p),
    }
    for name, function in cases.items():
        np.testing.assert_array_equal(function(narrow), function(positions), err_msg=name)


@pytest.mark.parametrize("theta", [-1.0, 0.0, float("nan"), float("inf")])
def test_the_base_must_be_positive(theta):
    for make in (lambda: aj.Sinusoidal(4, theta), lambda: aj.Rotary(theta=theta)):
        with pytest.raises(ValueError, match="theta: expected a positive finite base"):
            make()
