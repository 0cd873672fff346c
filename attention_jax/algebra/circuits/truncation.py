"""Layers of lower rank."""

import jax.numpy as jnp

from attention_jax import checks
from attention_jax.algebra import lowrank, pairs, tree
from attention_jax.algebra.circuits.circuit import Circuit, check_rank
from attention_jax.algebra.circuits.layer import merged_qk
from attention_jax.algebra.merge import check_one_matrix
from attention_jax.positions import Position, check_position
from attention_jax.types import Array, Parameters


def truncate(
    params: Parameters,
    *,
    qk_rank: int | None = None,
    ov_rank: int | None = None,
    position: Position | None = None,
) -> dict[str, dict[str, Array]]:
    """Returns the layer of the same form whose W_qk or W_ov have the nearest lower rank.

    Biases are one more row of the matrices, as in `factor`, so that they are part of what is cut.
    Of a separate layer, heads that share a key or value head are stacked and cut together, and
    the balanced factors keep their width: columns beyond the rank are zero. Of a merged layer each
    head is cut alone. Derivatives are finite; see `Circuit.truncate`.

    Args:
      params: Parameters of one layer.
      qk_rank: Greatest rank of W_qk with its biases, at most its rows, its columns and, in a
        separate layer, the heads' width K. None leaves queries and keys as they are.
      ov_rank: Greatest rank of W_ov, likewise.
      position: The layer's position encoding, which leaves no trace in the parameters.

    Returns:
      The parameters, in float32 or wider, with the same entries of the same shapes.

    Raises:
      ValueError: `params` is not one layer, a rank is out of range, or none is given.
      TypeError: A parameter is not floating, or an argument has the wrong kind.
      NotImplementedError: `qk_rank` with a rotary encoding or QK-norm between W_q and W_k.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> import attention_jax as aj
      >>> module = aj.SeparateAttention(num_heads=2)
      >>> params = module.init(jax.random.key(0), jnp.ones((1, 3, 8)))["params"]
      >>> aj.circuits.qk(truncate(params, qk_rank=3)).rank().tolist()
      [3, 3]

    Paper: Eckart and Young (1936), for the optimality of the cut.
    """
    tree.check_layer(params)
    if qk_rank is None and ov_rank is None:
        raise checks.refuse(
            ValueError, "qk_rank, ov_rank", "at least one rank", "both None", "say what to truncate"
        )
    check_position(position)
    result = tree.wide(params)
    if qk_rank is not None:
        check_one_matrix(params, position, "leave qk_rank out; ov_rank alone is possible")
        if "qk" in params:
            result["qk"] = _merged_qk(result["qk"], qk_rank)
        else:
            result = _separate(result, "qk", qk_rank)
    if ov_rank is not None:
        if "ov" in params:
            result["ov"] = _merged_ov(result["ov"], ov_rank)
        else:
            result = _separate(result, "ov", ov_rank)
    return result


def _merged_qk(entries: Parameters, rank: int) -> dict[str, Array]:
    inputs, _, outputs = entries["kernel"].shape
    limit = min(inputs + ("bias" in entries), outputs + ("row_kernel" in entries))
    check_rank("qk_rank", rank, limit)
    cut = Circuit(merged_qk(entries).swapaxes(0, 1)).truncate(rank).matrix().swapaxes(0, 1)
    parts = {
        "kernel": cut[:-1, :, :-1],
        "bias": cut[-1, :, :-1],
        "row_kernel": cut[:-1, :, -1],
        "row_bias": cut[-1, :, -1],
    }
    # What is missing is zero, and a row or column of zeros stays one.
    return {name: parts[name] for name in entries}


def _merged_ov(entries: Parameters, rank: int) -> dict[str, Array]:
    _, inputs, outputs = entries["kernel"].shape
    check_rank("ov_rank", rank, min(inputs + ("bias" in entries), outputs))
    cut = Circuit(tree.homogeneous(entries, axis=1)).truncate(rank).matrix()
    parts = {"kernel": cut[:, :-1], "bias": cut[:, -1]}
    return {name: parts[name] for name in entries}


def _separate(params: Parameters, side: str, rank: int) -> dict[str, dict[str, Array]]:
    """Returns the layer with its two factors of `side` cut, balanced, and as wide as they were."""
    left, right = pairs.split(params, side)
    one, other = (params[name] for name in pairs.NAMES[side])
    limits = [left.shape[2], _rows(one), _rows(other) if side == "qk" else other["kernel"].shape[2]]
    check_rank(f"{side}_rank", rank, min(limits))
    padding = ((0, 0), (0, 0), (0, left.shape[2] - rank))
    cut = lowrank.truncated(left, right, rank)
    return pairs.join(params, side, (jnp.pad(cut[0], padding), jnp.pad(cut[1], padding)))


def _rows(entries: Parameters) -> int:
    return entries["kernel"].shape[0] + ("bias" in entries)
