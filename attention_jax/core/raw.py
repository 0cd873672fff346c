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


def project_query_key(
    params: Parameters, inputs_q: QueryInputs, inputs_k: KeyInputs, precision: Precision
) -> tuple[Query, Key]:
    """Returns the inputs as the only query and key head, `[..., T, 1, D]` and `[..., S, 1, D]`."""
    return inputs_q[..., None, :], inputs_k[..., None, :]


def project_value(params: Parameters, inputs_v: ValueInputs, precision: Precision) -> Value:
    """Returns the inputs as the only value head, `[..., S, 1, D]`."""
    return inputs_v[..., None, :]


def combine_heads(params: Parameters, heads: Heads, precision: Precision) -> Outputs:
    """Returns the only head, `[..., T, D]`."""
    return heads[..., 0, :]


query_key = QueryKey(project_query_key, rotates=True)
value_output = ValueOutput(project_value, combine_heads)
