"""The raw form: attention without weights; queries, keys and values are the inputs."""

from attention_jax.core.form import QueryKey, ValueOutput
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
    """Returns the inputs as the only query head, `[..., T, 1, D]`."""
    return inputs_q[..., None, :]


def project_key(params: Parameters, inputs_k: KeyInputs, precision: Precision) -> Key:
    """Returns the inputs as the only key head, `[..., S, 1, D]`."""
    return inputs_k[..., None, :]


def project_value(params: Parameters, inputs_v: ValueInputs, precision: Precision) -> Value:
    """Returns the inputs as the only value head, `[..., S, 1, D]`."""
    return inputs_v[..., None, :]


def combine_heads(params: Parameters, heads: Heads, precision: Precision) -> Outputs:
    """Returns the only head, `[..., T, D]`."""
    return heads[..., 0, :]


query_key = QueryKey(project_query, project_key, rotates=True, keeps="inputs")
value_output = ValueOutput(project_value, combine_heads, keeps="inputs")
