"""Published checkpoints as files: settings and tensors under their foreign names."""

from attention_jax.checkpoint.files.checkpoint import Checkpoint as Checkpoint
from attention_jax.checkpoint.files.checkpoint import open_checkpoint as open_checkpoint
from attention_jax.checkpoint.files.tensors import Tensors as Tensors
