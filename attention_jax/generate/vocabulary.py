"""What the tokens of a model stand for."""

import codecs
import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attention_jax import checkpoint, checks


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """From text to tokens and back.

    Attributes:
      encode: From a prompt to its tokens.
      decode: From tokens to text; of a character whose tokens are not all there it gives U+FFFD.
      end: The token that ends a text, or None.

    Example:
      >>> Vocabulary.bytes().encode("Où")
      [79, 195, 185]
      >>> Vocabulary.bytes().decode([79, 195]) == "O" + chr(0xFFFD)
      True
      >>> Vocabulary.numbers().encode("3,1,4")
      [3, 1, 4]
    """

    encode: Callable[[str], list[int]]
    decode: Callable[[Sequence[int]], str]
    end: int | None = None

    @classmethod
    def bytes(cls) -> "Vocabulary":
        """Returns the vocabulary in which a token is a byte of UTF-8."""
        return cls(lambda text: list(text.encode()), _decode_bytes)

    @classmethod
    def numbers(cls, end: int | None = None) -> "Vocabulary":
        """Returns the vocabulary in which a token is written as its number: "3,1,4"."""
        return cls(_read_numbers, lambda tokens: ",".join(map(str, tokens)), end)

    @classmethod
    def of_checkpoint(cls, path: str | os.PathLike[str], size: int) -> "Vocabulary":
        """Returns the vocabulary of a published checkpoint with `size` tokens.

        Raises:
          ValueError: There is no tokenizer, or several tokens end a text.
          NotImplementedError: The tokenizer is of an unknown kind.
          ImportError: The package `tokenizers` is not installed.
        """
        made = checkpoint.tokenizer(path)
        return cls(lambda text: made.encode(text).ids, made.decode, end_token(path, size))


def end_token(path: str | os.PathLike[str], size: int) -> int | None:
    """Returns the token that ends a text, or None if `size` tokens have none.

    Raises:
      ValueError: There are several.
    """
    config: Mapping[str, Any] = checkpoint.open_checkpoint(path).config
    found = config.get("eos_token_id", config.get("tokenizer.ggml.eos_token_id"))
    if isinstance(found, list):
        raise checks.refuse(
            ValueError, f"{path} eos_token_id", "one token", found, "say which: --stop-token"
        )
    # Settings of models without text keep the default of their kind.
    return found if isinstance(found, int) and 0 <= found < size else None


def _decode_bytes(tokens: Sequence[int]) -> str:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    # A vocabulary of more than 256 has tokens that are no byte.
    parts = [
        decoder.decode(bytes([token])) if token < 256 else decoder.decode(b"", True) + "\ufffd"
        for token in tokens
    ]
    return "".join(parts) + decoder.decode(b"", True)


def _read_numbers(text: str) -> list[int]:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise checks.refuse(
            ValueError, "--tokens", "numbers, as in 3,1,4", repr(text), "separate them by commas"
        ) from None
