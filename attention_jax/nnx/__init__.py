"""The modules for Flax NNX: same settings, parameters and outputs as the linen ones."""

from attention_jax.nnx.exchange import from_linen as from_linen
from attention_jax.nnx.exchange import to_linen as to_linen
from attention_jax.nnx.forms import MergedAttention as MergedAttention
from attention_jax.nnx.forms import RawAttention as RawAttention
from attention_jax.nnx.forms import SeparateAttention as SeparateAttention
from attention_jax.nnx.positions import LearnedPositions as LearnedPositions
