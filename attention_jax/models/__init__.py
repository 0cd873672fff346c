"""Transformers around the attention layers: what published checkpoints are imported into."""

from attention_jax.models.config import TransformerConfig as TransformerConfig
from attention_jax.models.forms import factor as factor
from attention_jax.models.forms import merge as merge
from attention_jax.models.generation import generate as generate
from attention_jax.models.generation import prefill as prefill
from attention_jax.models.generation import step as step
from attention_jax.models.language import score as score
from attention_jax.models.transformer import Transformer as Transformer
