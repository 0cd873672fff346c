"""Separate weights over inputs: W_k acts on the queries, and W_v on the averages of inputs.

Keys and values are then the inputs themselves, so that a cache keeps the inputs alone, once for all
heads. It is the function of the separate form, and no merged matrix is ever formed.
"""

import functools

import jax.numpy as jnp

from attention_jax.core import separate
from attention_jax.core.form import QueryKey, ValueOutput, with_ones
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


def project_query(
    row_terms: bool, params: Parameters, inputs_q: QueryInputs, precision: Precision
) -> Query:
    """Returns `query = (x W_q + b_q) W_k^T` `[..., T, H, E]`.

    With `row_terms` one more channel has `(x W_q + b_q) . b_k`, which is added to all scores of a
    query. Softmax cannot see it, a soft cap before the softmax can.
    """
    parameters = params["key"]
    kernel = parameters["kernel"]
    query = _grouped(separate.project_query(params, inputs_q, precision), kernel.shape[1])
    absorbed = jnp.einsum("...TGJK,EGK->...TGJE", query, kernel, precision=precision)
    if row_terms and "bias" in parameters:
        row = jnp.einsum("...TGJK,GK->...TGJ", query, parameters["bias"], precision=precision)
        absorbed = jnp.concatenate([absorbed, row[..., None]], axis=-1)
    return _ungrouped(absorbed)


def project_key(
    row_terms: bool, params: Parameters, inputs_k: KeyInputs, precision: Precision
) -> Key:
    """Returns the inputs as key `[..., S, 1, E]`, with a channel of ones for the row terms."""
    key = with_ones(inputs_k) if row_terms and "bias" in params["key"] else inputs_k
    return key[..., None, :]


def project_value(params: Parameters, inputs_v: ValueInputs, precision: Precision) -> Value:
    """Returns the inputs as value `[..., S, 1, F]`; with b_v, ones come back as sums of weights."""
    value = with_ones(inputs_v) if "bias" in params["value"] else inputs_v
    return value[..., None, :]


def combine_heads(params: Parameters, heads: Heads, precision: Precision) -> Outputs:
    """Returns `sum_h [(A_h Y) W_v,h + (A_h 1) b_v,h] W_o,h + b_o` `[..., T, O]`."""
    kernel = params["value"]["kernel"]
    if "bias" in params["value"]:
        kernel = jnp.concatenate([kernel, params["value"]["bias"][None]], axis=0)
    averages = _grouped(heads, kernel.shape[1])
    values = jnp.einsum("...TGJF,FGV->...TGJV", averages, kernel, precision=precision)
    return separate.combine_heads(params, _ungrouped(values), precision)


def _grouped(heads: Heads, groups: int) -> Float[Array, "*B T G J V"]:
    return heads.reshape(*heads.shape[:-2], groups, heads.shape[-2] // groups, heads.shape[-1])


def _ungrouped(heads: Float[Array, "*B T G J V"]) -> Heads:
    return heads.reshape(*heads.shape[:-3], heads.shape[-3] * heads.shape[-2], heads.shape[-1])


def query_key(softcap: float | None) -> QueryKey:
    """Returns how queries and keys come from inputs in a layer with this soft cap."""
    row_terms = softcap is not None
    return QueryKey(
        functools.partial(project_query, row_terms),
        functools.partial(project_key, row_terms),
        rotates=False,
        keeps="inputs",
    )


value_output = ValueOutput(project_value, combine_heads, keeps="inputs")
