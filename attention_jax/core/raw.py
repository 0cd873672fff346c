"""The raw form: attention without weights; queries, keys and values are the inputs."""

from attention_jax.core.form import Inputs, Outputs, QueryKey, ValueOutput
from attention_jax.types import Heads, Key, Parameters, Precision, Query, Value


def project_query_key(
    params: Parameters, inputs_q: Inputs, inputs_k: Inputs, precision: Precision
) -> tuple[Query, Key]:
    """Returns the inputs as the only query and key head, `[..., T, 1, D]` and `[..., S, 1, D]`."""
    return inputs_q[..., None, :], inputs_k[..., None, :]


def project_value(params: Parameters, inputs_v: Inputs, precision: Precision) -> Value:
    """Returns the inputs as the only value head, `[..., S, 1, D]`."""
    return inputs_v[..., None, :]


def combine_heads(params: Parameters, heads: Heads, precision: Precision) -> Outputs:
    """Returns the only head, `[..., T, D]`."""
    return heads[..., 0, :]


query_key = QueryKey(project_query_key, rotates=True)
value_output = ValueOutput(project_value, combine_heads)
