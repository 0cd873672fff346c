"""The tokens on which truncation is measured."""

import dataclasses
import os

import numpy as np

from attention_jax import checks
from attention_jax.checkpoint import tokenizer
from attention_jax.models import TransformerConfig
from attention_jax.positions import Learned

LENGTH = 32
ROWS = 2
TEXT = """It was the best of times, it was the worst of times, it was the age of wisdom, it was the
age of foolishness, it was the epoch of belief, it was the epoch of incredulity, it was the season
of Light, it was the season of Darkness, it was the spring of hope, it was the winter of despair."""


@dataclasses.dataclass(frozen=True, eq=False)
class Sample:
    """Tokens without padding, and where they come from.

    Attributes:
      tokens: `[B, T]`.
      source: In words.
    """

    tokens: np.ndarray
    source: str


def sample(
    path: str | os.PathLike[str], config: TransformerConfig, text: str | None = None
) -> Sample:
    """Returns tokens of `text`, or of a sentence of Dickens, or random ones.

    Args:
      path: The checkpoint, whose tokenizer is used.
      config: Its settings.
      text: What to encode; then there must be a tokenizer.

    Raises:
      ValueError: There is no tokenizer for a given text, or the text is empty.
      NotImplementedError: The tokenizer is of an unknown kind.
    """
    length, known = LENGTH, config.position
    if isinstance(known, Learned):
        length = min(length, known.capacity)
    try:
        ids = tokenizer(path).encode(TEXT if text is None else text).ids
    except (ValueError, NotImplementedError):
        if text is not None:
            raise
        drawn = np.random.default_rng(0).integers(config.vocab_size, size=(ROWS, length))
        return Sample(drawn.astype(np.int32), "random tokens, because there is no known tokenizer")
    if not ids:
        raise checks.refuse(ValueError, "text", "at least one token", repr(text), "give a text")
    length = min(length, len(ids))
    rows = min(ROWS, len(ids) // length)
    tokens = np.array(ids[: rows * length], np.int32).reshape(rows, length)
    source = "the beginning of A Tale of Two Cities" if text is None else "the given text"
    return Sample(tokens, f"{tokens.size} tokens of {source}")
