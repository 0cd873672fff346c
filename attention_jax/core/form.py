"""What a form of attention is: its projections. The evaluation is `attend` for all."""

from collections.abc import Callable
from typing import Literal, NamedTuple

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

Keeps = Literal["heads", "inputs"]


class QueryKey(NamedTuple):
    """How queries and keys come from the inputs.

    Attributes:
      query: `(params, inputs_q, precision) -> query`.
      key: `(params, inputs_k, precision) -> key`.
      rotates: Whether a position encoding may act on its queries and keys.
      keeps: What a decoder keeps of past tokens: "heads" of keys, or "inputs", which are the keys.
    """

    query: Callable[[Parameters, QueryInputs, Precision], Query]
    key: Callable[[Parameters, KeyInputs, Precision], Key]
    rotates: bool
    keeps: Keeps = "heads"

    def project(
        self, params: Parameters, inputs_q: QueryInputs, inputs_k: KeyInputs, precision: Precision
    ) -> tuple[Query, Key]:
        """Returns query and key."""
        return self.query(params, inputs_q, precision), self.key(params, inputs_k, precision)


class ValueOutput(NamedTuple):
    """How values come from the inputs, and outputs from the heads.

    Attributes:
      project: `(params, inputs_v, precision) -> value`.
      combine: `(params, heads, precision) -> output`.
      keeps: What a decoder keeps of past tokens: "heads" of values, or "inputs".
    """

    project: Callable[[Parameters, ValueInputs, Precision], Value]
    combine: Callable[[Parameters, Heads, Precision], Outputs]
    keeps: Keeps = "heads"


def with_ones(x: Float[Array, "*B S E"]) -> Float[Array, "*B S E+1"]:
    """Returns `x` with a last channel of ones, which carries a bias through a product."""
    return jnp.concatenate([x, jnp.ones_like(x[..., :1])], axis=-1)


def add_bias(x: Array, parameters: Parameters) -> Array:
    """Returns `x` with `parameters["bias"]` added along its last axes, if there is one."""
    if "bias" not in parameters:
        return x
    bias = parameters["bias"]
    return x + bias.reshape((1,) * (x.ndim - bias.ndim) + bias.shape)
