"""One function in all forms: outputs, weights and gradients, for random layers and masks."""

import dataclasses

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attention_jax as aj
from attention_jax.testing import reference
from tests.paths import variables_of

EXAMPLES = hypothesis.settings(
    deadline=None,
    derandomize=True,
    max_examples=5,
    suppress_health_check=list(hypothesis.HealthCheck),
)


@dataclasses.dataclass(frozen=True)
class Problem:
    heads: int
    groups: int
    head_dim: int
    widths: tuple[int, int, int]
    lengths: tuple[int, int]
    batch: tuple[int, ...]
    use_bias: bool
    softcap: float | None
    mask: str
    bias: bool
    seed: int


@st.composite
def problems(draw):
    heads, groups = draw(st.sampled_from([(1, 1), (2, 1), (3, 3), (4, 2), (6, 2), (6, 3)]))
    cross = draw(st.booleans())
    width = draw(st.sampled_from([5, 7, 11]))
    length = draw(st.sampled_from([3, 5]))
    return Problem(
        heads=heads,
        groups=groups,
        head_dim=draw(st.sampled_from([2, 3, 13])),
        widths=(width, 2, 13) if cross else (width,) * 3,
        lengths=(length, 7) if cross else (length,) * 2,
        batch=draw(st.sampled_from([(), (2,), (2, 3)])),
        use_bias=draw(st.booleans()),
        softcap=draw(st.sampled_from([None, 1.5])),
        mask=draw(st.sampled_from(["none", "causal", "array", "padding", "all", "segments"])),
        bias=draw(st.booleans()),
        seed=draw(st.integers(0, 1000)),
    )


FORMS = {
    "separate": ("separate", False, False),
    "ov": ("separate", False, True),
    "qk": ("merged", True, False),
    "qk_ov": ("merged", True, True),
}


def make_masks(problem, rng):
    """The mask for the library, and by hand as booleans `[..., H, T, S]`."""
    (t, s), batch = problem.lengths, problem.batch
    array = rng.random((*batch, problem.heads, t, s)) < 0.7
    lengths = rng.integers(0, s + 1, batch)
    ids_q, ids_k = rng.integers(0, 3, (*batch, t)), rng.integers(0, 3, (*batch, s))
    causal = np.arange(s)[None, :] <= np.arange(t)[:, None] + (s - t)
    padding = (np.arange(s) < lengths[..., None])[..., None, None, :]
    segments = (ids_q[..., None] == ids_k[..., None, :]) & (ids_q > 0)[..., None]
    segments = segments[..., None, :, :]
    objects = {
        "causal": (aj.causal(), causal),
        "array": (array, array),
        "padding": (aj.padding(lengths), padding),
        "segments": (aj.segments(ids_q, ids_k), segments),
        "all": (array & aj.causal() & aj.padding(lengths), array & causal & padding),
        "none": (None, np.array(True)),
    }
    return objects[problem.mask]


def make(problem, dtype):
    rng = np.random.default_rng(problem.seed)
    d, e, f = problem.widths
    h, g, k = problem.heads, problem.groups, problem.head_dim
    shapes = {
        "query": ((d, h, k), (h, k)),
        "key": ((e, g, k), (g, k)),
        "value": ((f, g, k), (g, k)),
        "out": ((h, k, d), (d,)),
    }
    params = {}
    for name, (kernel, bias) in shapes.items():
        fan = kernel[0] if name != "out" else h * k
        params[name] = {"kernel": jnp.asarray(rng.normal(size=kernel) / np.sqrt(fan), dtype)}
        if problem.use_bias:
            params[name]["bias"] = jnp.asarray(rng.normal(size=bias), dtype)
    t, s = problem.lengths
    inputs = tuple(
        jnp.asarray(rng.normal(size=(*problem.batch, length, width)), dtype)
        for length, width in zip((t, s, s), problem.widths, strict=True)
    )
    bias = jnp.asarray(rng.normal(size=(*problem.batch, h, t, s)), dtype) if problem.bias else None
    return params, inputs, bias, make_masks(problem, rng)


def results(problem, dtype, gradients):
    """Outputs, weights and gradients of all forms, compiled together."""
    params, inputs, bias, (mask, by_hand) = make(problem, dtype)

    def run(params, inputs, bias, mask):
        found = {}
        for name, (form, qk, ov) in FORMS.items():
            made = aj.merge(params, qk=qk, ov=ov, softcap=problem.softcap) if qk or ov else params
            module = (aj.MergedAttention if form == "merged" else aj.SeparateAttention)(
                problem.heads,
                problem.head_dim,
                num_kv_heads=problem.groups,
                ov="merged" if ov else "separate",
                use_bias=problem.use_bias,
                softcap=problem.softcap,
                dtype=dtype,
            )

            def apply(*inputs, module=module, made=made):
                output, state = module.apply(
                    {"params": made}, *inputs, mask=mask, bias=bias, sow_weights=True,
                    mutable=["intermediates"],
                )  # fmt: skip
                return output, state["intermediates"]["attention_weights"][0]

            if not gradients:
                found[name] = apply(*inputs)
                continue
            output, back, weights = jax.vjp(apply, *inputs, has_aux=True)
            found[name] = (
                output,
                weights,
                *back(jnp.cos(jnp.arange(output.size, dtype=dtype)).reshape(output.shape)),
            )
        return found

    check_trees_differ(params, problem)
    return jax.jit(run)(params, inputs, bias, mask), (params, inputs, bias, by_hand)


