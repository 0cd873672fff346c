"""The merged form: one matrix per head for the scores, W_qk, and one for the outputs, W_ov.

Merged attention is multi-query attention whose single key (and value) head is the input itself.
"""

import jax.numpy as jnp

from attention_jax.core.form import QueryKey, ValueOutput, add_bias, with_ones
from attention_jax.types import (
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


def project_query(params: Parameters, inputs_q: QueryInputs, precision: Precision) -> Query:
    """Returns `query = x W_qk + u` `[..., T, H, E]`.

    Where the parameters have `row_kernel` and `row_bias`, `x . w + c` is added to all scores of a
    query, as one more channel that meets ones. Softmax cannot see it, a soft cap before the softmax
    can.
    """
    parameters = params["qk"]
    query = jnp.einsum("...TD,DHE->...THE", inputs_q, parameters["kernel"], precision=precision)
    query = add_bias(query, parameters)
    if "row_kernel" in parameters:
        row = jnp.einsum("...TD,DH->...TH", inputs_q, parameters["row_kernel"], precision=precision)
        row = add_bias(row, {"bias": parameters["row_bias"]})
        query = jnp.concatenate([query, row[..., None]], axis=-1)
    return query


def project_key(params: Parameters, inputs_k: KeyInputs, precision: Precision) -> Key:
    """Returns the inputs as key `[..., S, 1, E]`, with a channel of ones for `row_kernel`."""
    key = with_ones(inputs_k) if "row_kernel" in params["qk"] else inputs_k
    return key[..., None, :]


def project_value(params: Parameters, inputs_v: ValueInputs, precision: Precision) -> Value:
    """Returns the inputs as value `[..., S, 1, E]`, with a channel of ones if W_ov has a bias.

    The ones come back from `attend` as the sums of the weights, which the bias is multiplied with:
    they are not 1 under weight dropout and in rows without a visible key.
    """
    value = with_ones(inputs_v) if "bias" in params["ov"] else inputs_v
    return value[..., None, :]


def combine_heads(params: Parameters, heads: Heads, precision: Precision) -> Outputs:
    """Returns `sum_h [(A_h Y) W_ov,h + (A_h 1) c_h] + b_o` `[..., T, O]`."""
    kernel = params["ov"]["kernel"]
    if "bias" in params["ov"]:
        kernel = jnp.concatenate([kernel, params["ov"]["bias"][:, None]], axis=1)
    output = jnp.einsum("...THE,HEO->...TO", heads, kernel, precision=precision)
    return add_bias(output, params.get("out", {}))


query_key = QueryKey(project_query, project_key, rotates=False, keeps="inputs")
value_output = ValueOutput(project_value, combine_heads, keeps="inputs")
