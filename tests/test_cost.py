"""Costs against the modules themselves: their parameters, and the compiler's FLOPs."""

import jax
import jax.numpy as jnp
import pytest

import attention_jax as aj

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
