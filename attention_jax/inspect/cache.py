"""What a decoder would keep of each token, with separate and with merged matrices."""

import dataclasses

from attention_jax import cost
from attention_jax.models import TransformerConfig
from attention_jax.models.config import Ov
from attention_jax.positions import QueryKeyPosition


@dataclasses.dataclass(frozen=True)
class Cache:
    """Cache bytes per token of all layers, and when merging makes them fewer.

    Attributes:
      separate_bytes: Keys and values.
      merged_bytes: The input once for all heads; with rotary encodings, where W_qk cannot be
        merged, keys and the input.
      verdict: When the second is smaller, in words.
    """

    separate_bytes: int
    merged_bytes: int
    verdict: str


def compare(config: TransformerConfig, dtype_bytes: int) -> Cache:
    """Returns the bytes for numbers of `dtype_bytes` bytes."""
    rotary = isinstance(config.position, QueryKeyPosition) or config.normalize_qk
    head_dim = config.width // config.num_heads if config.head_dim is None else config.head_dim
    groups = config.num_heads if config.num_kv_heads is None else config.num_kv_heads

    def cached(form: cost.Form, ov: Ov) -> int:
        layer = cost.attention(
            form,
            d_model=config.width,
            num_heads=config.num_heads,
            head_dim=head_dim,
            num_kv_heads=groups,
            ov=ov,
            use_bias=config.attention_bias,
            query_length=1,
            dtype_bytes=dtype_bytes,
        )
        return config.num_layers * layer.cache_bytes_per_token

    separate = cached("separate", "separate")
    merged = cached("separate" if rotary else "merged", "merged")
    # Keys and values are 2 G K numbers, inputs D; with keys that stay, G K + D.
    least = config.width / (head_dim if rotary else 2 * head_dim)
    kept = "keys and inputs (W_qk cannot be merged)" if rotary else "inputs"
    verdict = (
        f"caching {kept} takes {merged / separate:.2f} times the bytes; it takes fewer only with "
        f"more than {least:g} key/value heads, and this model has {groups}"
    )
    return Cache(separate, merged, verdict)
