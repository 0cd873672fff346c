"""W(offset) of rotary heads, against scores of queries and keys that are rotated."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attention_jax as aj
from attention_jax.core import separate
from tests.algebra.layers import layer, qk_matrices

ROTARIES = {
    "half": aj.Rotary(theta=50.0),
    "interleaved": aj.Rotary(theta=50.0, style="interleaved"),
    "half of half": aj.Rotary(theta=50.0, fraction=0.5),
    "interleaved of half": aj.Rotary(theta=0.3, style="interleaved", fraction=0.5),
}


def params(bias=True):
    return layer(d=7, e=5, heads=4, groups=2, width=8, bias=bias, dtype=np.float64)


@pytest.mark.parametrize("name", ROTARIES)
def test_the_family_equals_real_scores(name):
    position, bias = ROTARIES[name], "of half" in name
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(6, 7)), rng.normal(size=(5, 5))
    at_query, at_key = np.array([0, 3, 4, 9, 2, 30]), np.array([1, 0, 7, 2, 11])
    offsets = (at_query[:, None] - at_key[None]).ravel()

    @jax.jit
    def both(weights, x, y, offsets):
        highest = jax.lax.Precision.HIGHEST
        query, key = separate.query_key.project(weights, x, y, highest)
        query, key = position.rotate(query, at_query), position.rotate(key, at_key)
        family = aj.circuits.rotary_qk(weights, position, homogeneous=bias)
        return query, key, jax.vmap(lambda offset: family.at(offset).matrix())(offsets)

    with jax.enable_x64(True):
        query, key, matrices = map(np.asarray, both(params(bias), x, y, offsets))
    scores = np.einsum("thk,shk->hts", query, np.repeat(key, 2, axis=1))
    matrices = matrices.reshape(6, 5, *matrices.shape[1:])
    if bias:
        x, y = (np.concatenate([a, np.ones((len(a), 1))], -1) for a in (x, y))
    np.testing.assert_allclose(np.einsum("td,tshde,se->hts", x, matrices, y), scores, atol=1e-10)
    wrong = np.einsum("td,tshde,se->hts", x, matrices[::-1], y)
    assert np.abs(wrong - scores).max() > 0.1


@pytest.mark.parametrize("name", ["half", "interleaved of half"])
def test_the_family_is_its_parts(name):
    position = ROTARIES[name]
    width = position.width(8)
    offsets = np.array([-3, 0, 1, 40])

    @jax.jit
    def everything(weights):
        family = aj.circuits.rotary_qk(weights, position)
        parts = ([part(f) for f in range(width // 2)] for part in (family.cosine, family.sine))
        return {
            "frequencies": family.frequencies,
            "constant": family.constant().matrix(),
            "parts": [[circuit.left for circuit in part] for part in parts],
            "cosines": jnp.stack([family.cosine(f).matrix() for f in range(width // 2)]),
            "sines": jnp.stack([family.sine(f).matrix() for f in range(width // 2)]),
            "at": jnp.stack([family.at(int(offset)).matrix() for offset in offsets]),
            "mean": family.mean(offsets),
            "mean matrix": family.mean(offsets).matrix(),
            "values": family.singular_values(offsets),
        }

    with jax.enable_x64(True):
        found = jax.tree.map(np.asarray, everything(params()))
    expected = position.theta ** (-2 * np.arange(width // 2) / width)
    np.testing.assert_allclose(found["frequencies"], expected, rtol=1e-12)
    assert {leaf.shape[-1] for leaf in jax.tree.leaves(found["parts"])} == {2}
    constant = found["constant"]
    assert np.any(constant) == (width < 8)
    np.testing.assert_allclose(
        constant + found["cosines"].sum(0), qk_matrices(params()), atol=1e-12
    )
    angles = offsets[:, None] * expected
    formed = constant + np.einsum("nf,fhde->nhde", np.cos(angles), found["cosines"])
    formed += np.einsum("nf,fhde->nhde", np.sin(angles), found["sines"])
    np.testing.assert_allclose(found["at"], formed, atol=1e-10)
    np.testing.assert_allclose(found["mean matrix"], formed.mean(0), atol=1e-10)
    assert found["mean"].left.shape == (4, 7, 8)
    np.testing.assert_allclose(
        found["values"][..., :5], np.linalg.svd(formed, compute_uv=False), atol=1e-10
    )
    assert np.abs(found["values"][0] - found["values"][1]).max() > 0.1


def test_c54_scores_depend_on_the_offset():
    column = np.array([[1.0, 0.0]], "f4")[:, None]
    one = {name: {"kernel": column} for name in ("query", "key", "value")}
    one["out"] = {"kernel": column.transpose(1, 2, 0)}
    family = aj.circuits.rotary_qk(one, aj.Rotary())
    found = [family.at(offset).matrix().item() for offset in (0, 1, 2)]
    np.testing.assert_allclose(found, [1, 0.540302, -0.416147], atol=1e-6)


def test_the_family_passes_through_jit_and_refuses_by_name():
    weights = layer(width=4)
    rotary_qk = aj.circuits.rotary_qk
    family = jax.jit(lambda p: rotary_qk(p, aj.Rotary()))(weights)
    assert family.position == aj.Rotary()
    for call, error, match in (
        (lambda: rotary_qk(aj.merge(weights), aj.Rotary()), ValueError, "params: .*query and key"),
        (lambda: rotary_qk(weights, aj.ALiBi(4)), TypeError, "position: expected a Rotary"),
        (lambda: rotary_qk(layer(width=3), aj.Rotary()), ValueError, "head_dim"),
        (lambda: family.cosine(2), ValueError, "f: expected a pair from 0 to 1"),
        (lambda: family.sine(-1), ValueError, "f: expected a pair from 0 to 1"),
        (lambda: family.sine(0.5), TypeError, "f: expected an integer"),
        (lambda: family.mean([1, 2]), TypeError, "offsets: expected an array"),
        (lambda: family.singular_values(jnp.zeros(0)), ValueError, "offsets"),
        (lambda: family.at(jnp.zeros(2)), ValueError, "offset: expected a number"),
    ):
        with pytest.raises(error, match=match):
            call()
