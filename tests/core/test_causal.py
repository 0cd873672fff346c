"""No setting loses the causal mask, and one query against many keys sees them all."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attention_jax as aj
from attention_jax.testing import reference
from tests.paths import PATHS, q_fill, variables_of

T, K = 4, 4
TOGGLES = {
    "plain": {},
    "weights": {"return_weights": True},
    "all_true": {"mask": aj.causal() & np.ones((1, 1, T, T), bool)},
    "bias": {"bias": np.linspace(-1, 1, T * T, dtype=np.float32).reshape(1, 1, T, T)},
    "softcap": {"softcap": 1.0},
    "padding": {"mask": aj.padding(np.array([T])) & aj.causal()},
}


def tokens(*batch, heads=1):
    return q_fill(*batch, T, heads, K)


def check_causal(path, q, k, v, **settings):
    settings = {"mask": aj.causal(), **settings}

    def outputs(k, v):
        result = path(q, k, v, **settings)
        return result[0] if isinstance(result, tuple) else result

    output = outputs(k, v)
    share = q.shape[-2] // v.shape[-2]
    np.testing.assert_allclose(
        output[..., 0, :, :], np.repeat(v, share, -2)[..., 0, :, :], atol=1e-6
    )
    changed_k, changed_v = k.copy(), v.copy()
    changed_k[..., 3, :, :], changed_v[..., 3, :, :] = 9.0, -9.0
    changed = outputs(changed_k, changed_v)
    np.testing.assert_array_equal(output[..., :3, :, :], changed[..., :3, :, :])
    assert np.abs(output[..., 3, :, :] - changed[..., 3, :, :]).max() > 0.1
    return output


@pytest.mark.parametrize("toggle", TOGGLES.values(), ids=TOGGLES)
@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_c05_the_mask_survives(path, toggle):
    x = tokens(1)
    output = check_causal(path, x, x, x, **toggle)
    settings = {name: toggle[name] for name in ("bias", "softcap") if name in toggle}
    expected, _ = reference.attend(x, x, x, np.tril(np.ones((T, T), bool)), **settings)
    np.testing.assert_allclose(output, expected, atol=2e-6)


@pytest.mark.parametrize("batch", [(), (2, 3)], ids=["unbatched", "two leading axes"])
@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_c05_with_other_leading_axes(path, batch):
    x = tokens(*batch, heads=2)
    output = check_causal(path, x, x, x)
    expected, _ = reference.attend(x, x, x, np.tril(np.ones((T, T), bool)))
    np.testing.assert_allclose(output, expected, atol=2e-6)


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_c05_with_grouped_heads(path):
    q, x = tokens(1, heads=4), tokens(1, heads=2)
    output = check_causal(path, q, x, x)
    expected, _ = reference.attend(q, x, x, np.tril(np.ones((T, T), bool)))
    np.testing.assert_allclose(output, expected, atol=2e-6)


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_c05_in_training_mode(path):
    x = tokens(8)
    rate, key = 0.25, jax.random.key(3)

    def output(x):
        return path(x, x, x, mask=aj.causal(), dropout_rate=rate, dropout_key=key)

    trained = output(x)
    first, kept = trained[:, 0], x[:, 0] / (1 - rate)
    dropped = np.abs(first).max((1, 2)) == 0
    assert 0 < dropped.sum() < 8
    np.testing.assert_allclose(first[~dropped], kept[~dropped], atol=1e-6)
    changed = x.copy()
    changed[:, 3] = 9.0
    np.testing.assert_array_equal(trained[:, :3], output(changed)[:, :3])


@pytest.mark.parametrize("form", [aj.SeparateAttention, aj.MergedAttention, aj.RawAttention])
def test_c05_in_modules_whatever_is_switched(form):
    x = tokens(1)[:, :, 0]
    settings = {} if form is aj.RawAttention else {"num_heads": 2, "num_kv_heads": 1}
    outputs = []
    for rate, deterministic, sow, extra in (
        (0.0, None, False, {}),
        (0.1, True, False, {}),
        (0.1, True, True, {}),
        (0.0, None, True, {"bias": np.zeros((1, 1, T, T), np.float32)}),
    ):
        module = form(**settings, dropout_rate=rate)
        variables = variables_of(module, x)
        call = jax.jit(
            lambda x, m=module, v=variables, d=deterministic, s=sow, e=extra: m.apply(
                v, x, mask=aj.causal(), deterministic=d, sow_weights=s, **e
            )
        )
        changed = x.copy()
        changed[:, 3] = 9.0
        np.testing.assert_array_equal(call(x)[:, :3], call(changed)[:, :3])
        outputs.append(call(x))
    for output in outputs[1:]:
        np.testing.assert_allclose(output, outputs[0], atol=1e-6)


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_c18_one_query_sees_all_keys_so_far(path):
    for length, mean in ((2, 1.5), (4, 2.5)):
        query = np.zeros((1, 1, 1, 2), np.float32)
        value = np.arange(1, length + 1, dtype=np.float32).reshape(1, length, 1, 1)
        output = path(query, np.repeat(value, 2, -1), value, mask=aj.causal())
        assert output.item() == pytest.approx(mean, abs=1e-6)


def test_c18_in_a_buffer_of_larger_capacity():
    value = np.zeros((1, 8, 1, 1), np.float32)
    value[0, :4, 0, 0] = [1, 2, 3, 4]

    @jax.jit
    def step(position):
        return aj.attend(
            jnp.zeros((1, 1, 1, 1)), value, value, mask=aj.causal(), query_positions=position
        )

    means = [step(jnp.array([t])).item() for t in range(4)]
    np.testing.assert_allclose(means, [1.0, 1.5, 2.0, 2.5], atol=1e-6)


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_c18_a_chunk_of_queries_stands_at_the_end(path):
    x = tokens(1)
    whole = path(x, x, x, mask=aj.causal())
    np.testing.assert_allclose(path(x[:, 2:], x, x, mask=aj.causal()), whole[:, 2:], atol=1e-6)


def test_more_queries_than_keys_leave_the_first_ones_without_keys():
    x = tokens(1)
    output = aj.attend(x, x[:, :2], x[:, :2], mask=aj.causal())
    assert not np.any(output[:, :2])
    np.testing.assert_allclose(output[:, 2], x[:, 0], atol=1e-6)


def test_positions_shift_queries_and_keys_together():
    x = tokens(1)
    positions = jnp.arange(T) + 10
    shifted = aj.attend(
        x, x, x, mask=aj.causal(), query_positions=positions, key_positions=positions
    )
    np.testing.assert_array_equal(shifted, aj.attend(x, x, x, mask=aj.causal()))


def test_by_default_the_last_query_stands_at_the_last_key_wherever_that_is():
    x = tokens(1)
    shifted = aj.attend(x, x, x, mask=aj.causal(), key_positions=jnp.arange(T) + 10)
    np.testing.assert_array_equal(shifted, aj.attend(x, x, x, mask=aj.causal()))


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_c45_packed_documents(path):
    value = np.array([1, 2, 3, 10, 20, 99], np.float32).reshape(1, 6, 1, 1)
    zero = np.zeros((1, 6, 1, 2), np.float32)
    for padding_id in (0, -1):
        ids = np.array([[1, 1, 1, 2, 2, padding_id]])
        output = path(zero, zero, value, mask=aj.causal() & aj.segments(ids))
        np.testing.assert_allclose(output.ravel(), [1, 1.5, 2, 10, 15, 0], atol=2e-6)
        edited = value.copy()
        edited[:, :3] = -5
        moved = path(zero, zero, edited, mask=aj.causal() & aj.segments(ids))
        np.testing.assert_array_equal(output[:, 3:], moved[:, 3:])
        assert np.all(output[:, :3] != moved[:, :3])
