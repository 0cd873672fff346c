"""What caches hold, in which dtype, and what is refused."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attention_jax as aj
from tests.caches.forms import UNIFORM, Case, D

X = jnp.asarray(np.random.default_rng(3).normal(size=(2, 5, D)), jnp.float32)
SEPARATE = Case("separate", groups=2)


def layer(case=SEPARATE):
    """The module, and its compiled call and `extend`."""
    module = case.module()
    apply = functools.partial(module.apply, {"params": jax.tree.map(jnp.float32, case.params())})
    return module, jax.jit(apply), jax.jit(functools.partial(apply, method="extend"))


def entry_bytes(cache):
    return sum(array.nbytes for array in jax.tree.leaves(cache.entries))


def test_bytes():
    """H heads of D / H numbers: keys and values take 2 D numbers of a token, inputs D."""
    separate, merged = aj.SeparateAttention(4), aj.MergedAttention(4, ov="merged")
    for dtype in (None, jnp.bfloat16):
        caches = [m.init_cache(3, 16, dtype, features=64) for m in (separate, merged)]
        assert entry_bytes(caches[0]) == 2 * entry_bytes(caches[1]) > 0
        absorbed = separate.init_cache(3, 16, dtype, features=64, kind="inputs")
        assert entry_bytes(absorbed) == entry_bytes(caches[1])
    grouped = aj.SeparateAttention(4, num_kv_heads=1).init_cache(3, 16, features=64)
    assert entry_bytes(grouped) == 2 * 3 * 16 * 16 * 4


@pytest.mark.parametrize("name", UNIFORM)
def test_arrays_of_unknown_width_come_with_the_first_tokens(name):
    module, params, init = UNIFORM[name]
    x = jnp.ones((1, 2, 1))
    early = module.init_cache(1, 3, features=1, **init)
    late = module.init_cache(1, 3, **init)
    assert all(array is not None for array in early.entries.values())
    assert late.inputs is None
    extend = jax.jit(functools.partial(module.apply, {"params": params}, method="extend"))
    one, two = extend(x, early), extend(x, late)
    assert jax.tree.structure(one) == jax.tree.structure(two)
    jax.tree.map(np.testing.assert_array_equal, one, two)


def test_the_fixed_signature_is_enough_for_every_form():
    for module in (aj.SeparateAttention(2), aj.MergedAttention(2), aj.RawAttention()):
        cache = module.init_cache(2, 4, jnp.bfloat16)
        assert (cache.capacity, cache.dtype) == (4, jnp.bfloat16)
        assert all(array is None for array in cache.entries.values())
        assert cache.positions.shape == cache.valid.shape == (2, 4)


def test_dtypes():
    module, call, extend = layer()
    expected = call(X, mask=aj.causal())
    output, cache = extend(X, module.init_cache(2, 5, jnp.bfloat16))
    assert output.dtype == jnp.float32 and cache.key.dtype == jnp.bfloat16
    assert 1e-6 < np.abs(output - expected).max() < 5e-2
    assert module.clone(dtype=jnp.bfloat16).init_cache(2, 5).dtype == jnp.bfloat16
    assert module.clone(param_dtype=jnp.float16).init_cache(2, 5).dtype == jnp.float16
    with jax.enable_x64(True):
        wide = jnp.asarray(X, jnp.float64) / 3
        for form, kept in ((SEPARATE, "key"), (Case("raw"), "inputs")):
            module, _, extend = layer(form)
            with pytest.raises(TypeError, match=f"{kept} of the new tokens.*float32.*float64"):
                extend(wide, module.init_cache(2, 5))
        rounded, _ = extend(wide, module.init_cache(2, 5, jnp.float32))
        exact, _ = extend(wide, module.init_cache(2, 5, jnp.float64))
        assert exact.dtype == rounded.dtype == jnp.float64
        assert 0 < np.abs(exact - rounded).max() < 1e-5


def test_more_is_hidden_by_masks_and_biases():
    module, call, extend = layer()
    hidden = np.random.default_rng(0).random((2, 4, 5, 5)) < 0.6
    bias = np.random.default_rng(1).normal(size=(2, 4, 5, 5)).astype(np.float32)
    ids = jnp.array([[1, 1, 2, 2, 2], [1, 1, 1, 1, 0]])
    plain = call(X, mask=aj.causal())

    def slots(array, start, stop, fill):
        """The rows of these tokens, with an entry for each of 7 slots."""
        return np.pad(
            array[:, :, start:stop], ((0, 0), (0, 0), (0, 0), (0, 2)), constant_values=fill
        )

    by_slot = jnp.pad(ids, ((0, 0), (0, 2)))
    table = (
        ({"mask": aj.sliding_window(2)}, lambda *_: {"mask": aj.sliding_window(2)}),
        (
            {"mask": aj.padding(jnp.array([3, 5]))},
            lambda *_: {"mask": aj.padding(jnp.array([3, 5]))},
        ),
        ({"mask": hidden}, lambda a, b: {"mask": slots(hidden, a, b, False)}),
        ({"bias": bias}, lambda a, b: {"bias": slots(bias, a, b, 0)}),
        (
            {"mask": aj.segments(ids)},
            lambda a, b: {"mask": aj.segments(ids[:, a:b], by_slot)},
        ),
    )

    def run(x, whole, part):
        mask = whole.get("mask")
        mask = aj.causal() if mask is None else aj.causal() & mask
        cache, outputs = module.init_cache(2, 7), []
        for start, stop in ((0, 3), (3, 5)):
            output, cache = extend(x[:, start:stop], cache, **part(start, stop))
            outputs.append(output)
        return call(x, **{**whole, "mask": mask}), jnp.concatenate(outputs, axis=1)

    for expected, found in jax.jit(lambda x: [run(x, *row) for row in table])(X):
        np.testing.assert_allclose(found, expected, atol=2e-6)
        assert np.abs(expected - plain).max() > 1e-2


def test_positions_may_be_given():
    module, call, extend = layer(Case("separate", position="rotary"))
    positions = jnp.array([[0, 3, 4, 9, 10], [2, 3, 5, 6, 8]])

    @jax.jit
    def run(x):
        first, cache = extend(x[:, :2], module.init_cache(2, 5), positions=positions[:, :2])
        last, cache = extend(x[:, 2:], cache, positions=positions[:, 2:])
        expected = call(x, mask=aj.causal(), query_positions=positions)
        return expected, jnp.concatenate([first, last], 1), cache, call(x, mask=aj.causal())

    expected, found, cache, counted = run(X)
    np.testing.assert_allclose(found, expected, atol=2e-6)
    np.testing.assert_array_equal(cache.next_position, [11, 9])
    assert np.abs(expected - counted).max() > 1e-2


def copies(case):
    """Shapes of what a loop over steps copies, among those that the cache keeps."""
    module, variables = case.module(), {"params": jax.tree.map(jnp.float32, case.params())}
    cache = module.init_cache(1, 4096, features=D)

    def step(cache, x):
        output, cache = module.apply(variables, x, cache, method="extend")
        return cache, output

    def loop(cache):
        return jax.lax.scan(step, cache, jnp.ones((4, 1, 1, D)))

    compiled = jax.jit(loop, donate_argnums=0).lower(cache).compile()
    found = re.findall(r"= f32\[([\d,]+)\]\S* copy\(", compiled.as_text())
    kept = {array.shape for array in jax.tree.leaves(cache.entries)}
    return {tuple(map(int, shape.split(","))) for shape in found} & kept


def test_steps_write_in_place(monkeypatch):
    cases = Case("separate", bias=False), Case("merged", ov="merged", bias=False)
    assert not any(copies(case) for case in cases)
    monkeypatch.setattr(jax.lax, "cond", lambda _, write, keep, *arrays: write(*arrays))
    assert all(copies(case) for case in cases)


REFUSALS = {
    "batch": ({"batch_size": 0}, ValueError, "batch_size"),
    "capacity": ({"capacity": 2.0}, TypeError, "capacity"),
    "window": ({"window": 0}, ValueError, "window"),
    "features": ({"features": -1}, ValueError, "features"),
    "features of heads": ({"features": 7}, ValueError, "num_heads=2"),
    "kind": ({"kind": "heads"}, ValueError, "kind: expected one of 'inputs'"),
    "dtype": ({"dtype": jnp.int32}, TypeError, "dtype.*floating"),
    "float64": ({"dtype": jnp.float64}, TypeError, "dtype.*float64.*x64"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refused_by_init_cache(name):
    settings, error, match = REFUSALS[name]
    with pytest.raises(error, match=match):
        aj.SeparateAttention(2).init_cache(**{"batch_size": 2, "capacity": 3} | settings)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"position": aj.Rotary()}, "rotary.*kind=None"),
        ({"normalize_qk": True}, "QK-norm.*kind=None"),
    ],
)
def test_absorbed_evaluation_is_refused_where_no_single_matrix_exists(settings, match):
    module = aj.SeparateAttention(2, 4, **settings)
    with pytest.raises(NotImplementedError, match=match):
        module.init_cache(2, 3, kind="inputs")
    assert module.init_cache(2, 3).key.shape == (2, 2, 3, 4)


def test_refused_by_extend():
    module, _, extend = layer()
    cache = module.init_cache(2, 5)
    rolling = module.init_cache(2, 5, window=2)
    other = aj.MergedAttention(4, 4).init_cache(2, 5)
    wide = module.clone(head_dim=8).init_cache(2, 5)
    every = np.ones((1, 1, 5, 5), bool)
    table = (
        (X[:1], cache, {}, ValueError, r"x: expected \[B, T, D\] with B=2"),
        (X[0], cache, {}, ValueError, "jax.vmap"),
        (X.astype(int), cache, {}, TypeError, "x: expected a floating"),
        (X, {}, {}, TypeError, "cache: expected a Cache or CrossCache, got dict"),
        (X, other, {}, ValueError, "keeps key and value.*keeps inputs and value"),
        (X, wide, {}, ValueError, "cache key: expected shape"),
        (X, cache, {"valid": jnp.ones((2, 5))}, TypeError, "valid: expected booleans"),
        (X, cache, {"valid": jnp.ones((2, 4), bool)}, ValueError, r"valid: .*\(2, 4\)"),
        (X, cache, {"positions": jnp.zeros((2, 5))}, TypeError, "positions: expected integers"),
        (X, cache, {"positions": jnp.arange(4)}, ValueError, "positions"),
        (X, cache, {"mask": every[..., :4]}, ValueError, "mask"),
        (X, cache, {"mask": every.astype(int)}, TypeError, "mask: expected booleans"),
        (X, rolling, {"positions": jnp.arange(5)}, NotImplementedError, "positions.*window"),
        (X, rolling, {"mask": every}, NotImplementedError, "mask: .*window move"),
        (X, rolling, {"mask": aj.segments(jnp.ones(5, int))}, NotImplementedError, "window move"),
        (X, rolling, {"bias": jnp.ones((1, 1, 5, 5))}, NotImplementedError, "^bias: .*window move"),
    )
    for x, given, settings, error, match in table:
        with pytest.raises(error, match=match):
            extend(x, given, **settings)


def test_a_window_longer_than_the_capacity_does_not_roll():
    module, call, extend = layer()
    cache = module.init_cache(2, 4, window=9)
    assert cache.capacity == 4 and not cache.rolls
    with pytest.raises(ValueError, match="at most 4 tokens"):
        extend(X, cache)
    output, _ = extend(X[:, :4], cache)
    np.testing.assert_allclose(output, call(X[:, :4], mask=aj.causal()), atol=2e-6)
