"""Assertions about changes of the parameters that must not change the function.

Each takes `apply(params, *inputs)` with the parameters of one layer, for example
`lambda params, x: module.apply({"params": params}, x)`.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attention_jax.algebra import gauge, symmetries
from attention_jax.testing import compare
from attention_jax.types import Array, Parameters

Apply = Callable[..., Any]


def assert_head_permutation_invariant(
    apply: Apply, params: Parameters, *inputs: Any, tolerance: float | None = None
) -> None:
    """Asserts that relabelling the heads with their weights does not change the output.

    Of grouped heads whole groups are exchanged, and the heads inside each group.

    Args:
      apply: `apply(params, *inputs)`.
      params: Parameters of one layer with at least two heads.
      *inputs: Array of the layer.
      tolerance: Relative to the largest output, or to 1; by default from the dtype.

    Raises:
      AssertionError: The output changes; the message says where and by how much.
      ValueError: There is one head, or all heads have equal weights.

    Example:
      >>> import jax
      >>> import attention_jax as aj
      >>> x = jax.random.normal(jax.random.key(0), (2, 5, 8))
      >>> module = aj.SeparateAttention(num_heads=4, num_kv_heads=2)
      >>> params = module.init(jax.random.key(1), x)["params"]
      >>> assert_head_permutation_invariant(
      ...     lambda params, x: module.apply({"params": params}, x), params, x)
    """
    heads, groups = symmetries.head_counts(params)
    if heads < 2:
        raise compare.refuse_vacuous("params", "at least 2 heads", heads)
    grouped = np.arange(heads).reshape(groups, -1)
    # Exchanges of two and rotations generate all permutations; one permutation alone, such as the
    # reversal, may be a symmetry of wrongly shared heads too.
    turns = [functools.partial(_exchange, grouped, axis) for axis in (0, 1)]
    turns += [functools.partial(np.roll, grouped, 1, axis) for axis in (0, 1)]
    orders = [turn().reshape(-1) for turn in turns]
    moving = [order for order in orders if (order != np.arange(heads)).any()]
    relabelled = [symmetries.permute_heads(params, order) for order in moving]
    compare.check_differ(
        "params", "the heads' weights differ", [dict(params)] * len(moving), relabelled
    )
    expected = apply(params, *inputs)
    _check_used(apply, params, inputs, expected, tolerance)
    for order, changed in zip(moving, relabelled, strict=True):
        what = f"relabelling the heads as {order.tolist()} changes the output"
        compare.assert_close(what, expected, apply(changed, *inputs), tolerance)


def assert_gauge_invariant(
    apply: Apply,
    params: Parameters,
    *inputs: Any,
    key: Array | None = None,
    tolerance: float | None = None,
) -> None:
    """Asserts that a change of basis inside each head does not change the output.

    `W_q A, W_k A^-T` and `W_v A, A^-1 W_o` with a random invertible A for each key and value head;
    whichever pairs the layer has. Rotary encodings and QK-norm break it.

    Args:
      apply: `apply(params, *inputs)`.
      params: Parameters of one layer with `query` and `key`, or `value` and `out`.
      *inputs: Array of the layer.
      key: Random key of the matrices; fixed by default.
      tolerance: Relative to the largest output, or to 1; by default from the dtype.

    Raises:
      AssertionError: The output changes; the message says where and by how much.
      ValueError: The layer has no pair of factors.

    Example:
      >>> import jax
      >>> import attention_jax as aj
      >>> x = jax.random.normal(jax.random.key(0), (2, 5, 8))
      >>> module = aj.SeparateAttention(num_heads=2)
      >>> params = module.init(jax.random.key(1), x)["params"]
      >>> assert_gauge_invariant(
      ...     lambda params, x: module.apply({"params": params}, x), params, x)
    """
    key = jax.random.key(0) if key is None else key
    matrices = {}
    for side, name in (("qk", "key"), ("ov", "value")):
        if name in params:
            kernel = params[name]["kernel"]
            _, groups, width = kernel.shape
            dtype = jnp.promote_types(kernel.dtype, jnp.float32)
            drawn = jax.random.fold_in(key, ord(side[0]))
            matrices[side] = gauge.draw(drawn, groups, width, dtype)
    if not matrices:
        raise compare.refuse_vacuous("params", "query and key, or value and out", sorted(params))
    changed = gauge.change(params, **matrices)
    compare.check_differ("params", "a change of basis matters", dict(params), changed)
    expected = apply(params, *inputs)
    _check_used(apply, params, inputs, expected, tolerance)
    what = "a change of basis inside the heads changes the output"
    compare.assert_close(what, expected, apply(changed, *inputs), tolerance)


def assert_basis_change_invariant(
    apply: Apply,
    params: Parameters,
    *inputs: Array,
    key: Array | None = None,
    tolerance: float | None = None,
) -> None:
    """Asserts that a rotation of the inputs' basis, undone in the weights, changes no output.

    `x -> x Q` and `W_qk -> Q^T W_qk Q`, likewise for all kernels that face the inputs. With two
    inputs each side gets its own Q, with three the values too.

    Args:
      apply: `apply(params, *inputs)`.
      params: Parameters of one layer, of the merged form or another.
      *inputs: One to three inputs `[..., length, width]`: queries', keys', values'.
      key: Random key of the rotations; fixed by default.
      tolerance: Relative to the largest output, or to 1; by default from the dtype.

    Raises:
      AssertionError: The output changes; the message says where and by how much.
      ValueError: There is no input, more than three, or the output does not depend on its basis.

    Example:
      >>> import jax
      >>> import attention_jax as aj
      >>> x = jax.random.normal(jax.random.key(0), (2, 5, 8))
      >>> module = aj.MergedAttention(num_heads=2, ov="merged")
      >>> params = module.init(jax.random.key(1), x)["params"]
      >>> assert_basis_change_invariant(
      ...     lambda params, x: module.apply({"params": params}, x), params, x)
    """
    if not 1 <= len(inputs) <= 3:
        raise compare.refuse_vacuous("inputs", "one to three arrays", len(inputs))
    key = jax.random.key(0) if key is None else key
    bases = [
        jax.random.orthogonal(
            jax.random.fold_in(key, i),
            x.shape[-1],
            dtype=jnp.promote_types(x.dtype, jnp.float32),
        )
        for i, x in enumerate(inputs)
    ]
    turned = [
        jnp.einsum("...TD,DE->...TE", x, basis.astype(x.dtype), precision="highest")
        for x, basis in zip(inputs, bases, strict=True)
    ]
    expected = apply(params, *inputs)
    compare.check_differ(
        "inputs", "the basis of the inputs matters", expected, apply(params, *turned), tolerance
    )
    _check_used(apply, params, inputs, expected, tolerance)
    query, key_side, value = (bases + [bases[-1]] * 2)[:3]
    changed = symmetries.change_basis(params, query, key_side, value)
    what = "a change of the inputs' basis, undone in the weights, changes the output"
    compare.assert_close(what, expected, apply(changed, *turned), tolerance)


def _exchange(grouped: np.ndarray, axis: int) -> np.ndarray:
    """Returns the heads with the first two groups, or the first two of each group, exchanged."""
    order = np.arange(grouped.shape[axis])
    order[:2] = order[:2][::-1]
    return np.take(grouped, order, axis)


def _check_used(
    apply: Apply, params: Parameters, inputs: tuple, expected: Any, tolerance: float | None
) -> None:
    """Raises ValueError unless the output depends on the kernels of scores and of values.

    It does not with one token, or equal tokens: then every score matrix gives the same weights.
    """
    for name in ("query", "qk", "value", "ov"):
        if name in params:
            kernel = jnp.asarray(params[name]["kernel"])
            drawn = jax.random.normal(jax.random.key(1), kernel.shape, kernel.dtype)
            other = {**params[name], "kernel": drawn}
            compare.check_differ(
                "inputs",
                f"the output depends on {name}/kernel",
                expected,
                apply({**params, name: other}, *inputs),
                tolerance,
            )
