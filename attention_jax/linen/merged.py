"""The merged form as a Flax module."""

import dataclasses

from flax import linen as nn

from attention_jax import checks
from attention_jax.core import merged
from attention_jax.core.form import QueryKey
from attention_jax.linen import initializers
from attention_jax.linen.initializers import MergedInit
from attention_jax.linen.module import Widths
from attention_jax.linen.weighted import WeightedAttention


class MergedAttention(WeightedAttention):
    """Multi-head attention with one matrix W_qk per head, and with `ov="merged"` one W_ov.

    `output = sum_h softmax(scale (x W_qk,h + u_h) y^T) (y W_ov,h + c_h) + b_o`

    Parameters are `qk: {kernel (D, H, E), bias (H, E)}` and, merged, `ov: {kernel (H, E, O), bias
    (H, O)}, out: {bias (O,)}`, else `value` and `out` of `SeparateAttention`. With a soft cap and
    biases `qk` also has `row_kernel (D, H)` and `row_bias (H,)`, which softmax alone cannot see.

    Attributes:
      head_dim: Width of the separate head that each W_qk stands for; sets the scale and the rank of
        the initial product. By default D / H.
      num_kv_heads: Number of value heads, and of the key heads behind the initial product.
      qk_init: Of W_qk: "product" of kernels drawn as in the separate form (the same function in
        distribution), "iid" or "symmetric" normal entries of that product's norm, "zero", or a
        function of key, shape and dtype.
      ov_init: Of W_ov, likewise.
      normalize_qk: Refused: the norms depend on W_q and W_k apart.
      position: `aj.ALiBi(num_heads)` or None; rotary encodings are refused.

    The other attributes are those of `SeparateAttention`.

    Raises:
      ValueError: Sizes or settings do not fit.
      TypeError: A size is not an integer, or a mask is not boolean.
      NotImplementedError: A rotary encoding or QK-norm, for which no single W_qk exists.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> module = MergedAttention(num_heads=2, ov="merged")
      >>> x, y = jnp.ones((3, 5, 8)), jnp.ones((3, 7, 6))
      >>> variables = module.init(jax.random.key(0), x, y)
      >>> variables["params"]["qk"]["kernel"].shape, variables["params"]["ov"]["kernel"].shape
      ((8, 2, 6), (2, 6, 8))
      >>> module.apply(variables, x, y).shape
      (3, 5, 8)

    Paper: Elhage et al., A mathematical framework for transformer circuits (2021), section
    "Attention heads as independent and additive" (its W_QK and W_OV, transposed).
    """

    _: dataclasses.KW_ONLY
    qk_init: MergedInit = "product"

    def __post_init__(self) -> None:
        """Checks the settings that need no inputs."""
        initializers.check_merged_init("qk_init", self.qk_init)
        if self.normalize_qk:
            raise checks.refuse(
                NotImplementedError,
                "normalize_qk",
                "False, because with QK-norm scores depend on W_q and W_k apart and no single "
                "merged matrix exists",
                self.normalize_qk,
                "keep the separate form (ov='merged' is possible)",
            )
        super().__post_init__()

    @property
    def _query_key(self) -> QueryKey:
        return merged.query_key

    def _query_key_parameters(self, widths: Widths, head_dim: int) -> dict:
        width, key_width, _ = widths
        init = initializers.merged_qk(self.qk_init, self.kernel_init, head_dim, self._num_kv_heads)
        kernel = (init, (width, self.num_heads, key_width))
        entries = self._kernel_and_bias(kernel, (self.num_heads, key_width))
        if self.use_bias and self.softcap is not None:
            zeros = nn.initializers.zeros_init()
            entries["row_kernel"] = (zeros, (width, self.num_heads))
            entries["row_bias"] = (zeros, (self.num_heads,))
        # Without a soft cap these are constants of a row of scores and cancel.
        invisible = ("row_kernel", "row_bias") if self.softcap is None else ()
        return {"qk": self._group("qk", entries, invisible)}
