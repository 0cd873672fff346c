"""Composition scores between the heads of two layers, against products that are formed."""

import jax
import numpy as np
import pytest

import attention_jax as aj
from tests.algebra.layers import layer, ov_matrices, qk_matrices

composition = jax.jit(aj.circuits.composition)


def layers(size=1.0):
    earlier = layer(d=5, e=6, out=7, heads=2, groups=1, seed=0, dtype=np.float64)
    later = layer(d=7, e=7, out=5, heads=4, groups=2, seed=1, dtype=np.float64)
    return jax.tree.map(lambda leaf: size * leaf, earlier), later


def scores(first, second):
    norms = [np.linalg.norm(m, axis=(1, 2)) for m in (first, second)]
    products = np.linalg.norm(first[:, None] @ second[None], axis=(2, 3))
    return products / (norms[0][:, None] * norms[1][None])


@pytest.mark.parametrize("merge", ["neither", "earlier", "both"])
def test_scores_equal_those_of_formed_matrices(merge):
    earlier, later = layers()
    written, scored, read = ov_matrices(earlier), qk_matrices(later), ov_matrices(later)
    # What an earlier head writes enters the rows of W_qk as a query and its columns as a key.
    expected = {
        "query": scores(written, scored),
        "key": scores(written, np.swapaxes(scored, 1, 2)),
        "value": scores(written, read),
    }
    assert np.abs(expected["query"] - expected["key"]).max() > 0.05
    with jax.enable_x64(True):
        if merge != "neither":
            earlier = aj.merge(earlier, ov=True)
        if merge == "both":
            later = aj.merge(later, ov=True)
        found = composition(earlier, later)
        for name, value in expected.items():
            assert value.shape == (2, 4)
            np.testing.assert_allclose(getattr(found, name), value, atol=1e-12)


def test_scores_do_not_depend_on_sizes_and_zeros_score_zero():
    expected = composition(*layers())
    for size in (1e-12, 1e12):
        found = composition(*layers(size))
        np.testing.assert_allclose(found.query, expected.query, rtol=1e-5)
    assert not np.any(composition(*layers(0.0)).value)


def test_widths_of_another_residual_stream_are_refused():
    earlier, later = layers()
    with pytest.raises(ValueError, match="later: expected inputs of width 5.*'queries': 5"):
        aj.circuits.composition(later, earlier)
    with pytest.raises(ValueError, match="one attention layer"):
        aj.circuits.composition(earlier, {"a": later})
