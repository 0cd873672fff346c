"""What a layer of each form costs."""

import dataclasses
from typing import Literal

from attention_jax import checks
from attention_jax.cost import parts as part_of
from attention_jax.cost.pairs import attended_pairs
from attention_jax.cost.parts import Part, Sizes
from attention_jax.masks import Mask
from attention_jax.types import BooleanMask

Form = Literal["separate", "merged", "raw", "absorbed"]


@dataclasses.dataclass(frozen=True)
class Cost:
    """Costs of one layer. FLOPs are those of matrix products, a multiply-add being two.

    Attributes:
      batch_size: B.
      parameters: Number of parameters.
      parameter_bytes: Their bytes.
      forward_flops: One forward pass by the whole score matrix.
      backward_flops: Gradients of parameters and inputs, twice the former.
      train_flops: Both.
      attended_pairs: Pairs of query and key that the mask leaves, of all batch entries and heads.
      attended_flops: One forward pass that computes these pairs only; the blockwise path comes near
        where whole blocks are hidden.
      prefill_flops: T new tokens against S cached ones (themselves included).
      decode_flops: One new token per batch entry against S cached ones.
      decode_bytes: What that reads and writes at least: parameters, cache, the new token's entry.
      flops_per_token: Of one token, whatever the length.
      flops_per_pair: Of one query and key, all heads.
      cache_bytes_per_token: What a decoder keeps of each past token: keys and values of separate
        weights; of merged or absorbed ones the input, once for all heads.
      cache_bytes: Of S tokens and the batch.
      cached_input_bytes: The part of `cache_bytes_per_token` without a head axis.
      num_kv_heads: Heads that share the other part.
    """

    batch_size: int
    parameters: int
    parameter_bytes: int
    forward_flops: int
    backward_flops: int
    train_flops: int
    attended_pairs: int
    attended_flops: int
    prefill_flops: int
    decode_flops: int
    decode_bytes: int
    flops_per_token: int
    flops_per_pair: int
    cache_bytes_per_token: int
    cache_bytes: int
    cached_input_bytes: int
    num_kv_heads: int

    def cache_bytes_per_device(self, devices: int) -> int:
        """Returns what each of `devices` keeps of the cache when heads are cut over them.

        Inputs have no head axis, so that every device keeps them all; key/value heads are kept
        twice where there are fewer of them than devices.

        Args:
          devices: Number of devices of the tensor axis.
        """
        checks.check_positive_int("devices", devices)
        heads = self.cache_bytes_per_token - self.cached_input_bytes
        own = -(-self.num_kv_heads // devices)
        tokens = self.cache_bytes // self.cache_bytes_per_token
        return tokens * (self.cached_input_bytes + heads // self.num_kv_heads * own)

    def cache_replication(self, devices: int) -> float:
        """Returns how many copies of the cache `devices` keep together, at least 1."""
        return self.cache_bytes_per_device(devices) * devices / self.cache_bytes


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
    mask: Mask | BooleanMask | None = None,
) -> Cost:
    """Counts one self-attention layer of width `d_model`.

    Args:
      form: "separate", "merged", "raw" (one head as wide as the model), or "absorbed": separate
        weights evaluated on cached inputs.
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
      dtype_bytes: Bytes of one number.
      mask: Which pairs are attended; changes `attended_pairs` and `attended_flops` only.

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
    checks.check_choice("form", form, ("separate", "merged", "raw", "absorbed"))
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
    if form == "absorbed" and ov == "merged":
        raise checks.refuse(
            ValueError, "ov", "'separate', whose W_v acts after the averages", "'merged'",
            "use form='separate' or 'merged'",
        )  # fmt: skip
    halves = _parts(form, ov, Sizes(d_model, num_heads, groups, head_dim, use_bias), softcap)
    per_query, per_key, per_pair = (
        2 * sum(getattr(part, name) for part in halves)
        for name in ("per_query", "per_key", "per_pair")
    )
    pairs = batch_size * query_length * key_length
    projections = batch_size * (per_query * query_length + per_key * key_length)
    attended = attended_pairs(
        mask,
        query_length=query_length,
        key_length=key_length,
        batch_size=batch_size,
        num_heads=num_heads,
    )
    forward = projections + per_pair * pairs
    per_token = per_query + per_key
    parameters = sum(part.parameters for part in halves)
    # Inputs are cached once, whether the scores need them, the values, or both.
    cached_input = dtype_bytes * max(part.cached_input for part in halves)
    cached = cached_input + dtype_bytes * groups * sum(part.cached_head for part in halves)
    return Cost(
        batch_size=batch_size,
        parameters=parameters,
        parameter_bytes=parameters * dtype_bytes,
        forward_flops=forward,
        backward_flops=2 * forward,
        train_flops=3 * forward,
        attended_pairs=attended,
        attended_flops=projections + per_pair // num_heads * attended,
        prefill_flops=batch_size * per_token * query_length + per_pair * pairs,
        decode_flops=batch_size * (per_token + per_pair * key_length),
        decode_bytes=parameters * dtype_bytes + batch_size * cached * (key_length + 1),
        flops_per_token=per_token,
        flops_per_pair=per_pair,
        cache_bytes_per_token=cached,
        cache_bytes=batch_size * key_length * cached,
        cached_input_bytes=cached_input,
        num_kv_heads=groups,
    )


def _parts(form: Form, ov: str, size: Sizes, softcap: float | None) -> tuple[Part, ...]:
    if form == "raw":
        return part_of.raw(size), part_of.raw(size)
    qk = {
        "separate": part_of.separate_qk,
        "merged": part_of.merged_qk,
        "absorbed": part_of.absorbed_qk,
    }[form](size)
    if form == "absorbed":
        values = part_of.absorbed_ov(size)
    else:
        values = (part_of.separate_ov if ov == "separate" else part_of.merged_ov)(size)
    if form != "separate" and size.bias and softcap is not None:
        return qk, values, part_of.row_terms(size, stored=form == "merged")
    return qk, values
