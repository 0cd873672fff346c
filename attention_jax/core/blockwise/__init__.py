"""Attention in blocks: memory linear in the lengths, forward and backward."""

from attention_jax.core.blockwise.attention import blockwise_attention as blockwise_attention
from attention_jax.core.blockwise.plan import Plan as Plan
from attention_jax.core.blockwise.plan import plan as plan
