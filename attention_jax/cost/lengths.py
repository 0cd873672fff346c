"""At which length two forms cost the same."""

from typing import Literal

from attention_jax import checks
from attention_jax.cost.layer import Cost


def break_even_length(
    one: Cost, other: Cost, *, of: Literal["flops", "bytes"] = "flops"
) -> float | None:
    """Returns the number of keys at which two layers cost the same per token, or None.

    `flops`: per token `flops_per_token + flops_per_pair * S`, in decoding with S cached tokens and,
    without a mask, in a forward pass of length S. `bytes`: of one step of decoding, parameters and
    caches: `parameter_bytes + B * cache_bytes_per_token * S`.

    Args:
      one: Costs of one layer.
      other: Costs of another one, for the same batch.
      of: What is compared.

    Returns:
      The length, above 0; None where one of the two costs less at every length, or both the same.

    Example:
      >>> from attention_jax.cost import attention
      >>> sizes = {"d_model": 768, "num_heads": 12, "use_bias": False, "query_length": 1}
      >>> separate = attention("separate", **sizes)
      >>> break_even_length(separate, attention("merged", ov="merged", **sizes), of="bytes")
      15360.0
      >>> break_even_length(separate, attention("merged", ov="merged", **sizes)) is None
      True
    """
    checks.check_choice("of", of, ("flops", "bytes"))
    (base, slope), (other_base, other_slope) = (_line(cost, of) for cost in (one, other))
    if slope == other_slope:
        return None
    length = (other_base - base) / (slope - other_slope)
    return length if length > 0 else None


def _line(cost: Cost, of: str) -> tuple[int, int]:
    if of == "flops":
        return cost.flops_per_token, cost.flops_per_pair
    return cost.parameter_bytes, cost.batch_size * cost.cache_bytes_per_token
