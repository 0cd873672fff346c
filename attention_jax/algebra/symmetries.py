"""Changes of a layer's parameters that leave its function alone."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from attention_jax import checks
from attention_jax.algebra import tree
from attention_jax.types import Array, Float, Parameters

# The axis of the heads, and the axes over the inputs of either side, of each entry.
_HEADS = {
    ("query", "kernel"): 1,
    ("query", "bias"): 0,
    ("qk", "kernel"): 1,
    ("qk", "bias"): 0,
    ("qk", "row_kernel"): 1,
    ("qk", "row_bias"): 0,
    ("ov", "kernel"): 0,
    ("ov", "bias"): 0,
    ("out", "kernel"): 0,
    ("key", "kernel"): 1,
    ("key", "bias"): 0,
    ("value", "kernel"): 1,
    ("value", "bias"): 0,
}
_QUERY_INPUTS = {("query", "kernel"): 0, ("qk", "kernel"): 0, ("qk", "row_kernel"): 0}
_KEY_INPUTS = {("key", "kernel"): 0, ("qk", "kernel"): 2, ("qk", "bias"): 1}
_VALUE_INPUTS = {("value", "kernel"): 0, ("ov", "kernel"): 1}


def head_counts(params: Parameters) -> tuple[int, int]:
    """Returns the numbers of query heads H and of key/value heads G of a layer.

    Raises:
      ValueError: `params` is not one layer.
      TypeError: A parameter is not floating.
    """
    tree.check_layer(params)
    heads = params["query"]["kernel"].shape[1] if "query" in params else None
    heads = heads or params["qk"]["kernel"].shape[1]
    grouped = [params[name]["kernel"].shape[1] for name in ("key", "value") if name in params]
    return heads, grouped[0] if grouped else heads


def permute_heads(
    params: Parameters, permutation: np.ndarray | Sequence[int]
) -> dict[str, dict[str, Array]]:
    """Relabels heads: head h of the result is head `permutation[h]` of `params`.

    Args:
      params: Parameters of one layer.
      permutation: A permutation of H; of grouped heads, one that keeps groups together.

    Raises:
      ValueError: `permutation` is none, or tears a group apart.
      TypeError: A parameter is not floating.

    Example:
      >>> import jax.numpy as jnp
      >>> kernel = jnp.arange(2.0).reshape(1, 2, 1)
      >>> params = {name: {"kernel": kernel} for name in ("query", "key", "value")}
      >>> params["out"] = {"kernel": kernel.reshape(2, 1, 1)}
      >>> permute_heads(params, [1, 0])["query"]["kernel"].ravel().tolist()
      [1.0, 0.0]
    """
    heads, _ = head_counts(params)
    permutation = np.asarray(permutation)
    if sorted(permutation.tolist()) != list(range(heads)):
        raise checks.refuse(
            ValueError, "permutation", f"a permutation of {heads} heads", permutation, "use all"
        )
    permuted = tree.wide(params)
    for (group, name), axis in _HEADS.items():
        if name in permuted.get(group, {}):
            leaf = permuted[group][name]
            order = _order(permutation, leaf.shape[axis])
            permuted[group][name] = jnp.take(leaf, order, axis=axis)
    return permuted


def change_basis(
    params: Parameters,
    query_basis: Float[Array, "D D"],
    key_basis: Float[Array, "E E"],
    value_basis: Float[Array, "E E"],
) -> dict[str, dict[str, Array]]:
    """Changes the basis of the inputs, so that inputs `x Q` give what `x` gave: `W -> Q^T W`.

    Args:
      params: Parameters of one layer.
      query_basis: Orthogonal Q of the queries' inputs.
      key_basis: Orthogonal Q of the keys' inputs.
      value_basis: Orthogonal Q of the values' inputs.

    Raises:
      ValueError: `params` is not one layer.
      TypeError: A parameter is not floating.

    Example:
      >>> import jax.numpy as jnp
      >>> params = {name: {"kernel": jnp.arange(2.0).reshape(2, 1, 1)} for name in ("qk", "ov")}
      >>> params["qk"] = {"kernel": jnp.arange(4.0).reshape(2, 1, 2)}
      >>> params["ov"] = {"kernel": jnp.ones((1, 2, 1))}
      >>> turn = jnp.array([[0.0, 1.0], [-1.0, 0.0]])
      >>> change_basis(params, turn, turn, turn)["qk"]["kernel"][:, 0].tolist()
      [[3.0, -2.0], [-1.0, 0.0]]
    """
    tree.check_layer(params)
    changed = tree.wide(params)
    for sides, basis in (
        (_QUERY_INPUTS, query_basis),
        (_KEY_INPUTS, key_basis),
        (_VALUE_INPUTS, value_basis),
    ):
        for (group, name), axis in sides.items():
            if name in changed.get(group, {}):
                moved = jnp.tensordot(
                    changed[group][name], basis, axes=(axis, 0), precision="highest"
                )
                changed[group][name] = jnp.moveaxis(moved, -1, axis)
    return changed


def _order(permutation: np.ndarray, groups: int) -> np.ndarray:
    """Returns the order of the groups of heads, or raises if they are torn apart."""
    sharers = len(permutation) // groups
    moved = permutation.reshape(groups, sharers) // sharers
    if (moved != moved[:, :1]).any():
        raise checks.refuse(
            ValueError,
            "permutation",
            f"groups of {sharers} query heads that stay together",
            permutation,
            "permute whole groups, and heads inside a group",
        )
    return moved[:, 0]
