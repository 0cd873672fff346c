"""Identities of tokens, costs and merging in float64; the judge is the NumPy reference."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attention_jax as aj
from attention_jax import testing
from attention_jax.core import attention as layer_function
from attention_jax.core import merged, separate
from attention_jax.testing import reference
from tests.algebra.layers import layer

RNG = np.random.default_rng(3)
X, Y = RNG.normal(size=(5, 7)), RNG.normal(size=(11, 5))
WIDTH, SCALE = 3, 3**-0.5


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def wide_layer(**settings):
    return layer(dtype=np.float64, **settings)


def make(form, position=None, ov="separate", **settings):
    cls = aj.SeparateAttention if form == "separate" else aj.MergedAttention
    grouped = {"num_kv_heads": 2} if "separate" in (form, ov) else {}
    return cls(4, WIDTH, out_features=6, ov=ov, position=position, **grouped, **settings)


def test_identity_5_permutations():
    """f(P X) = P f(X); f(P1 X, Y) = P1 f(X, Y); f(X, P2 Y) = f(X, Y)."""
    params, x = wide_layer(d=5), jnp.asarray(X[:, :5])
    for form, tree in (("separate", params), ("merged", aj.merge(params, ov=True))):
        function = jax.jit(functools.partial(make(form, ov=form).apply, {"params": tree}))
        testing.assert_permutation_equivariant(function, x)
        testing.assert_cross_attention_symmetries(function, x, jnp.asarray(Y))
        rotated = np.roll(function(np.roll(x[:4], 2, 0)), -2, 0)
        np.testing.assert_allclose(rotated, function(x[:4]), atol=1e-10)
        assert np.abs(rotated - np.roll(rotated, 2, 0)).max() > 1e-3


CONTROLS = {
    "causal": lambda p, x: make("separate").apply(p, x, mask=aj.causal()),
    "rotary": lambda p, x: make("separate", aj.Rotary(fraction=2 / 3)).apply(p, x),
    "ALiBi": lambda p, x: make("separate", aj.ALiBi(4)).apply(p, x),
    "absolute": lambda p, x: make("separate").apply(p, aj.Sinusoidal(6).apply(x, jnp.arange(5))),
}


@pytest.mark.parametrize("name", CONTROLS)
def test_identity_5_is_broken_by_order(name):
    """Causal masks and positions, absolute or relative, break it."""
    variables, x = {"params": wide_layer(d=6, e=6)}, jnp.asarray(X[:, :6])
    function = jax.jit(functools.partial(CONTROLS[name], variables))
    with pytest.raises(AssertionError, match="is not P f"):
        testing.assert_permutation_equivariant(function, x, tolerance=1e-3)


def per_pair(form, **sizes):
    """Multiply-adds for each pair of a query and a key: the part linear in both lengths."""
    f = [
        aj.cost.attention(form, query_length=t, key_length=s, use_bias=False, **sizes).forward_flops
        for t, s in ((2, 2), (2, 1), (1, 2), (1, 1))
    ]
    return (f[0] - f[1] - f[2] + f[3]) / 2


def per_token(form, **sizes):
    """Multiply-adds of the projections for each token."""
    one = aj.cost.attention(form, query_length=1, use_bias=False, **sizes).forward_flops
    return one / 2 - per_pair(form, **sizes)


MODELS = {
    "GPT-2 small": (dict(d_model=768, num_heads=12), 6.0, 12.0, 6.0, 0.5),
    "Llama-3 8B": (
        dict(d_model=4096, num_heads=32, num_kv_heads=8, head_dim=128), 25.6, 32.0, 25.6, 2.0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_identity_11_costs(name):
    """Merged over separate: parameters and projections d / 2r, scores d / r, a cache of inputs."""
    sizes, parameters, score, projection, cache = MODELS[name]
    no_bias = dict(use_bias=False, query_length=1)
    plain = aj.cost.attention("separate", **sizes, **no_bias)
    both = aj.cost.attention("merged", ov="merged", **sizes, **no_bias)
    whole = aj.cost.attention("merged", **sizes, **no_bias)
    # Queries and keys have as many parameters as values and outputs, and take as many products.
    assert (whole.parameters - plain.parameters / 2) / (plain.parameters / 2) == parameters
    pair, half = per_pair("merged", **sizes), per_pair("separate", **sizes) / 2
    assert (pair - half) / half == score
    token, half = per_token("merged", **sizes), per_token("separate", **sizes) / 2
    assert (token - half) / half == projection
    assert both.cache_bytes_per_token / plain.cache_bytes_per_token == cache


def test_identity_11_merged_has_fewer_parameters_only_beyond_half_the_width():
    """One head has 2 d r parameters against d^2: merged has fewer only if r > d / 2."""
    for width in (3, 4, 5):
        sizes = dict(d_model=8, num_heads=1, head_dim=width, use_bias=False, query_length=1)
        pair, whole = (aj.cost.attention(f, **sizes).parameters for f in ("separate", "merged"))
        assert np.sign(pair - whole) == np.sign(width - 4)


def visible(share):
    mask = np.random.default_rng(1).random((1, 1, 5, 11)) < share
    mask[..., 2, :] = False
    return mask


AFTER_THE_SCORES = {
    "nothing": ({}, {}),
    "mask with an empty row": ({"mask": visible(0.6)}, {}),
    "bias": ({"bias": RNG.normal(size=(1, 4, 5, 11))}, {}),
    "bias of minus infinity": ({"bias": np.where(visible(0.6), 0.0, -np.inf)}, {}),
    "ALiBi": ({}, {"position": aj.ALiBi(4)}),
    "soft cap": ({}, {"softcap": 1.0}),
    "dropout": ({"dropout_rng": 0, "deterministic": False}, {"dropout_rate": 0.4}),
}


@pytest.mark.parametrize("name", AFTER_THE_SCORES)
def test_identity_12_what_acts_after_the_scores_merges(name):
    """Mask, bias, ALiBi, soft cap and dropout act after the scores: merging is exact with them."""
    call, settings = AFTER_THE_SCORES[name]
    call = {k: jax.random.key(0) if k == "dropout_rng" else jnp.asarray(v) if k != "deterministic"
            else v for k, v in call.items()}  # fmt: skip
    params, x, y = wide_layer(), jnp.asarray(X)[None], jnp.asarray(Y)[None]
    softcap = settings.get("softcap")

    @jax.jit
    def outputs(params):
        return [
            make(form, ov=ov, **settings).apply(
                {"params": aj.merge(params, qk=form == "merged", ov=ov == "merged", softcap=softcap)
                 if "merged" in (form, ov) else params},
                x, y, **call,
            )
            for form in ("separate", "merged") for ov in ("separate", "merged")
        ]  # fmt: skip

    found = outputs(params)
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], atol=1e-10)
    plain = reference.layer(params, x, y, y, WIDTH)[0]
    if name != "nothing":
        assert np.abs(found[0] - plain).max() > 1e-3
    if name == "dropout":
        return
    added = call.get("bias")
    if name == "ALiBi":
        added = settings["position"].bias(jnp.arange(6, 11), jnp.arange(11), jnp.float64)[None]
    judged = reference.layer(
        params, x, y, y, WIDTH, mask=call.get("mask"), bias=added, softcap=softcap
    )[0]
    np.testing.assert_allclose(found[0], judged, atol=1e-10)


def test_identity_12_the_bias_of_values_goes_with_the_row_sums():
    """c_h = b_v,h W_o,h times the sum of the weights, never folded into b_o."""
    params = wide_layer()
    mask = visible(0.6)
    expected = reference.layer(params, X, Y, Y, WIDTH, mask=mask[0])[0]
    tree = aj.merge(params, ov=True)
    folded = {**tree, "ov": {"kernel": tree["ov"]["kernel"]},
              "out": {"bias": tree["out"]["bias"] + tree["ov"]["bias"].sum(0)}}  # fmt: skip

    @jax.jit
    def output(p):
        return layer_function(merged.query_key, merged.value_output, p, X, Y, scale=SCALE,
                              mask=jnp.asarray(mask[0]))  # fmt: skip

    got, wrong = output(tree), output(folded)
    np.testing.assert_allclose(got, expected, atol=1e-10)
    assert np.abs(wrong - expected)[2].max() > 0.1
    np.testing.assert_allclose(np.delete(wrong, 2, 0), np.delete(expected, 2, 0), atol=1e-10)


def test_identity_12_softcaps_and_sinks_see_the_row_terms():
    """Softmax alone sees no b_k; a soft cap, and a sink beside the keys, see x . W_q b_k too."""
    params = wide_layer()
    lost = {**params, "key": {"kernel": params["key"]["kernel"]}}

    @functools.partial(jax.jit, static_argnames=("sink", "softcap"))
    def everything(params, lost, sink, softcap):
        inputs = jnp.asarray(X), jnp.asarray(Y), None
        projected = (
            separate.query_key.project(params, *inputs),
            separate.query_key.project(lost, *inputs),
            merged.query_key.project(aj.merge(params), *inputs),
            merged.query_key.project(aj.merge(params, softcap=1.0), *inputs),
        )
        weights = []
        for query, key in projected:
            if sink:
                # A key whose score is always 0.
                key = jnp.concatenate([key, jnp.zeros_like(key[:1])])
            weights.append(
                aj.attend(query, key, key[..., :1], scale=SCALE, softcap=softcap,
                          return_weights=True)[1]
            )  # fmt: skip
        query, key = projected[0]
        return query, key, weights

    for sink, softcap in ((False, None), (False, 1.0), (True, None)):
        query, key, (got, unbiased, short, whole) = everything(params, lost, sink, softcap)
        key = np.concatenate([key, 0 * key[:1]]) if sink else key
        expected = reference.attend(query, key, key, scale=SCALE, softcap=softcap)[1]
        np.testing.assert_allclose(got, expected, atol=1e-10)
        np.testing.assert_allclose(whole, expected, atol=1e-10)
        for dropped in (unbiased, short):
            error = np.abs(dropped - expected).max()
            assert error > 0.02 if sink or softcap else error < 1e-10


def test_identity_12_merging_in_sixteen_bits_fills_the_rank():
    """W_q W_k^T has rank r in float32; rounded to bfloat16 it has full numerical rank."""
    with jax.enable_x64(False):
        params = layer(d=64, e=64, heads=1, groups=1, width=8, out=8, bias=False)
        narrow = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.bfloat16), params)
        whole = aj.merge(narrow)
        assert aj.circuits.qk(whole).rank().tolist() == [8]
        rounded = whole["qk"]["kernel"].astype(jnp.bfloat16)
        factors = (narrow[name]["kernel"] for name in ("query", "key"))
        product = jnp.einsum("dhk,ehk->dhe", *factors)
        assert product.dtype == jnp.bfloat16
        for kernel in (rounded, product):
            rank = aj.circuits.qk({**whole, "qk": {"kernel": kernel}}).rank()
            assert rank[0] >= 60


def test_identity_12_grouped_heads_unmerge_as_one_stack():
    """One W_k of a group is the SVD of the stack [W_h]; heads factored alone share none."""
    params = wide_layer(bias=False)
    merged_params = aj.merge(params)
    factored, error = jax.jit(functools.partial(aj.factor, head_dim=WIDTH))(merged_params)
    assert factored["key"]["kernel"].shape == (5, 2, 3) and float(error) < 1e-10
    stack = np.asarray(merged_params["qk"]["kernel"]).swapaxes(0, 1).reshape(2, 14, 5)
    values = np.linalg.svd(stack, compute_uv=False)
    assert np.all(values[:, 2] > 1e-3) and np.all(values[:, 3:] < 1e-10)
    np.testing.assert_allclose(
        aj.circuits.qk(factored).matrix(), aj.circuits.qk(params).matrix(), atol=1e-10
    )
    keys = [np.linalg.svd(np.asarray(merged_params["qk"]["kernel"])[:, h])[2][:3] for h in (0, 1)]
    assert np.abs(np.abs(keys[0]) - np.abs(keys[1])).max() > 1e-3
