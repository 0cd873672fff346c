"""What a layer of each form costs: parameters, FLOPs and cache."""

import dataclasses
from typing import Literal

from attention_jax import checks

Form = Literal["separate", "merged", "raw"]


@dataclasses.dataclass(frozen=True)
class Cost:
    """Costs of one layer.

    Attributes:
      parameters: Number of parameters.
      forward_flops: FLOPs of the matrix products of one forward pass, a multiply-add being two.
      train_flops: Forward and backward pass, three times the former.
      cache_bytes_per_token: What a decoder keeps of each past token: keys and values of separate
        weights, the input (once for all heads) of merged ones.
    """

    parameters: int
    forward_flops: int
    train_flops: int
    cache_bytes_per_token: int


def attention(
    form: Form,
    *,
    d_model: int,
    num_heads: int = 1,
    head_dim: int | None = None,
    num_kv_heads: int | None = None,
    ov: Literal["separate", "merged"] = "separate",
    use_bias: bool = True,
    softcap: float | None = None,
    query_length: int,
    key_length: int | None = None,
    batch_size: int = 1,
    dtype_bytes: int = 4,
) -> Cost:
    """Counts one self-attention layer of width `d_model`, evaluated by its whole score matrix.

    Masks save nothing here: all `query_length * key_length` products are taken.

    Args:
      form: "separate", "merged" or "raw"; the latter has one head as wide as the model.
      d_model: Input and output width D.
      num_heads: Number of query heads H.
      head_dim: Width K of a separate head; by default D / H.
      num_kv_heads: Number of key and value heads G; by default H.
      ov: Whether values and outputs are separate or merged.
      use_bias: Whether projections have biases.
      softcap: The layer's soft cap; with biases its merged form has two more terms.
      query_length: T.
      key_length: S; by default T.
      batch_size: B.
      dtype_bytes: Bytes of one cached number.

    Returns:
      A `Cost`.

    Raises:
      ValueError: A size does not fit.
      TypeError: A size is not an integer.

    Example:
      >>> cost = {form: attention(form, d_model=768, num_heads=12, use_bias=False, query_length=1)
      ...         for form in ("separate", "merged")}
      >>> [c.parameters for c in cost.values()], [c.cache_bytes_per_token for c in cost.values()]
      ([2359296, 8257536], [6144, 6144])
    """
    checks.check_choice("form", form, ("separate", "merged", "raw"))
    checks.check_choice("ov", ov, ("separate", "merged"))
    checks.check_bool("use_bias", use_bias)
    checks.check_softcap(softcap)
    key_length = query_length if key_length is None else key_length
    groups = num_heads if num_kv_heads is None else num_kv_heads
    checks.check_heads(num_heads, groups)
    for name, size in (
        ("d_model", d_model),
        ("query_length", query_length),
        ("key_length", key_length),
        ("batch_size", batch_size),
        ("dtype_bytes", dtype_bytes),
    ):
        checks.check_positive_int(name, size)
    if head_dim is None:
        if d_model % num_heads:
            raise checks.refuse(
                ValueError, "d_model", f"a multiple of num_heads={num_heads}", d_model,
                "choose widths that divide, or set head_dim",
            )  # fmt: skip
        head_dim = d_model // num_heads
    checks.check_positive_int("head_dim", head_dim)
    if form == "raw":
        parts: tuple[_Part, ...] = (_raw_qk(d_model), _raw_ov(d_model))
    else:
        qk = _separate_qk if form == "separate" else _merged_qk
        out = _separate_ov if ov == "separate" else _merged_ov
        row_terms = use_bias and softcap is not None
        sizes = (d_model, num_heads, groups, head_dim, use_bias)
        parts = (qk(*sizes), out(*sizes))
        if form == "merged" and row_terms:
            parts += (_row_terms(d_model, num_heads),)
    per_query, per_key, per_pair = (
        sum(getattr(part, name) for part in parts) for name in ("per_query", "per_key", "per_pair")
    )
    pairs = query_length * key_length
    forward = 2 * batch_size * (per_query * query_length + per_key * key_length + per_pair * pairs)
    # Inputs are cached once, whether the scores need them, the values, or both.
    cached = max(part.cached_input for part in parts) + sum(part.cached_heads for part in parts)
    return Cost(
        parameters=sum(part.parameters for part in parts),
        forward_flops=forward,
        train_flops=3 * forward,
        cache_bytes_per_token=cached * dtype_bytes,
    )


@dataclasses.dataclass(frozen=True)
class _Part:
    """Parameters, multiply-adds per query, key and pair, and cached numbers of half a layer."""

    parameters: int
    per_query: int
    per_key: int
    per_pair: int
    cached_input: int = 0
    cached_heads: int = 0


def _separate_qk(d: int, h: int, g: int, k: int, bias: bool) -> _Part:
    return _Part((h + g) * k * (d + bias), d * h * k, d * g * k, h * k, cached_heads=g * k)


def _merged_qk(d: int, h: int, g: int, k: int, bias: bool) -> _Part:
    return _Part(h * d * (d + bias), d * h * d, 0, h * d, cached_input=d)


def _row_terms(d: int, h: int) -> _Part:
    return _Part(h * (d + 1), d * h, 0, h)


def _separate_ov(d: int, h: int, g: int, k: int, bias: bool) -> _Part:
    parameters = g * k * (d + bias) + h * k * d + d * bias
    return _Part(parameters, h * k * d, d * g * k, h * k, cached_heads=g * k)


def _merged_ov(d: int, h: int, g: int, k: int, bias: bool) -> _Part:
    # A bias travels as one more channel of ones.
    wide = d + bias
    return _Part(h * wide * d + d * bias, h * wide * d, 0, h * wide, cached_input=d)


def _raw_qk(d: int) -> _Part:
    return _Part(0, 0, 0, d, cached_input=d)


def _raw_ov(d: int) -> _Part:
    return _Part(0, 0, 0, d, cached_input=d)