def check_trees_differ(params, problem):
    merged = aj.merge(params, ov=True, softcap=problem.softcap)
    assert set(merged) == ({"qk", "ov", "out"} if problem.use_bias else {"qk", "ov"})
    assert set(params) == {"query", "key", "value", "out"}
    if problem.use_bias:
        for group in (*params.values(), *merged.values()):
            assert np.all(np.abs(group["bias"]) > 0)
        assert ("row_kernel" in merged["qk"]) == (problem.softcap is not None)


def judge(problem, params, inputs, bias, by_hand):
    return reference.layer(
        params, *inputs, problem.head_dim, mask=by_hand, bias=bias, softcap=problem.softcap
    )


def base(**changes):
    problem = Problem(
        heads=4, groups=2, head_dim=3, widths=(11, 5, 7), lengths=(3, 7), batch=(2,),
        use_bias=True, softcap=1.5, mask="all", bias=True, seed=0,
    )  # fmt: skip
    return dataclasses.replace(problem, **changes)


SELF = {"widths": (7, 7, 7), "lengths": (5, 5), "softcap": None, "bias": False}


@hypothesis.example(base(mask="array"))
@hypothesis.example(base(mask="padding", heads=3, groups=3, batch=(2, 3)))
@hypothesis.example(base(mask="causal", heads=3, groups=3, **SELF))
@hypothesis.example(base(mask="segments", heads=6, groups=2, **SELF))
@hypothesis.example(base(mask="none", heads=1, groups=1, batch=(), **SELF))
@hypothesis.example(base(mask="causal", heads=6, groups=3, use_bias=False))
@EXAMPLES
@hypothesis.given(problems())
def test_float64_to_round_off(problem):
    check_float64(problem)


@pytest.mark.slow
@hypothesis.settings(EXAMPLES, max_examples=100)
@hypothesis.given(problems())
def test_float64_to_round_off_at_length(problem):
    check_float64(problem)


def check_float64(problem):
    with jax.enable_x64(True):
        found, (params, inputs, bias, by_hand) = results(problem, jnp.float64, gradients=True)
        expected = judge(problem, params, inputs, bias, by_hand)
        for name, got in found.items():
            for one, other in zip(got, found["separate"], strict=True):
                assert one.dtype == jnp.float64
                np.testing.assert_allclose(one, other, atol=1e-12, rtol=1e-12, err_msg=name)
            for one, other in zip(got[:2], expected, strict=True):
                np.testing.assert_allclose(one, other, atol=1e-12, rtol=1e-12, err_msg=name)


@pytest.mark.parametrize(
    "problem",
    [base(), base(softcap=None, mask="none", bias=False), base(widths=(7, 7, 7), lengths=(5, 5))],
    ids=["softcap", "plain", "self"],
)
def test_float32_near_the_reference(problem):
    found, arrays = results(problem, jnp.float32, gradients=False)
    expected = judge(problem, *arrays)
    for name, got in found.items():
        for one, other in zip(got, expected, strict=True):
            scale = max(1.0, np.abs(other).max())
            np.testing.assert_allclose(one, other, atol=2e-6 * scale, rtol=0, err_msg=name)


@pytest.mark.parametrize(
    "problem", [base(softcap=None), base(softcap=None, use_bias=False, mask="causal")]
)
def test_bfloat16_near_the_reference(problem):
    params, inputs, bias, masks = make(problem, jnp.float32)
    found, arrays = results(problem, jnp.bfloat16, gradients=False)
    expected = judge(problem, *arrays)[0]
    for name, got in found.items():
        assert got[0].dtype == jnp.bfloat16
        scale = np.abs(expected).max()
        difference = np.abs(np.asarray(got[0], np.float64) - expected).max()
        assert difference <= 2.0**-7 * scale, (name, difference / scale)


def test_without_the_row_terms_a_soft_cap_tells_the_forms_apart():
    problem = base()
    params, inputs, bias, (mask, _) = make(problem, jnp.float32)
    full = aj.merge(params, softcap=1.5)
    poor = {**full, "qk": {**full["qk"], "row_kernel": 0 * full["qk"]["row_kernel"]}}
    module = aj.MergedAttention(4, 3, num_kv_heads=2, softcap=1.5)
    apply = jax.jit(module.apply)
    one, other = (apply({"params": p}, *inputs, mask=mask, bias=bias) for p in (full, poor))
    assert np.abs(one - other).max() > 1e-3


@pytest.mark.parametrize("form", ["separate", "merged"])
def test_a_sharded_batch_equals_one_device(form):
    module = (aj.MergedAttention if form == "merged" else aj.SeparateAttention)(
        4, 3, num_kv_heads=2
    )
    x = jax.random.normal(jax.random.key(0), (4, 5, 7))
    variables = variables_of(module, x)
    apply = jax.jit(lambda v, x: module.apply(v, x, mask=aj.causal()))
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("data",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    sharded = apply(variables, jax.device_put(x, sharding))
    assert len(sharded.devices()) == 2
    np.testing.assert_allclose(sharded, apply(variables, x), atol=1e-6)
    mapped = jax.pmap(
        lambda x: module.apply(variables, x, mask=aj.causal()), devices=jax.devices()[:2]
    )
    np.testing.assert_allclose(
        mapped(x.reshape(2, 2, 5, 7)).reshape(x.shape), apply(variables, x), atol=1e-6
    )
