"""Import of published checkpoints."""

from attention_jax.checkpoint.files import Checkpoint as Checkpoint
from attention_jax.checkpoint.files import open_checkpoint as open_checkpoint
from attention_jax.checkpoint.load import load as load
from attention_jax.checkpoint.tokenizer import tokenizer as tokenizer
