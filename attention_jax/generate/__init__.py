"""The command that lets a language model go on after a prompt."""

from attention_jax.generate.stream import stream as stream
from attention_jax.generate.vocabulary import Vocabulary as Vocabulary
