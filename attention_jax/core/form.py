"""What a form of attention is: its projections. The evaluation is `attend` for all."""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp

from attention_jax.types import (
    Array,
    Float,
    Heads,
    Key,
    KeyInputs,
    Outputs,
    Parameters,
    Precision,
    Query,
    QueryInputs,
    Value,
    ValueInputs,
)


class QueryKey(NamedTuple):
    """How queries and keys come from the inputs.

    Attributes:
      project: `(params, inputs_q, inputs_k, precision) -> (query, key)`.
      rotates: Whether a position encoding may act on its queries and keys.
    """

    project: Callable[[Parameters, QueryInputs, KeyInputs, Precision], tuple[Query, Key]]
    rotates: bool


class ValueOutput(NamedTuple):
    """How values come from the inputs, and outputs from the heads.

    Attributes:
      project: `(params, inputs_v, precision) -> value`.
      combine: `(params, heads, precision) -> output`.
    """

    project: Callable[[Parameters, ValueInputs, Precision], Value]
    combine: Callable[[Parameters, Heads, Precision], Outputs]


def with_ones(x: Float[Array, "*B S E"]) -> Float[Array, "*B S E+1"]:
    """Returns `x` with a last channel of ones, which carries a bias through a product."""
    return jnp.concatenate([x, jnp.ones_like(x[..., :1])], axis=-1)


def add_bias(x: Array, parameters: Parameters) -> Array:
    """Returns `x` with `parameters["bias"]` added along its last axes, if there is one."""
    if "bias" not in parameters:
        return x
    bias = parameters["bias"]
    return x + bias.reshape((1,) * (x.ndim - bias.ndim) + bias.shape)
