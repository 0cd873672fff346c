"""The forms as NNX modules."""

from typing import Any

from flax import nnx

from attention_jax import linen
from attention_jax.nnx.attention import Attention


class _WeightedAttention(Attention):
    widths = {
        "in_features": {"query/kernel": 0, "qk/kernel": 0},
        "in_kv_features": {"key/kernel": 0, "qk/kernel": 2},
        "in_v_features": {"value/kernel": 0, "ov/kernel": 1},
    }

    # Settings stand, with defaults, in the linen module alone; it refuses unknown names.
    def __init__(
        self,
        num_heads: int,
        in_features: int,
        *,
        in_kv_features: int | None = None,
        in_v_features: int | None = None,
        rngs: nnx.Rngs,
        keep_rngs: bool = True,
        **settings: Any,
    ) -> None:
        """Creates the parameters."""
        key_width = in_features if in_kv_features is None else in_kv_features
        super().__init__(
            self.linen_class(num_heads, parent=None, **settings),
            rngs,
            keep_rngs,
            in_features=in_features,
            in_kv_features=key_width,
            in_v_features=key_width if in_v_features is None else in_v_features,
        )


class SeparateAttention(_WeightedAttention):
    """`aj.SeparateAttention` for NNX.

    Parameters are those of `flax.nnx.MultiHeadAttention`, whose states load unchanged:
    `module.query.kernel` is an `nnx.Param` `(D, heads, K)`, and so on. From the same key they have
    the numbers of the linen module. Partition names come from initialisers of
    `flax.linen.with_partitioning`.

    Args:
      num_heads: Number of query heads H.
      in_features: Width D of `inputs_q`.
      in_kv_features: Width E of `inputs_k`; by default D.
      in_v_features: Width F of `inputs_v`; by default E.
      rngs: Streams "params" and, with a dropout rate, "dropout".
      keep_rngs: Whether the module keeps a stream for its dropout; else each call needs one.
      **settings: The attributes of `aj.SeparateAttention`; other names are refused.

    Raises:
      ValueError: Sizes or settings do not fit.
      TypeError: A size is not an integer, there is no such setting, or a mask is not boolean.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> module = SeparateAttention(num_heads=2, in_features=8, rngs=nnx.Rngs(0))
      >>> module.query.kernel.shape
      (8, 2, 4)
      >>> module(jnp.ones((3, 5, 8))).shape
      (3, 5, 8)
    """

    linen_class = linen.SeparateAttention


class MergedAttention(_WeightedAttention):
    """`aj.MergedAttention` for NNX: one matrix W_qk per head, and with `ov="merged"` one W_ov.

    The arguments are those of `aj.nnx.SeparateAttention`, with the attributes of
    `aj.MergedAttention` as settings.

    Raises:
      ValueError: Sizes or settings do not fit.
      TypeError: A size is not an integer, there is no such setting, or a mask is not boolean.
      NotImplementedError: A rotary encoding or QK-norm, for which no single W_qk exists.

    Example:
      >>> import attention_jax as aj
      >>> from flax import nnx
      >>> module = MergedAttention(num_heads=2, in_features=8, in_kv_features=6, rngs=nnx.Rngs(0))
      >>> module.qk.kernel.shape
      (8, 2, 6)
      >>> separate = aj.nnx.SeparateAttention(num_heads=2, in_features=8, rngs=nnx.Rngs(0))
      >>> params = aj.merge(nnx.to_pure_dict(nnx.state(separate, nnx.Param)))
      >>> aj.nnx.from_linen(aj.MergedAttention(num_heads=2), params).qk.kernel.shape
      (8, 2, 8)
    """

    linen_class = linen.MergedAttention


class RawAttention(Attention):
    """`aj.RawAttention` for NNX: attention without parameters.

    Args:
      rngs: Stream "dropout", needed with a dropout rate only.
      keep_rngs: Whether the module keeps a stream for its dropout; else each call needs one.
      **settings: The attributes of `aj.RawAttention`; other names are refused.

    Raises:
      ValueError: Sizes or settings do not fit.
      TypeError: There is no such setting, or a mask is not boolean.

    Example:
      >>> import jax.numpy as jnp
      >>> RawAttention()(jnp.array([[[1.0, 0.0], [0.0, 0.0]]]))[0, 1].tolist()
      [0.5, 0.0]
    """

    linen_class = linen.RawAttention
    widths = {}

    def __init__(
        self, *, rngs: nnx.Rngs | None = None, keep_rngs: bool = True, **settings: Any
    ) -> None:
        """Checks the settings."""
        super().__init__(self.linen_class(parent=None, **settings), rngs, keep_rngs)
