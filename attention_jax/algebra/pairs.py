"""The two factors of W_qk and of W_ov of a separate layer, a stack of heads for each shared one.

With biases as one more row, queries of group g are `left_g`, `[J (D + 1), K]`, and its keys
`right_g`, `[E + 1, K]`; values are `left_g`, `[F + 1, V]`, and outputs `right_g`, `[J O, V]`. The
layer depends on `left_g right_g^T` only.
"""

from attention_jax import checks
from attention_jax.algebra import tree
from attention_jax.types import Array, Float, Parameters

NAMES = {"qk": ("query", "key"), "ov": ("value", "out")}
Pair = tuple[Float[Array, "G M K"], Float[Array, "G N K"]]


def check_separate(params: Parameters, side: str) -> None:
    """Raises ValueError unless the layer has the two factors of `side`, "qk" or "ov"."""
    if side in params:
        raise checks.refuse(
            ValueError,
            "params",
            " and ".join(NAMES[side]),
            f"{side}, already merged",
            f"factor the layer first, or leave {side} out",
        )


def split(params: Parameters, side: str) -> Pair:
    """Returns the factors of `side`, "qk" or "ov"."""
    one, other = (params[name] for name in NAMES[side])
    left = tree.homogeneous(one, axis=0).swapaxes(0, 1)
    if side == "qk":
        right = tree.homogeneous(other, axis=0).swapaxes(0, 1)
        return _stacked(left, len(right)), right
    return left, _stacked(other["kernel"].swapaxes(1, 2), len(left))


def join(params: Parameters, side: str, pair: Pair) -> dict[str, dict[str, Array]]:
    """Returns the layer with other factors of `side`, of any width.

    A layer without a bias must have zeros in its row.
    """
    left, right = pair
    one, other = (params[name] for name in NAMES[side])
    if side == "qk":
        left = _unstacked(left, one["kernel"].shape[1])
        entries = {"query": _entries(one, left), "key": _entries(other, right)}
    else:
        kernel = _unstacked(right, other["kernel"].shape[0]).swapaxes(1, 2)
        entries = {"value": _entries(one, left), "out": {**other, "kernel": kernel}}
    return {**params, **entries}


def _stacked(heads: Float[Array, "H M K"], groups: int) -> Float[Array, "G N K"]:
    return heads.reshape(groups, -1, heads.shape[2])


def _unstacked(stacks: Float[Array, "G N K"], heads: int) -> Float[Array, "H M K"]:
    return stacks.reshape(heads, -1, stacks.shape[2])


def _entries(entries: Parameters, factor: Float[Array, "H M K"]) -> dict[str, Array]:
    factor = factor.swapaxes(0, 1)
    parts = {"kernel": factor[:-1], "bias": factor[-1]}
    return {name: parts[name] for name in entries}
