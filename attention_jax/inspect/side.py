"""Ranks, norms and spectra of W_qk or W_ov, for all heads of a model."""

import dataclasses

import numpy as np

from attention_jax.algebra.circuits import Circuit

ERROR = 0.01
"""The relative Frobenius error at which `Side.rank_at_error` cuts."""


@dataclasses.dataclass(frozen=True, eq=False)
class Side:
    """Measures of one matrix per head, arrays `[layers, H]`.

    Attributes:
      rank: Numerical rank.
      stable_rank: `sum s^2 / max s^2`.
      effective_rank: `exp(entropy of s / sum s)`.
      symmetry: `<W, W^T> / |W|^2`, between -1 and 1.
      norm: Frobenius norm.
      nuclear_norm: Sum of the singular values.
      rank_at_error: Least rank whose nearest matrix is within `ERROR` of W, relative and in the
        Frobenius norm.
      singular_values: `[layers, H, R]`, greatest first.
    """

    rank: np.ndarray
    stable_rank: np.ndarray
    effective_rank: np.ndarray
    symmetry: np.ndarray
    norm: np.ndarray
    nuclear_norm: np.ndarray
    rank_at_error: np.ndarray
    singular_values: np.ndarray

    @property
    def measures(self) -> dict[str, np.ndarray]:
        """The arrays `[layers, H]` by name."""
        names = [field.name for field in dataclasses.fields(self)]
        return {name: getattr(self, name) for name in names if name != "singular_values"}


def describe(circuits: list[Circuit]) -> Side:
    """Returns the measures of the heads of each layer."""
    values = np.stack([np.asarray(circuit.singular_values()) for circuit in circuits])
    # What is cut after each rank, from rank 0 to all of it.
    squares = np.square(values.astype(np.float64))
    total = squares.sum(-1, keepdims=True)
    cut = np.concatenate([total, total - np.cumsum(squares, axis=-1)], axis=-1)
    far = np.sqrt(np.maximum(cut, 0)) > ERROR * np.sqrt(total)
    return Side(
        rank=np.stack([np.asarray(circuit.rank()) for circuit in circuits]),
        stable_rank=np.stack([np.asarray(circuit.stable_rank()) for circuit in circuits]),
        effective_rank=np.stack([np.asarray(circuit.effective_rank()) for circuit in circuits]),
        symmetry=np.stack([np.asarray(circuit.symmetry()) for circuit in circuits]),
        norm=np.sqrt(total[..., 0]),
        nuclear_norm=values.sum(-1),
        rank_at_error=far.sum(-1),
        singular_values=values,
    )
