"""Assertions for the tests of any attention layer, built on chex.

Each takes a callable, fails with what broke, where and by how much, and refuses inputs on which it
could not fail. `reference` is the float64 judge.
"""

from attention_jax.testing import reference as reference
from attention_jax.testing.caches import assert_cache_consistent as assert_cache_consistent
from attention_jax.testing.causality import assert_causal as assert_causal
from attention_jax.testing.functions import assert_same_function as assert_same_function
from attention_jax.testing.tokens import (
    assert_cross_attention_symmetries as assert_cross_attention_symmetries,
)
from attention_jax.testing.tokens import (
    assert_permutation_equivariant as assert_permutation_equivariant,
)
from attention_jax.testing.tokens import assert_rotation_equivariant as assert_rotation_equivariant
from attention_jax.testing.weights import (
    assert_basis_change_invariant as assert_basis_change_invariant,
)
from attention_jax.testing.weights import assert_gauge_invariant as assert_gauge_invariant
from attention_jax.testing.weights import (
    assert_head_permutation_invariant as assert_head_permutation_invariant,
)
