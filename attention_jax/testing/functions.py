"""The assertion that two callables are one function."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from attention_jax.testing import compare
from attention_jax.types import Array


def assert_same_function(
    one: Callable[..., Any],
    other: Callable[..., Any],
    *inputs: Any,
    gradients: bool = True,
    key: Array | None = None,
    tolerance: float | None = None,
) -> None:
    """Asserts equal outputs, and equal gradients with respect to the inputs.

    Gradients are those of a random linear function of the outputs, for all floating inputs.

    Args:
      one: A callable of `*inputs` that returns an array or a pytree of arrays.
      other: A callable that returns the same structure.
      *inputs: Arrays or pytrees of arrays.
      gradients: Whether to compare gradients too.
      key: Random key of the linear function; fixed by default.
      tolerance: Relative to the largest number of a leaf, or to 1; by default from the dtype.

    Raises:
      AssertionError: They differ; the message says in what, where and by how much.
      ValueError: `one` and `other` are the same object, or all outputs are below the tolerance.

    Example:
      >>> import functools, jax
      >>> import attention_jax as aj
      >>> x = jax.random.normal(jax.random.key(0), (2, 5, 8))
      >>> separate, merged = aj.SeparateAttention(num_heads=2), aj.MergedAttention(num_heads=2)
      >>> variables = separate.init(jax.random.key(1), x)
      >>> assert_same_function(
      ...     functools.partial(separate.apply, variables),
      ...     functools.partial(merged.apply, aj.convert(variables, aj.merge)), x)
    """
    if one is other:
        raise compare.refuse_vacuous("other", "another callable than one", "the same object")
    outputs, others = one(*inputs), other(*inputs)
    dtypes = [[jnp.asarray(leaf).dtype for leaf in jax.tree.leaves(x)] for x in (outputs, others)]
    if dtypes[0] != dtypes[1]:
        raise AssertionError(f"the outputs differ in dtype: {dtypes[0]} against {dtypes[1]}")
    compare.assert_close("the outputs differ", outputs, others, tolerance)
    zeros = jax.tree.map(jnp.zeros_like, outputs)
    compare.check_differ("inputs", "outputs exceed the tolerance", outputs, zeros, tolerance)
    leaves, structure = jax.tree.flatten(inputs)
    floating = [i for i, leaf in enumerate(leaves) if _is_floating(leaf)]
    if not gradients or not floating:
        return
    key = jax.random.key(0) if key is None else key
    directions = {
        i: jax.random.normal(jax.random.fold_in(key, i), leaf.shape, leaf.dtype)
        for i, leaf in enumerate(jax.tree.leaves(outputs))
        if _is_floating(leaf)
    }

    def gradient(function: Callable[..., Any]) -> Any:
        def loss(moved: list[Array]) -> Array:
            now = list(leaves)
            for i, leaf in zip(floating, moved, strict=True):
                now[i] = leaf
            found = jax.tree.leaves(function(*jax.tree.unflatten(structure, now)))
            return sum((jnp.sum(found[i] * d) for i, d in directions.items()), jnp.zeros(()))

        return jax.grad(loss)([leaves[i] for i in floating])

    compare.assert_close(
        f"the gradients with respect to the input leaves {floating} differ",
        gradient(one),
        gradient(other),
        tolerance,
    )


def _is_floating(x: Any) -> bool:
    return jnp.issubdtype(jnp.asarray(x).dtype, jnp.floating)
