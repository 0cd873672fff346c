"""Costs against the modules themselves: their parameters, and the compiler's FLOPs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attention_jax as aj
from attention_jax.masks import render

CASES = {
    "separate": ("separate", {}),
    "separate, no bias": ("separate", {"use_bias": False}),
    "grouped": ("separate", {"num_kv_heads": 2}),
    "wide heads": ("separate", {"head_dim": 40, "num_kv_heads": 1}),
    "separate, merged ov": ("separate", {"ov": "merged"}),
    "grouped, merged ov": ("separate", {"ov": "merged", "num_kv_heads": 2, "use_bias": False}),
    "merged": ("merged", {}),
    "merged, no bias": ("merged", {"use_bias": False}),
    "merged, grouped values": ("merged", {"num_kv_heads": 2}),
    "merged, merged ov": ("merged", {"ov": "merged"}),
    "merged, merged ov, no bias": ("merged", {"ov": "merged", "use_bias": False}),
    "raw": ("raw", {}),
}
B, T, D, H = 2, 128, 192, 4


def module(form, settings):
    if form == "raw":
        return aj.RawAttention()
    return {"separate": aj.SeparateAttention, "merged": aj.MergedAttention}[form](H, **settings)


def counted(form, settings, **sizes):
    heads = {} if form == "raw" else {"num_heads": H}
    return aj.cost.attention(form, d_model=D, **heads, **settings, **sizes)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_parameters(case):
    x = jnp.ones((1, 3, D))
    params = jax.eval_shape(module(*case).init, jax.random.key(0), x)
    cost = counted(*case, query_length=3)
    assert cost.parameters == sum(leaf.size for leaf in jax.tree.leaves(params))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_flops_within_three_percent_of_the_compiler(case):
    x = jax.ShapeDtypeStruct((B, T, D), jnp.float32)
    made = module(*case)
    variables = jax.eval_shape(made.init, jax.random.key(0), x)
    compiled = jax.jit(made.apply).lower(variables, x).compile()
    cost = counted(*case, query_length=T, batch_size=B)
    assert compiled.cost_analysis()["flops"] == pytest.approx(cost.forward_flops, rel=0.03)
    assert cost.train_flops == 3 * cost.forward_flops


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_flops_of_the_gradients_within_three_percent_of_the_compiler(case):
    x = jax.ShapeDtypeStruct((B, T, D), jnp.float32)
    made = module(*case)
    variables = jax.eval_shape(made.init, jax.random.key(0), x)

    def gradients(variables, x, weights):
        output, back = jax.vjp(made.apply, variables, x)
        return output, back(weights)

    compiled = jax.jit(gradients).lower(variables, x, x).compile()
    cost = counted(*case, query_length=T, batch_size=B)
    assert compiled.cost_analysis()["flops"] == pytest.approx(cost.train_flops, rel=0.03)


def test_flops_of_cross_attention():
    x, y = (jax.ShapeDtypeStruct((B, length, D), jnp.float32) for length in (T, 3 * T))
    for form in ("separate", "merged"):
        made = module(form, {"ov": "merged"} if form == "merged" else {})
        variables = jax.eval_shape(made.init, jax.random.key(0), x, y)
        compiled = jax.jit(made.apply).lower(variables, x, y).compile()
        cost = counted(form, {"ov": "merged"} if form == "merged" else {}, query_length=T,
                       key_length=3 * T, batch_size=B)  # fmt: skip
        assert compiled.cost_analysis()["flops"] == pytest.approx(cost.forward_flops, rel=0.03)


def test_cache_and_published_ratios():
    gpt2 = {"d_model": 768, "num_heads": 12, "use_bias": False, "query_length": 1}
    separate, merged, both = (
        aj.cost.attention("separate", **gpt2),
        aj.cost.attention("merged", **gpt2),
        aj.cost.attention("merged", ov="merged", **gpt2),
    )
    assert separate.cache_bytes_per_token == 2 * 768 * 4
    assert merged.cache_bytes_per_token == 2 * 768 * 4
    assert both.cache_bytes_per_token == 768 * 4
    half = aj.cost.attention("separate", ov="merged", **gpt2).cache_bytes_per_token
    assert half == 2 * 768 * 4
    qk = (separate.parameters / 2, merged.parameters - separate.parameters / 2)
    assert qk[1] / qk[0] == 6
    grouped = aj.cost.attention("separate", **gpt2, num_kv_heads=2, dtype_bytes=2)
    assert grouped.cache_bytes_per_token == 2 * 2 * 64 * 2
    assert aj.cost.attention("raw", d_model=8, query_length=3).parameters == 0


@pytest.mark.parametrize(
    "settings,error,match",
    [
        ({"form": "dense"}, ValueError, "form: .*'raw'.*'dense'"),
        ({"ov": "both"}, ValueError, "ov"),
        ({"d_model": 10}, ValueError, "d_model: .*num_heads=4.*10"),
        ({"d_model": 0}, ValueError, "d_model"),
        ({"num_heads": 0}, ValueError, "num_heads"),
        ({"num_heads": True}, TypeError, "num_heads"),
        ({"num_kv_heads": 3}, ValueError, "num_kv_heads: .*num_heads=4"),
        ({"head_dim": -1}, ValueError, "head_dim"),
        ({"query_length": 1.5}, TypeError, "query_length"),
        ({"key_length": 0}, ValueError, "key_length"),
        ({"batch_size": 0}, ValueError, "batch_size"),
        ({"dtype_bytes": 0}, ValueError, "dtype_bytes"),
    ],
)
def test_refusals(settings, error, match):
    settings = {"form": "separate", "d_model": 8, "num_heads": 4, "query_length": 3, **settings}
    with pytest.raises(error, match=match):
        aj.cost.attention(settings.pop("form"), **settings)


def test_the_row_terms_of_a_soft_cap_are_counted():
    module = aj.MergedAttention(4, softcap=2.0)
    shapes = jax.eval_shape(module.init, jax.random.key(0), jnp.ones((1, 3, 8)))
    count = sum(leaf.size for leaf in jax.tree.leaves(shapes))
    sizes = {"d_model": 8, "num_heads": 4, "query_length": 3}
    assert aj.cost.attention("merged", **sizes, softcap=2.0).parameters == count
    assert aj.cost.attention("merged", **sizes).parameters == count - 4 * 9


def test_attended_pairs_are_those_of_the_rendered_mask():
    length, other = 600, 1100
    lengths = np.array([0, 500])
    array = np.random.default_rng(0).random((1, 3, length, other)) < 0.5
    ids = np.arange(other) // 400
    masks = {
        "none": None,
        "causal": aj.causal(),
        "window": aj.causal() & aj.sliding_window(77),
        "padding": aj.padding(lengths),
        "segments": aj.segments(ids[:length], ids),
        "array": array & aj.causal() & aj.padding(lengths),
    }
    shape = (2, 3, length, other)
    positions = jnp.arange(length) + other - length, jnp.arange(other)
    for name, mask in masks.items():
        count = aj.cost.attended_pairs(
            mask, query_length=length, key_length=other, batch_size=2, num_heads=3
        )
        shown = True if mask is None else np.asarray(render(mask, shape, *positions))
        assert count == np.broadcast_to(shown, shape).sum(dtype=int), name
    assert aj.cost.attended_pairs(aj.causal(), query_length=65536) == 65536 * 65537 // 2


def test_attended_flops_and_prefill_and_decoding():
    sizes = {"d_model": 64, "num_heads": 4, "use_bias": False, "batch_size": 2}
    whole = aj.cost.attention("separate", query_length=96, **sizes)
    causal = aj.cost.attention("separate", query_length=96, mask=aj.causal(), **sizes)
    assert causal.forward_flops == whole.forward_flops == whole.prefill_flops
    assert causal.attended_pairs == 8 * 96 * 97 // 2
    assert whole.attended_flops == whole.forward_flops
    pairs = 2 * 2 * 2 * 64 * 96 * (96 - 97 / 2)
    assert whole.forward_flops - causal.attended_flops == pairs
    one = aj.cost.attention("separate", query_length=1, key_length=96, **sizes)
    assert one.prefill_flops == one.decode_flops == whole.decode_flops


def test_break_even_lengths():
    sizes = {"d_model": 64, "num_heads": 4, "head_dim": 8, "query_length": 1}
    costs = {form: aj.cost.attention(form, **sizes) for form in ("separate", "absorbed")}
    costs["merged"] = aj.cost.attention("merged", ov="merged", **sizes)
    for one, other in (("separate", "absorbed"), ("absorbed", "merged"), ("separate", "merged")):
        for of, name in (("flops", "decode_flops"), ("bytes", "decode_bytes")):
            length = aj.cost.break_even_length(costs[one], costs[other], of=of)
            if length is None:
                continue
            found = [
                [
                    getattr(
                        aj.cost.attention(
                            form,
                            **sizes,
                            key_length=size,
                            ov="merged" if form == "merged" else "separate",
                        ),
                        name,
                    )
                    for form in (one, other)
                ]
                for size in (max(int(length) - 2, 1), int(length) + 2)
            ]
            assert (found[0][0] - found[0][1]) * (found[1][0] - found[1][1]) < 0, (one, other, of)
    grouped = aj.cost.attention("separate", **sizes, num_kv_heads=2)
    # 2 G K = 32 numbers per token against D = 64: the input cache is never the smaller one.
    assert aj.cost.break_even_length(grouped, costs["merged"], of="bytes") is None


def test_caches_cut_over_devices():
    sizes = {"d_model": 64, "num_heads": 8, "query_length": 1, "key_length": 10, "batch_size": 3}
    grouped = aj.cost.attention("separate", num_kv_heads=2, **sizes)
    inputs = aj.cost.attention("merged", ov="merged", **sizes)
    assert grouped.cache_bytes == 3 * 10 * 2 * 2 * 8 * 4
    assert inputs.cache_bytes == 3 * 10 * 64 * 4
    assert [grouped.cache_bytes_per_device(n) * 2 for n in (2, 4, 8)] == [grouped.cache_bytes] * 3
    assert [grouped.cache_replication(n) for n in (1, 2, 4, 8)] == [1, 1, 2, 4]
    assert [inputs.cache_replication(n) for n in (1, 2, 8)] == [1, 2, 8]
    assert inputs.cache_bytes_per_device(8) == inputs.cache_bytes


@pytest.mark.parametrize(
    "case,tokens",
    [(case, 1) for case in (*CASES, "absorbed", "absorbed, grouped")]
    + [(case, 32) for case in ("grouped", "merged, merged ov", "absorbed")],
)
def test_prefill_and_decoding_within_three_percent_of_the_compiler(case, tokens):
    form, settings = CASES.get(case, ("separate", {"num_kv_heads": 2} if "," in case else {}))
    kind = "inputs" if case.startswith("absorbed") else None
    # Wide heads, next to whose products those of the softmax are few.
    slots, width = 512, 2 * D
    if "head_dim" in settings:
        settings = settings | {"head_dim": 2 * settings["head_dim"]}
    made = module(form, settings)
    x = jax.ShapeDtypeStruct((B, tokens, width), jnp.float32)
    variables = jax.eval_shape(made.init, jax.random.key(0), x)
    cache = jax.eval_shape(lambda: made.init_cache(B, slots, features=width, kind=kind))
    extend = functools.partial(made.apply, method="extend")
    flops = jax.jit(extend).lower(variables, x, cache).compile().cost_analysis()["flops"]
    heads = {} if form == "raw" else {"num_heads": H}
    cost = aj.cost.attention(
        "absorbed" if kind else form, d_model=width, **heads, **settings, query_length=tokens,
        key_length=slots, batch_size=B,
    )  # fmt: skip
    assert flops == pytest.approx(cost.prefill_flops, rel=0.03)
    if tokens == 1:
        assert cost.decode_flops == cost.prefill_flops
    kept = [x for name, x in cache.entries.items() if x is not None]
    assert cost.cache_bytes == sum(x.size * x.dtype.itemsize for x in kept)
