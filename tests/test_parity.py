"""Every mask kind, form and implementation, with and without dropout, weights and caches.

Each combination equals the float64 reference, or is refused by name.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attention_jax as aj
from attention_jax.core import dropout
from attention_jax.testing import reference

B, T, D, H, K = 2, 11, 6, 4, 3
RATE = 0.4
CHUNKS = (4, 1, 6)
FORMS = {
    "separate": ("separate", "separate", 4),
    "grouped": ("separate", "separate", 2),
    "separate, merged ov": ("separate", "merged", 2),
    "merged": ("merged", "separate", 2),
    "merged, merged ov": ("merged", "merged", 4),
    "raw": ("raw", "raw", 1),
}
DROPPED = ("none", "causal", "array")
CACHED = {"dense": ("window", "padding", "alibi"), "blockwise": ("window",)}


@functools.cache
def arrays():
    """Inputs, separate parameters by number of key heads, and what stands in masks."""
    rng = np.random.default_rng(0)

    def params(groups):
        shapes = {
            "query": ((D, H, K), (H, K)),
            "key": ((D, groups, K), (groups, K)),
            "value": ((D, groups, K), (groups, K)),
            "out": ((H, K, D), (D,)),
        }
        return {
            name: {"kernel": rng.normal(size=kernel), "bias": rng.normal(size=bias)}
            for name, (kernel, bias) in shapes.items()
        }

    array = rng.random((B, 1, T, T)) < 0.6
    array[0, 0, 2] = False
    return {
        "x": rng.normal(size=(B, T, D)),
        "params": {groups: params(groups) for groups in (2, 4)},
        "array": array,
        "ids": rng.integers(0, 3, (B, T)),
        "bias": rng.normal(size=(1, 1, T, T)),
    }


def settings(kind, heads):
    """The library's arguments, and the reference's mask and bias."""
    given, index = arrays(), np.arange(T)
    causal = index[None, :] <= index[:, None]
    near = np.abs(index[None, :] - index[:, None]) < 4
    real = (index < np.array([7, 0])[:, None])[:, None, None]
    ids = given["ids"]
    same = ((ids[:, :, None] == ids[:, None, :]) & (ids > 0)[:, :, None])[:, None]
    slopes = np.array(aj.ALiBi(heads).slopes())[:, None, None]
    alibi = -slopes * np.abs(index[None, :] - index[:, None])
    return {
        "none": ({}, None, None),
        "causal": ({"mask": aj.causal()}, causal, None),
        "window": ({"mask": aj.causal() & aj.sliding_window(4)}, causal & near, None),
        "padding": ({"mask": aj.padding(jnp.array([7, 0])) & aj.causal()}, real & causal, None),
        "segments": ({"mask": aj.segments(ids)}, same, None),
        "array": ({"mask": given["array"]}, given["array"], None),
        "together": (
            {"mask": given["array"] & aj.causal() & aj.padding(jnp.array([7, 0]))},
            given["array"] & causal & real,
            None,
        ),
        "bias": ({"mask": aj.causal(), "bias": jnp.asarray(given["bias"])}, causal, given["bias"]),
        "alibi": ({"mask": aj.causal(), "position": aj.ALiBi(heads)}, causal, alibi),
    }[kind]


KINDS = ("none", "causal", "window", "padding", "segments", "array", "together", "bias", "alibi")


def module_of(form, implementation, **more):
    kind, ov, groups = FORMS[form]
    if kind == "raw":
        return aj.RawAttention(implementation=implementation, **more)
    made = {"separate": aj.SeparateAttention, "merged": aj.MergedAttention}[kind]
    return made(
        H,
        K,
        num_kv_heads=groups,
        ov=ov,
        implementation=implementation,
        param_dtype=jnp.float64,
        **more,
    )


def params_of(form):
    kind, ov, groups = FORMS[form]
    if kind == "raw":
        return {}
    params = jax.tree.map(jnp.asarray, arrays()["params"][groups])
    return (
        aj.merge(params, qk=kind == "merged", ov=ov == "merged")
        if "merged" in (kind, ov)
        else params
    )


def evaluate(form, kind, implementation, drops, weights):
    arguments = dict(settings(kind, 1 if form == "raw" else H)[0])
    module = module_of(
        form,
        implementation,
        position=arguments.pop("position", None),
        dropout_rate=RATE if drops else 0.0,
        deterministic=not drops,
    )
    output, state = module.apply(
        {"params": params_of(form)},
        jnp.asarray(arrays()["x"]),
        dropout_rng=jax.random.key(5),
        sow_weights=weights,
        mutable=["intermediates"],
        **arguments,
    )
    return (output, state["intermediates"]["attention_weights"][0]) if weights else output


def expected(form, kind, drops):
    """Output and weights in NumPy, dropout by the mask that the key gives."""
    kind_of_form, _, groups = FORMS[form]
    x = arrays()["x"]
    heads = 1 if kind_of_form == "raw" else H
    _, mask, bias = settings(kind, heads)
    if kind_of_form == "raw":
        query = key = value = x[:, :, None]
        scale = 1.0
    else:
        params, scale = arrays()["params"][groups], K**-0.5
        query, key, value = (
            np.einsum("btd,dhk->bthk", x, params[name]["kernel"]) + params[name]["bias"]
            for name in ("query", "key", "value")
        )
    _, weights = reference.attend(query, key, value, mask=mask, bias=bias, scale=scale)
    kept = weights
    if drops:
        index = jnp.arange(T)
        seeds = dropout.words(jax.random.key(5), (B, heads))
        kept = weights * np.asarray(dropout.keep(seeds, RATE, index, index)) / (1 - RATE)
    value = np.repeat(value, heads // value.shape[2], axis=2)
    averages = np.einsum("bhts,bshv->bthv", kept, value)
    if kind_of_form == "raw":
        return averages[:, :, 0], weights
    out = params["out"]
    return np.einsum("bthv,hvo->bto", averages, out["kernel"]) + out["bias"], weights


def combinations():
    return [
        (form, kind, drops)
        for form in FORMS
        for kind in KINDS
        for drops in (False, True)
        if not drops or kind in DROPPED
    ]


@pytest.mark.parametrize("implementation", ["dense", "blockwise"])
def test_outputs_and_weights_equal_the_reference(implementation):
    with jax.enable_x64(True):
        weights = implementation == "dense"
        run = jax.jit(
            lambda: [
                evaluate(*case[:2], implementation, case[2], weights) for case in combinations()
            ]
        )
        differences = set()
        for case, found in zip(combinations(), run(), strict=True):
            right = expected(*case)
            output = found[0] if weights else found
            np.testing.assert_allclose(output, right[0], atol=1e-12, err_msg=str(case))
            if weights:
                np.testing.assert_allclose(found[1], right[1], atol=1e-12, err_msg=str(case))
            differences.add(round(float(np.abs(right[0]).sum()), 6))
        # Each combination is another function, so that none can stand in for another one. Raw
        # attention apart, a form has the function of the separate weights it was made from.
        functions = {(FORMS[f][2], kind, drops) for f, kind, drops in combinations()}
        assert len(differences) == len(functions)


@pytest.mark.parametrize("implementation", ["blockwise", "splash", "cudnn"])
def test_what_an_implementation_cannot_do_is_refused_by_its_name(implementation):
    weights = implementation == "blockwise"
    with jax.enable_x64(True):
        for form, kind, drops in combinations():
            with pytest.raises(NotImplementedError, match=f"'{implementation}'"):
                jax.eval_shape(
                    functools.partial(evaluate, form, kind, implementation, drops, weights)
                )


@pytest.mark.parametrize("implementation", ["dense", "blockwise"])
def test_cached_evaluation_equals_the_reference(implementation):
    def cached(form, kind, absorbed):
        arguments = dict(settings(kind, 1 if form == "raw" else H)[0])
        module = module_of(form, implementation, position=arguments.pop("position", None))
        cache = module.init_cache(
            B, T, jnp.float64, features=D, kind="inputs" if absorbed else None
        )
        x, outputs, start = jnp.asarray(arrays()["x"]), [], 0
        for size in CHUNKS:
            output, cache = module.apply(
                {"params": params_of(form)},
                x[:, start : start + size],
                cache,
                method="extend",
                mask=arguments["mask"],
            )
            outputs.append(output)
            start += size
        return jnp.concatenate(outputs, axis=1)

    cases = [
        (form, kind, absorbed)
        for form in FORMS
        for kind in CACHED[implementation]
        for absorbed in (False, True)
        if not absorbed or FORMS[form][0] == "separate"
        if implementation == "dense" or form in ("grouped", "merged, merged ov")
    ]
    with jax.enable_x64(True):
        run = jax.jit(lambda: [cached(*case) for case in cases])
        for case, found in zip(cases, run(), strict=True):
            right, _ = expected(case[0], case[1], False)
            np.testing.assert_allclose(found, right, atol=1e-12, err_msg=str(case))
