"""Cached evaluation is the parallel one, and both are the float64 reference."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attention_jax as aj
from tests.caches.forms import Case, D
from tests.paths import variables_of

B, T = 4, 7
VALID = np.array(
    [
        [1, 1, 1, 1, 1, 1, 1],
        [0, 0, 0, 1, 1, 1, 1],
        [1, 1, 0, 1, 0, 0, 1],
        [1, 1, 1, 1, 1, 0, 0],
    ],
    bool,
)
X = np.random.default_rng(1).normal(size=(B, T, D))
CHUNKS = {"two calls": (3, 4)}
MORE_CHUNKS = {"one call": (7,), "three calls": (2, 4, 1)}
CASES = (
    Case("separate", groups=1, bias=False, position="rotary"),
    Case("separate", groups=4, position="alibi", norm=True),
    Case("separate", ov="merged", position="rotary", softcap=1.5),
    Case("separate", kind="inputs", groups=1, softcap=1.5, position="alibi"),
    Case("separate", kind="inputs", ov="merged", softcap=1.5),
    Case("merged", position="alibi"),
    Case("merged", kind="inputs", softcap=1.5),
    Case("merged", ov="merged", bias=False, softcap=1.5, position="alibi"),
    Case("raw", position="rotary", softcap=1.5),
    Case("separate", position="rotary", window=3),
    Case("separate", kind="inputs", bias=False, window=1),
    Case("merged", ov="merged", position="alibi", window=2),
)


def run(case, params, chunkings):
    """Outputs of the chunkings, and of single steps in a scan."""
    module, variables = case.module(), {"params": params}
    x, valid = jnp.asarray(X), jnp.asarray(VALID)
    found = {}

    def init():
        capacity = T + 2 if case.window is None else case.window
        return module.init_cache(
            B, capacity, jnp.float64, features=D, window=case.window, kind=case.kind
        )

    extend = functools.partial(module.apply, variables, method="extend")
    for name, chunks in chunkings.items():
        cache, outputs, start = init(), [], 0
        for size in chunks:
            part = slice(start, start + size)
            output, cache = extend(x[:, part], cache, valid=valid[:, part])
            outputs.append(output)
            start += size
        found[name] = jnp.concatenate(outputs, axis=1)

    def step(cache, token):
        output, cache = extend(token[0][:, None], cache, valid=token[1][:, None])
        return cache, output[:, 0]

    tokens = jnp.swapaxes(x, 0, 1), valid.T
    cache, outputs = jax.lax.scan(step, init(), tokens)
    return found | {"scan": jnp.swapaxes(outputs, 0, 1)}, cache.next_position


def check(cases, chunkings):
    with jax.enable_x64(True):
        params = [jax.tree.map(jnp.asarray, case.params()) for case in cases]
        results = jax.jit(
            lambda params: [run(*pair, chunkings) for pair in zip(cases, params, strict=True)]
        )(params)
    for case, (found, next_position) in zip(cases, results, strict=True):
        expected = case.by_hand(X, VALID)
        assert np.abs(expected - case.by_hand(X, np.ones_like(VALID))).max() > 1e-2, case
        np.testing.assert_array_equal(next_position, VALID.sum(1))
        for name, output in found.items():
            np.testing.assert_allclose(output, expected, atol=1e-10, err_msg=f"{case} {name}")


def test_chunks_and_steps_of_every_form_are_the_reference():
    check(CASES, CHUNKS)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["separate", "absorbed", "merged"])
def test_every_combination_in_more_chunks(form):
    name, kind = ("separate", "inputs") if form == "absorbed" else (form, None)
    check(
        [
            Case(name, ov, kind, groups=groups, bias=bias, softcap=softcap, position=position,
                 window=window)
            for ov in ("separate", "merged")
            for groups in (1, 4)
            for bias in (True, False)
            for softcap in (None, 1.5)
            for position in (None, "alibi", *(["rotary"] if form == "separate" else []))
            for window in (None, 3)
        ],
        MORE_CHUNKS,
    )  # fmt: skip


def test_the_switches_of_the_table_matter():
    """What the cases differ in changes the function, so that none of them could be ignored."""
    plain = Case("separate").by_hand(X, VALID)
    for change in (
        {"softcap": 1.5}, {"position": "rotary"}, {"position": "alibi"}, {"window": 3},
        {"norm": True}, {"groups": 1}, {"bias": False},
    ):  # fmt: skip
        assert np.abs(Case("separate", **change).by_hand(X, VALID) - plain).max() > 1e-2, change


def test_gradients_go_through_the_cache():
    case = Case("separate", position="rotary")
    module = case.module()
    x, params = jnp.asarray(X, jnp.float32), jax.tree.map(jnp.float32, case.params())

    def parallel(params, x):
        return jnp.sum(jnp.sin(module.apply({"params": params}, x, mask=aj.causal())))

    def cached(params, x):
        extend = functools.partial(module.apply, {"params": params}, method="extend")
        first, cache = extend(x[:, :3], module.init_cache(B, T))
        last, _ = extend(x[:, 3:], cache)
        return jnp.sum(jnp.sin(jnp.concatenate([first, last], axis=1)))

    expected, found = jax.jit(
        lambda *given: [jax.grad(f, argnums=(0, 1))(*given) for f in (parallel, cached)]
    )(params, x)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), found, expected)
    assert np.abs(expected[1]).min(axis=(0, 2)).max() > 0


def test_a_batch_of_caches_by_vmap():
    case = Case("separate", position="rotary", groups=1)
    module, variables = case.module(), {"params": jax.tree.map(jnp.float32, case.params())}

    def decode(x, length):
        """The output of the last of `length` tokens, which differs between the rows."""

        def step(carry, token):
            index, last, cache = carry
            output, longer = module.apply(variables, token[None, None], cache, method="extend")
            last, cache = jax.tree.map(
                lambda a, b: jnp.where(index < length, a, b), (output, longer), (last, cache)
            )
            return (index + 1, last, cache), None

        start = (0, jnp.zeros((1, 1, D)), module.init_cache(1, T, features=D))
        (_, last, cache), _ = jax.lax.scan(step, start, x)
        return last[0, 0], cache.length

    lengths = jnp.array([7, 3, 1, 5])
    found, filled = jax.jit(jax.vmap(decode))(jnp.asarray(X, jnp.float32), lengths)
    expected = case.by_hand(X, np.ones_like(VALID))[np.arange(B), np.array(lengths) - 1]
    np.testing.assert_allclose(found, expected, atol=2e-6)
    np.testing.assert_array_equal(filled, lengths)


def test_weights_are_sown_and_dropout_is_never_applied():
    module = aj.SeparateAttention(2, dropout_rate=0.9, deterministic=False)
    x = jnp.asarray(X, jnp.float32)
    variables = variables_of(module, x, deterministic=True)

    @jax.jit
    def run(x):
        sown = {"sow_weights": True, "mutable": ["intermediates"]}
        whole, state = module.apply(variables, x, mask=aj.causal(), deterministic=True, **sown)
        cache = module.init_cache(B, T + 1)
        _, cache = module.apply(variables, x[:, :3], cache, method="extend")
        (last, _), more = module.apply(variables, x[:, 3:], cache, method="extend", **sown)
        return whole, last, [s["intermediates"]["attention_weights"][0] for s in (state, more)]

    whole, last, (weights, more) = run(x)
    np.testing.assert_allclose(last, whole[:, 3:], atol=2e-6)
    np.testing.assert_allclose(more[..., :T], weights[:, :, 3:], atol=2e-6)
    assert more.shape == (B, 2, T - 3, T + 1) and not more[..., T].any()
