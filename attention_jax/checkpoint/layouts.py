"""How published files lay out one array, and how it is read into this project's axes."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

Shape = tuple[int, ...]


class Layout(NamedTuple):
    """How a foreign array becomes one of ours.

    Attributes:
      shape: From the shape of ours to the shape that the foreign array must have. A transposed
        matrix would often pass as another one of the same size.
      read: From the foreign array and the shape of ours to ours.
    """

    shape: Callable[[Shape], Shape]
    read: Callable[[np.ndarray, Shape], np.ndarray]


def _matrix(ours: Shape, num_inputs: int) -> Shape:
    """Returns (inputs, outputs) where the first `num_inputs` axes are inputs."""
    return math.prod(ours[:num_inputs]), math.prod(ours[num_inputs:])


def _input_first(num_inputs: int) -> Layout:
    return Layout(
        lambda ours: _matrix(ours, num_inputs),
        lambda array, ours: array.reshape(ours),
    )


def _output_first(num_inputs: int) -> Layout:
    return Layout(
        lambda ours: _matrix(ours, num_inputs)[::-1],
        lambda array, ours: array.T.reshape(ours),
    )


SAME = Layout(lambda ours: ours, lambda array, ours: array)
"""The same axes."""
FLAT = Layout(lambda ours: (math.prod(ours),), lambda array, ours: array.reshape(ours))
"""A bias `(H, K)` as `(H K)`."""
DENSE = _output_first(1)
"""A kernel `(inputs, outputs)` as `(outputs, inputs)`."""
HEADS_IN = _output_first(1)
"""W_q, W_k or W_v `(D, H, K)` as `(H K, D)`."""
HEADS_OUT = _output_first(2)
"""W_o `(H, V, O)` as `(O, H V)`."""
CONV_DENSE = _input_first(1)
"""A kernel `(inputs, outputs)` as it is: GPT-2 writes dense layers as convolutions."""
CONV_HEADS_OUT = _input_first(2)
"""W_o `(H, V, O)` as `(H V, O)`."""


def conv_fused(part: int) -> tuple[Layout, Layout]:
    """Returns the layouts of kernel and bias where W_q, W_k, W_v are columns one after another.

    The kernel `(D, H, K)` is part 0, 1 or 2 of `(D, 3 H K)`.
    """

    def columns(array: np.ndarray, ours: Shape) -> np.ndarray:
        return np.split(array, 3, axis=-1)[part].reshape(ours)

    return (
        Layout(lambda ours: (ours[0], 3 * ours[1] * ours[2]), columns),
        Layout(lambda ours: (3 * ours[0] * ours[1],), columns),
    )


def fused_per_head(part: int) -> tuple[Layout, Layout]:
    """Returns the layouts of kernel and bias where each head has its W_q, W_k, W_v together.

    The kernel `(D, H, K)` is rows `[:, part]` of `(H 3 K, D)` seen as `(H, 3, K, D)`.
    """

    def kernel(array: np.ndarray, ours: Shape) -> np.ndarray:
        inputs, heads, width = ours
        return array.reshape(heads, 3, width, inputs)[:, part].transpose(2, 0, 1)

    def bias(array: np.ndarray, ours: Shape) -> np.ndarray:
        return array.reshape(ours[0], 3, ours[1])[:, part]

    return (
        Layout(lambda ours: (3 * ours[1] * ours[2], ours[0]), kernel),
        Layout(lambda ours: (3 * ours[0] * ours[1],), bias),
    )
