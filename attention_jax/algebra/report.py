"""What a conversion of a model did to each of its layers."""

import dataclasses
from typing import Any

import jax
import numpy as np

from attention_jax.types import Parameters


@dataclasses.dataclass(frozen=True)
class LayerReport:
    """What became of one attention layer.

    Attributes:
      path: Where it is in the tree; with its number in brackets if layers are stacked.
      before: Its form, for example "separate" or "merged QK".
      after: Its form afterwards.
      refused: Why the conversion refused it, or None. A refused layer is kept as it was.
      error: The relative change of its matrices W_qk and W_ov with their biases, `|new - old| /
        |old|` in the Frobenius norm, the larger of the two, measured in float64. What cancels in
        the softmax (see `merge`) does not count. 0 for a refused layer.
      parameters_before: Number of its parameters.
      parameters_after: Number of its parameters afterwards.
    """

    path: str
    before: str
    after: str
    refused: str | None
    error: float
    parameters_before: int
    parameters_after: int


@dataclasses.dataclass(frozen=True)
class Report:
    """What `convert` did, layer by layer.

    Attributes:
      layers: One entry for each attention layer, in the order of the tree.
      parameters_before: Number of parameters of the whole tree.
      parameters_after: The same afterwards.
    """

    layers: tuple[LayerReport, ...]
    parameters_before: int
    parameters_after: int

    @property
    def converted(self) -> tuple[LayerReport, ...]:
        """The layers that were converted."""
        return tuple(layer for layer in self.layers if layer.refused is None)

    @property
    def refused(self) -> tuple[LayerReport, ...]:
        """The layers that were refused and kept."""
        return tuple(layer for layer in self.layers if layer.refused is not None)

    @property
    def error(self) -> float:
        """The largest error of a converted layer, NaN if one is, 0 without any."""
        return float(np.max([0.0, *(layer.error for layer in self.converted)]))

    def __str__(self) -> str:
        """Returns a table with a line for each layer."""
        lines = [
            f"{layer.path}: {layer.before} -> {layer.after}, error {layer.error:.1e}, "
            f"{layer.parameters_before:,} -> {layer.parameters_after:,} parameters"
            if layer.refused is None
            else f"{layer.path}: refused, {layer.refused}"
            for layer in self.layers
        ]
        total = f"{self.parameters_before:,} -> {self.parameters_after:,} parameters in all"
        return "\n".join([*lines, f"{len(self.converted)} converted, {total}"])


def count(tree: Any) -> int:
    """Returns the number of entries of all arrays of `tree`."""
    return sum(np.size(leaf) for leaf in jax.tree.leaves(tree))


def form(layer: Parameters) -> str:
    """Returns the form of a layer in words."""
    merged = [name.upper() for name in ("qk", "ov") if name in layer]
    return f"merged {' and '.join(merged)}" if merged else "separate"


def describe(path: str, before: Parameters, after: Parameters, refused: str | None) -> LayerReport:
    """Returns the report of one layer that is not stacked."""
    error = 0.0 if refused is not None else max_error(before, after)
    return LayerReport(
        path or ".", form(before), form(after), refused, error, count(before), count(after)
    )


def max_error(before: Parameters, after: Parameters) -> float:
    """Returns the larger relative change of the layer's W_qk and W_ov; NaN if one is NaN."""
    heads = _heads(before)
    squares = np.zeros((2, 2))
    for head in range(heads):
        for side, matrix in enumerate((_qk, _ov)):
            old, new = matrix(before, head), matrix(after, head)
            # A merged layer without row terms holds what the softmax can see, and no more.
            columns = min(old.shape[1], new.shape[1])
            old, new = old[:, :columns], new[:, :columns]
            squares[side] += np.sum((new - old) ** 2), np.sum(old**2)
    changed, size = np.sqrt(squares).T
    return float(np.max(np.where(changed == 0, 0.0, changed / np.where(size == 0, 1.0, size))))


def _heads(layer: Parameters) -> int:
    return layer["qk" if "qk" in layer else "query"]["kernel"].shape[1]


def _wide(array: Any) -> np.ndarray:
    return np.asarray(array, np.float64)


def _with_bias(entries: Parameters, head: int) -> np.ndarray:
    """Returns a projection's `(D + 1, K)` of one head, its bias in the last row."""
    kernel = _wide(entries["kernel"][:, head])
    bias = entries["bias"][head] if "bias" in entries else np.zeros(kernel.shape[1])
    return np.concatenate([kernel, _wide(bias)[None]])


def _qk(layer: Parameters, head: int) -> np.ndarray:
    """Returns W_qk with biases as last row and, where it has them, row terms as last column."""
    if "qk" not in layer:
        query, key = layer["query"], layer["key"]
        shared = head * key["kernel"].shape[1] // query["kernel"].shape[1]
        return _with_bias(query, head) @ _with_bias(key, shared).T
    matrix = _with_bias(layer["qk"], head)
    if "row_kernel" not in layer["qk"]:
        return matrix
    column = [_wide(layer["qk"]["row_kernel"][:, head]), _wide(layer["qk"]["row_bias"][head])[None]]
    return np.concatenate([matrix, np.concatenate(column)[:, None]], axis=1)


def _ov(layer: Parameters, head: int) -> np.ndarray:
    """Returns W_ov with what the value bias becomes as last row."""
    if "ov" not in layer:
        w_o, value = layer["out"]["kernel"], layer["value"]
        shared = head * value["kernel"].shape[1] // w_o.shape[0]
        return _with_bias(value, shared) @ _wide(w_o[head])
    kernel = _wide(layer["ov"]["kernel"][head])
    bias = layer["ov"]["bias"][head] if "bias" in layer["ov"] else np.zeros(kernel.shape[1])
    return np.concatenate([kernel, _wide(bias)[None]])
