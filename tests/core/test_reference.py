"""The float64 judge itself, against numbers that were computed without it."""

import numpy as np

from attention_jax.testing import reference
from tests.paths import k_fill, q_fill, v_fill


def vectorised(q, k, v, mask=None, bias=0.0, softcap=None):
    share = q.shape[2] // k.shape[2]
    q, k, v = (np.asarray(x, np.float64) for x in (q, k.repeat(share, 2), v.repeat(share, 2)))
    scores = np.einsum("bthd,bshd->bhts", q, k) / np.sqrt(q.shape[-1])
    scores = scores if softcap is None else softcap * np.tanh(scores / softcap)
    exponentials = np.where(True if mask is None else mask, np.exp(scores + bias), 0)
    weights = exponentials / exponentials.sum(-1, keepdims=True)
    return np.einsum("bhts,bshd->bthd", weights, v), weights


def test_values_of_the_cases():
    q, k, v = (fill(1, 3, 2, 4) for fill in (q_fill, k_fill, v_fill))
    mask = np.ones((1, 2, 3, 3), bool)
    mask[:, :, 1] = False
    mask[:, 1, 2] = False
    output, weights = reference.attend(q, k, v, mask)
    np.testing.assert_allclose(
        output[0, 0, 0], [-0.590668, 0.159332, 0.593971, -1.090668], atol=1e-6
    )
    np.testing.assert_allclose(
        output[0, 0, 1], [-0.269292, 0.480708, 0.202186, -0.769292], atol=1e-6
    )
    np.testing.assert_allclose(
        output[0, 2, 0], [-0.093427, 0.656573, 0.254010, -0.593427], atol=1e-6
    )
    assert not output[0, 1].any() and not output[0, 2, 1].any() and not weights[0, :, 1].any()
    q, k, v = (fill(1, 2, 2, 2) for fill in (q_fill, k_fill, v_fill))
    expected = [-0.672253, 0.077747, 0.756496, -1.243504, -0.641476, 0.108524, 0.992286, -1.007714]
    np.testing.assert_allclose(reference.attend(q, k, v)[0].ravel(), expected, atol=1e-6)


def test_equals_a_vectorised_formula_with_all_settings():
    q, k, v = q_fill(2, 3, 4, 5), k_fill(2, 7, 2, 5), v_fill(2, 7, 2, 3)
    mask = np.arange(7) < np.array([4, 7])[:, None, None, None]
    bias = k_fill(1, 4, 3, 7).astype(np.float64)
    for settings in (
        {},
        {"mask": mask},
        {"bias": bias},
        {"mask": mask, "bias": bias, "softcap": 2.0},
    ):
        for got, expected in zip(
            reference.attend(q, k, v, **settings), vectorised(q, k, v, **settings), strict=True
        ):
            np.testing.assert_allclose(got, expected, atol=1e-14)
    assert (
        np.abs(reference.attend(q, k, v, scale=0.3)[1] - reference.attend(q, k, v)[1]).max() > 0.01
    )


def test_layer_is_projection_attention_and_projection():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 3, 5)), rng.normal(size=(2, 4, 7))
    params = {
        "query": {"kernel": rng.normal(size=(5, 2, 3)), "bias": rng.normal(size=(2, 3))},
        "key": {"kernel": rng.normal(size=(7, 1, 3)), "bias": rng.normal(size=(1, 3))},
        "value": {"kernel": rng.normal(size=(7, 1, 3)), "bias": rng.normal(size=(1, 3))},
        "out": {"kernel": rng.normal(size=(2, 3, 6)), "bias": rng.normal(size=6)},
    }
    q, k, v = (
        np.tensordot(z, params[name]["kernel"], 1) + params[name]["bias"]
        for name, z in (("query", x), ("key", y), ("value", y))
    )
    heads, weights = vectorised(q, k, v)
    expected = np.tensordot(heads, params["out"]["kernel"], 2) + params["out"]["bias"]
    got, got_weights = reference.layer(params, x, y, y, 3)
    np.testing.assert_allclose(got, expected, atol=1e-13)
    np.testing.assert_allclose(got_weights, weights, atol=1e-13)
