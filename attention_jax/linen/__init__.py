"""Flax modules: pure `init` and `apply`."""

from attention_jax.linen.merged import MergedAttention as MergedAttention
from attention_jax.linen.positions import LearnedPositions as LearnedPositions
from attention_jax.linen.raw import RawAttention as RawAttention
from attention_jax.linen.separate import SeparateAttention as SeparateAttention
