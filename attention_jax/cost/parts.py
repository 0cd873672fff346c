"""Counts of one half of a layer: scores, or values and outputs."""

import dataclasses
from typing import NamedTuple


class Sizes(NamedTuple):
    """Model width D, query heads H, key and value heads G, head width K, and whether biases."""

    d: int
    h: int
    g: int
    k: int
    bias: bool


@dataclasses.dataclass(frozen=True)
class Part:
    """Parameters, multiply-adds per query, key and pair, and what is cached, of half a layer.

    Attributes:
      parameters: Number of parameters.
      per_query: Multiply-adds for each query.
      per_key: Multiply-adds for each key.
      per_pair: Multiply-adds for each query and key.
      cached_input: Width of the inputs that a decoder keeps; two halves share them.
      cached_head: Width, per key/value head, of the projected heads that a decoder keeps.
    """

    parameters: int
    per_query: int
    per_key: int
    per_pair: int
    cached_input: int = 0
    cached_head: int = 0


def separate_qk(size: Sizes) -> Part:
    """Counts scores of W_q and W_k."""
    d, h, g, k, bias = size
    return Part((h + g) * k * (d + bias), d * h * k, d * g * k, h * k, cached_head=k)


def merged_qk(size: Sizes) -> Part:
    """Counts scores of W_qk."""
    d, h, _, _, bias = size
    return Part(h * d * (d + bias), d * h * d, 0, h * d, cached_input=d)


def absorbed_qk(size: Sizes) -> Part:
    """Counts scores of W_q and W_k against inputs: W_k acts on queries."""
    d, h, _, k, _ = size
    return Part(separate_qk(size).parameters, 2 * d * h * k, 0, h * d, cached_input=d)


def row_terms(size: Sizes, stored: bool) -> Part:
    """Counts what a soft cap sees of the key's bias: one more channel, and its weights."""
    d, h = size.d, size.h
    return Part(h * (d + 1) if stored else 0, (d if stored else size.k) * h, 0, h)


def separate_ov(size: Sizes) -> Part:
    """Counts values and outputs of W_v and W_o."""
    d, h, g, k, bias = size
    parameters = g * k * (d + bias) + h * k * d + d * bias
    return Part(parameters, h * k * d, d * g * k, h * k, cached_head=k)


def merged_ov(size: Sizes) -> Part:
    """Counts outputs of W_ov; a bias travels as one more channel of ones."""
    d, h, _, _, bias = size
    wide = d + bias
    return Part(h * wide * d + d * bias, h * wide * d, 0, h * wide, cached_input=d)


def absorbed_ov(size: Sizes) -> Part:
    """Counts averages of inputs, then W_v and W_o."""
    d, h, _, k, bias = size
    wide = d + bias
    parameters = separate_ov(size).parameters
    return Part(parameters, h * wide * k + h * k * d, 0, h * wide, cached_input=d)


def raw(size: Sizes) -> Part:
    """Counts half a layer without weights."""
    return Part(0, 0, 0, size.d, cached_input=size.d)
