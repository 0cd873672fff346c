"""Cached evaluation is the parallel one, and both are the float64 reference."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attention_jax as aj
from tests.caches.forms import Case, D

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
MORE_CHUNKS = CHUNKS | {"one call": (7,), "five calls": (1, 3, 1, 1, 1), "three": (2, 4, 1)}
CASES = (
    Case("separate"),
    Case("separate", groups=1, bias=False, position="rotary"),
    Case("separate", groups=4, position="alibi", norm=True),
    Case("separate", ov="merged", position="rotary", softcap=1.5),
    Case("separate", kind="inputs"),
    Case("separate", kind="inputs", groups=1, softcap=1.5, position="alibi"),
    Case("separate", kind="inputs", groups=4, bias=False),
    Case("separate", kind="inputs", ov="merged", softcap=1.5),
    Case("merged", position="alibi"),
    Case("merged", kind="inputs", softcap=1.5),
    Case("merged", ov="merged"),
    Case("merged", ov="merged", bias=False, softcap=1.5, position="alibi"),
    Case("raw", softcap=1.5),
    Case("raw", position="rotary"),
    Case("separate", position="rotary", window=3),
    Case("separate", kind="inputs", window=3),
    Case("merged", ov="merged", position="alibi", window=2),
    Case("raw", position="rotary", window=1),
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
        results = jax.jit(lambda params: [run(*pair, chunkings) for pair in zip(cases, params)])(
            params
        )
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
    assert min(float(jnp.abs(g).max()) for g in jax.tree.leaves(expected)) >= 0
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), found, expected)
    assert np.abs(expected[1]).min(axis=(0, 2)).max() > 0


def test_a_batch_of_caches_by_vmap():
    case = Case("separate", position="rotary", groups=1)
    module, variables = case.module(), {"params": jax.tree.map(jnp.float32, case.params())}
    x = jnp.asarray(X, jnp.float32)

    def decode(x, length):
        """The output of the last of `length` tokens, which differs between the rows."""
        cache = module.init_cache(1, T, features=D)
        output = jnp.zeros((1, 1, D))
        for t in range(T):
            more, longer = module.apply(variables, x[None, t : t + 1], cache, method="extend")
            cache, output = jax.tree.map(
                lambda a, b, t=t: jnp.where(t < length, a, b), (longer, more), (cache, output)
            )
        return output[0, 0], cache.length

    lengths = jnp.array([7, 3, 1, 5])
    found, filled = jax.jit(jax.vmap(decode))(x, lengths)
    expected = case.by_hand(X, np.ones_like(VALID))[np.arange(B), np.array(lengths) - 1]
    np.testing.assert_allclose(found, expected, atol=2e-6)
    np.testing.assert_array_equal(filled, lengths)


@pytest.mark.parametrize("implementation", ["dense", "blockwise"])
def test_weights_are_sown_and_dropout_is_never_applied(implementation):
    module = aj.SeparateAttention(2, dropout_rate=0.9, implementation=implementation)
    x = jnp.asarray(X, jnp.float32)
    variables = module.init(jax.random.key(0), x)
    expected, state = module.clone(implementation="dense").apply(
        variables, x, mask=aj.causal(), deterministic=True, sow_weights=True,
        mutable=["intermediates"],
    )  # fmt: skip
    cache = module.init_cache(B, T + 1)
    _, cache = module.apply(variables, x[:, :3], cache, method="extend")
    if implementation == "blockwise":
        with pytest.raises(NotImplementedError, match="return_weights|blockwise"):
            module.apply(variables, x[:, 3:], cache, method="extend", sow_weights=True)
        output, _ = module.apply(variables, x[:, 3:], cache, method="extend")
    else:
        (output, _), found = module.apply(
            variables, x[:, 3:], cache, method="extend", sow_weights=True, mutable=["intermediates"]
        )
        (weights,), (sown,) = (s["intermediates"]["attention_weights"] for s in (state, found))
        np.testing.assert_allclose(sown[..., :T], weights[:, :, 3:], atol=2e-6)
        assert sown.shape == (B, 2, T - 3, T + 1) and not sown[..., T].any()
    np.testing.assert_allclose(output, expected[:, 3:], atol=2e-6)
