"""The separate form: four matrices, W_q, W_k, W_v and W_o, as in the paper."""

import jax.numpy as jnp

from attention_jax.core.form import QueryKey, ValueOutput, add_bias
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

_NORM_EPSILON = 1e-6


def project_query(params: Parameters, inputs_q: QueryInputs, precision: Precision) -> Query:
    """Returns `query = x W_q + b_q` `[..., T, H, K]`, with `query_ln` each head normalised."""
    query = _project(params["query"], inputs_q, precision)
    return _layer_norm(query, params["query_ln"]["scale"]) if "query_ln" in params else query


def project_key(params: Parameters, inputs_k: KeyInputs, precision: Precision) -> Key:
    """Returns `key = y W_k + b_k` `[..., S, G, K]`, with `key_ln` each head normalised."""
    key = _project(params["key"], inputs_k, precision)
    return _layer_norm(key, params["key_ln"]["scale"]) if "key_ln" in params else key


def project_value(params: Parameters, inputs_v: ValueInputs, precision: Precision) -> Value:
    """Returns `value = y W_v + b_v` `[..., S, G, V]`."""
    return _project(params["value"], inputs_v, precision)


def combine_heads(params: Parameters, heads: Heads, precision: Precision) -> Outputs:
    """Returns `sum_h heads_h W_o,h + b_o` `[..., T, O]`."""
    kernel = params["out"]["kernel"]
    output = jnp.einsum("...THV,HVO->...TO", heads, kernel, precision=precision)
    return add_bias(output, params["out"])


def _project(parameters: Parameters, inputs: Array, precision: Precision) -> Array:
    heads = jnp.einsum("...TD,DHK->...THK", inputs, parameters["kernel"], precision=precision)
    return add_bias(heads, parameters)


def _layer_norm(x: Float[Array, "*B T H K"], scale: Float[Array, " K"]) -> Float[Array, "*B T H K"]:
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    centred = wide - wide.mean(axis=-1, keepdims=True)
    variance = jnp.square(centred).mean(axis=-1, keepdims=True)
    normal = centred / jnp.sqrt(variance + _NORM_EPSILON)
    return (normal * scale.astype(wide.dtype).reshape((1,) * (x.ndim - 1) + (-1,))).astype(x.dtype)


query_key = QueryKey(project_query, project_key, rotates=True)
value_output = ValueOutput(project_value, combine_heads)
