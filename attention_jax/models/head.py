"""From hidden states to logits."""

import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike

from attention_jax.models.config import TransformerConfig
from attention_jax.types import Array, Float


class Head(nn.Module):
    """Logits: a matrix of its own unless one is given, and a bias after a masked head."""

    config: TransformerConfig
    param_dtype: DTypeLike

    @nn.compact
    def __call__(
        self, x: Float[Array, "B T E"], embedding: Float[Array, "N E"] | None
    ) -> Float[Array, "B T N"]:
        """Returns logits of `x`, by the transpose of `embedding` if one is given."""
        # A loss is a difference of large logits.
        wide = jnp.promote_types(jnp.promote_types(x.dtype, self.param_dtype), jnp.float32)
        size = self.config.vocab_size
        if embedding is None:
            shape = (x.shape[-1], size)
            kernel = self.param("kernel", nn.initializers.lecun_normal(), shape, self.param_dtype)
        else:
            kernel = embedding.T
        logits = x.astype(wide) @ kernel.astype(wide)
        if self.config.head == "masked":
            bias = self.param("bias", nn.initializers.zeros_init(), (size,), self.param_dtype)
            logits = logits + bias.astype(wide)[None, None]
        return logits
