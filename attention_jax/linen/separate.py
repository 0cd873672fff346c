"""The separate form as a Flax module."""

from flax import linen as nn

from attention_jax.core import separate
from attention_jax.core.form import QueryKey
from attention_jax.linen.module import Widths
from attention_jax.linen.parameters import Entries
from attention_jax.linen.weighted import WeightedAttention


class SeparateAttention(WeightedAttention):
    """Multi-head attention with separate W_q, W_k, W_v and W_o.

    `output = sum_h softmax(scale q_h k_h^T) v_h W_o,h + b_o` with `q_h = x W_q,h + b_q,h`,
    `k_h = y W_k,h + b_k,h` and `v_h = y W_v,h + b_v,h`.

    Parameters are those of `flax.linen.MultiHeadDotProductAttention`, whose checkpoints load
    unchanged: `query|key|value: {kernel (D, heads, K), bias (heads, K)}`, `out: {kernel (H, K, O),
    bias (O,)}` and with `normalize_qk` also `query_ln|key_ln: {scale (K,)}`. It differs where that
    layer is wrong silently: masks must be boolean (`nn.make_causal_mask(x, dtype=bool)`), a row
    without a visible key gives the output bias, dropout is never shared between heads or examples.
    `broadcast_dropout`, `attention_fn` and `decode` do not exist, and settings after `head_dim` go
    by name.

    Attributes:
      num_heads: Number of query heads H.
      head_dim: Width K of one head; by default D / H.
      num_kv_heads: Number of key and value heads G, a divisor of H; by default H.
      out_features: Output width O; by default D.
      ov: "separate" for W_v and W_o, "merged" for one W_ov per head.
      use_bias: Whether projections have biases.
      qkv_features: Linen's spelling of `num_heads * head_dim`.
      normalize_qk: Whether to normalise queries and keys over their channels.
      position: `aj.Rotary(...)`, `aj.ALiBi(num_heads)` or None.
      scale: Factor of the scores; by default `head_dim ** -0.5`.
      softcap: Positive bound of the scores, or None.
      dropout_rate: Probability in [0, 1) of dropping a weight, independent everywhere.
      deterministic: Whether dropout is off, unless the call says so.
      dtype: Of the computation; by default the promotion of inputs and parameters.
      param_dtype: Of the parameters.
      precision: Of every matrix product.
      kernel_init: Of W_q, W_k and W_v, called with the shape of the flattened matrix.
      out_kernel_init: Of W_o; by default `kernel_init`.
      bias_init: Of the biases.
      out_bias_init: Of b_o; by default `bias_init`.
      ov_init: Of a merged W_ov; see `MergedAttention`.
      implementation: See `attend`.

    Raises:
      ValueError: Sizes or settings do not fit.
      TypeError: A size is not an integer, or a mask is not boolean.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> module = SeparateAttention(num_heads=2)
      >>> x = jnp.ones((3, 5, 8))
      >>> variables = module.init(jax.random.key(0), x)
      >>> variables["params"]["query"]["kernel"].shape
      (8, 2, 4)
      >>> module.apply(variables, x).shape
      (3, 5, 8)

    Paper: Vaswani et al., Attention is all you need, arXiv 1706.03762, section 3.2.2.
    """

    @property
    def _query_key(self) -> QueryKey:
        return separate.query_key

    def _query_key_parameters(self, widths: Widths, head_dim: int) -> dict:
        params = {
            "query": self._projection("query", widths.query, self.num_heads, head_dim),
            "key": self._projection("key", widths.key, self._num_kv_heads, head_dim),
        }
        if self.normalize_qk:
            scale: Entries = {"scale": (nn.initializers.ones, (head_dim,))}
            params |= {name: self._group(name, scale) for name in ("query_ln", "key_ln")}
        return params
