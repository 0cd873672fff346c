"""Assertions about the order of tokens."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attention_jax.testing import compare
from attention_jax.types import Array


def assert_permutation_equivariant(
    function: Callable[[Array], Array],
    x: Array,
    *,
    permutation: Any | None = None,
    tolerance: float | None = None,
) -> None:
    """Asserts that permuting the input tokens permutes the output tokens: `f(P x) = P f(x)`.

    Self-attention without positions and causal masks has this symmetry.

    Args:
      function: From `[..., T, D]` to `[..., T, O]`; any callable, a layer of your own too.
      x: Inputs `[..., T, D]` whose tokens differ.
      permutation: Of T; by default a fixed one without fixed points.
      tolerance: Relative to the largest output, or to 1; by default from the dtype.

    Raises:
      AssertionError: The property does not hold; the message says where and by how much.
      ValueError: The inputs could not show a violation.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> import attention_jax as aj
      >>> x = jax.random.normal(jax.random.key(0), (2, 5, 4))
      >>> assert_permutation_equivariant(lambda x: aj.RawAttention().apply({}, x), x)
      >>> causal = lambda x: aj.RawAttention().apply({}, x, mask=aj.causal())
      >>> assert_permutation_equivariant(causal, x)
      Traceback (most recent call last):
      AssertionError: f(P x) is not P f(x) ...
    """
    order = _permutation(permutation, x.shape[-2])
    expected = jax.tree.map(lambda y: jnp.take(y, order, axis=-2), function(x))
    compare.check_differ("x", "P f(x) differs from f(x)", function(x), expected, tolerance)
    got = function(jnp.take(x, order, axis=-2))
    compare.assert_close(
        f"f(P x) is not P f(x) for the permutation P = {order.tolist()} of tokens",
        expected,
        got,
        tolerance,
    )


def assert_rotation_equivariant(
    function: Callable[[Array], Array],
    x: Array,
    *,
    shift: int = 1,
    tolerance: float | None = None,
) -> None:
    """Asserts that rotating the sequence rotates the output: `rot_-s(f(rot_s(x))) = f(x)`.

    A rotation moves each token by `shift` places and wraps around; it is a permutation.

    Args:
      function: From `[..., T, D]` to `[..., T, O]`.
      x: Inputs `[..., T, D]` whose tokens differ.
      shift: Places to move by, not a multiple of T.
      tolerance: As in `assert_permutation_equivariant`.

    Raises:
      AssertionError: The property does not hold; the message says where and by how much.
      ValueError: The inputs could not show a violation.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> import attention_jax as aj
      >>> x = jax.random.normal(jax.random.key(0), (4, 3))
      >>> assert_rotation_equivariant(lambda x: aj.RawAttention().apply({}, x), x, shift=2)
    """
    length = x.shape[-2]
    if length == 0 or shift % length == 0:
        raise compare.refuse_vacuous("shift", f"no multiple of the length {length}", shift)
    expected = function(x)
    rolled = jax.tree.map(lambda y: jnp.roll(y, shift, axis=-2), expected)
    compare.check_differ("x", "rotating f(x) changes it", expected, rolled, tolerance)
    got = jax.tree.map(
        lambda y: jnp.roll(y, -shift, axis=-2), function(jnp.roll(x, shift, axis=-2))
    )
    compare.assert_close(
        f"rotating the tokens by {shift}, applying f and rotating back is not f",
        expected,
        got,
        tolerance,
    )


def assert_cross_attention_symmetries(
    function: Callable[[Array, Any], Array],
    inputs_q: Array,
    inputs_kv: Any,
    *,
    tolerance: float | None = None,
) -> None:
    """Asserts `f(P x, y) = P f(x, y)` and `f(x, P y) = f(x, y)`.

    Cross-attention is equivariant in the queries and invariant to a joint permutation of keys and
    values.

    Args:
      function: From `(inputs_q, inputs_kv)` to `[..., T, O]`.
      inputs_q: `[..., T, D]`, tokens that differ.
      inputs_kv: `[..., S, E]`, or a pytree of arrays that have the keys' axis second to last (keys,
        values, a key mask `[..., S, 1]`), all permuted together.
      tolerance: As in `assert_permutation_equivariant`.

    Raises:
      AssertionError: One of the two does not hold; the message says which, where and by how much.
      ValueError: The inputs could not show a violation.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> import attention_jax as aj
      >>> x, y = (jax.random.normal(jax.random.key(i), (2, 3 + i, 4)) for i in range(2))
      >>> assert_cross_attention_symmetries(lambda x, y: aj.RawAttention().apply({}, x, y), x, y)
    """
    compare_with = function(inputs_q, inputs_kv)
    order = _permutation(None, inputs_q.shape[-2])
    expected = jax.tree.map(lambda y: jnp.take(y, order, axis=-2), compare_with)
    compare.check_differ(
        "inputs_q", "P f(x, y) differs from f(x, y)", compare_with, expected, tolerance
    )
    compare.assert_close(
        f"f(P x, y) is not P f(x, y) for the permutation P = {order.tolist()} of queries",
        expected,
        function(jnp.take(inputs_q, order, axis=-2), inputs_kv),
        tolerance,
    )
    lengths = {leaf.shape[-2] for leaf in jax.tree.leaves(inputs_kv)}
    if len(lengths) != 1:
        expected = "arrays with equally many keys on the axis before the last"
        raise compare.refuse_vacuous("inputs_kv", expected, sorted(lengths))
    order = _permutation(None, lengths.pop())
    permuted = jax.tree.map(lambda y: jnp.take(y, order, axis=-2), inputs_kv)
    _check_depends(function, inputs_q, inputs_kv, compare_with, tolerance)
    compare.assert_close(
        f"f(x, P y) is not f(x, y) for the permutation P = {order.tolist()} of keys and values",
        compare_with,
        function(inputs_q, permuted),
        tolerance,
    )


def _check_depends(
    function: Callable, inputs_q: Array, inputs_kv: Any, output: Any, tolerance: float | None
) -> None:
    def first_only(y: Array) -> Array:
        return jnp.broadcast_to(y[..., :1, :], y.shape)

    changed = function(inputs_q, jax.tree.map(first_only, inputs_kv))
    compare.check_differ("inputs_kv", "the keys and values matter", output, changed, tolerance)


def _permutation(permutation: Any | None, length: int) -> np.ndarray:
    if permutation is None:
        order = _derangement(length)
    else:
        order = np.asarray(permutation)
    if sorted(order.tolist()) != list(range(length)) or (order == np.arange(length)).all():
        expected = f"a permutation of {length} tokens that moves some"
        raise compare.refuse_vacuous("permutation", expected, order.tolist())
    return order


def _derangement(length: int) -> np.ndarray:
    """Returns a fixed permutation that moves every token, and from 4 on is no rotation."""
    draw = np.random.default_rng(0)
    order = np.roll(np.arange(length), 1)
    steps = (order - np.arange(length)) % max(length, 1)
    while length > 3 and ((steps == 0).any() or (steps == steps[0]).all()):
        order = draw.permutation(length)
        steps = (order - np.arange(length)) % length
    return order
