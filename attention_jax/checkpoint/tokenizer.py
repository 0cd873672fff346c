"""The tokenizer that a published checkpoint comes with."""

import os
import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attention_jax import checks
from attention_jax.checkpoint.files import open_checkpoint

if TYPE_CHECKING:
    import tokenizers

# Token types of GGUF: marks that never come from text, and text that is never split.
_CONTROL = 3
_USER_DEFINED = 4


def tokenizer(path: str | os.PathLike[str]) -> "tokenizers.Tokenizer":
    """Returns the tokenizer beside the weights at `path`, or inside a GGUF file.

    Args:
      path: As for `load`. A folder must hold tokenizer.json; of GGUF, byte-level BPE vocabularies
        with the splitting rules of GPT-2 and SmolLM can be rebuilt.

    Raises:
      ValueError: There is no tokenizer.json.
      NotImplementedError: The vocabulary of a GGUF file is of another kind.
      ImportError: The package `tokenizers` is not installed.

    Example:
      >>> from attention_jax.checkpoint import tokenizer
      >>> tokenizer("tests/checkpoint/data/tiny_llama")
      Traceback (most recent call last):
      ...
      ValueError: ...tokenizer.json: expected the tokenizer beside the weights, got no such file...
    """
    try:
        import tokenizers
    except ImportError as error:
        raise ImportError(
            checks.message(
                "tokenizer",
                "the package tokenizers",
                "none installed",
                'pip install "attention-jax[checkpoints]"',
            )
        ) from error
    path = pathlib.Path(path)
    folder = path if path.is_dir() else path.parent
    file = folder / "tokenizer.json"
    if path.suffix == ".gguf" or (
        path.is_dir() and not file.exists() and list(path.glob("*.gguf"))
    ):
        return _from_gguf(open_checkpoint(path).config)
    if not file.is_file():
        raise checks.refuse(
            ValueError, str(file), "the tokenizer beside the weights", "no such file",
            "pass token numbers, made with the model's own tokenizer",
        )  # fmt: skip
    return tokenizers.Tokenizer.from_file(str(file))


def _from_gguf(metadata: Mapping[str, Any]) -> "tokenizers.Tokenizer":
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

    splitters = {
        "gpt-2": [],
        "smollm": [pre_tokenizers.Digits(individual_digits=True)],
    }
    kind = metadata.get("tokenizer.ggml.model")
    splitter = str(metadata.get("tokenizer.ggml.pre"))
    for name, found, known in (
        ("tokenizer.ggml.model", kind, ["gpt2"]),
        ("tokenizer.ggml.pre", splitter, list(splitters)),
    ):
        if found not in known:
            raise checks.refuse(
                NotImplementedError, name, f"one of {', '.join(known)}", repr(found),
                "pass token numbers, made with the model's own tokenizer",
            )  # fmt: skip
    for name in ("tokenizer.ggml.add_eos_token", "tokenizer.ggml.add_sep_token"):
        if metadata.get(name, False):
            raise checks.refuse(
                NotImplementedError, name, False, True, "append the token to the numbers yourself"
            )
    needed = ["tokenizer.ggml.tokens", "tokenizer.ggml.merges"]
    if metadata.get("tokenizer.ggml.add_bos_token", False):
        needed.append("tokenizer.ggml.bos_token_id")
    absent = [name for name in needed if name not in metadata]
    if absent:
        raise checks.refuse(
            ValueError, "metadata", "a whole vocabulary", f"no {', '.join(absent)}",
            "pass token numbers, made with the model's own tokenizer",
        )  # fmt: skip
    tokens = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", False))
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    made.pre_tokenizer = pre_tokenizers.Sequence([*splitters[splitter], bytes_])
    made.decoder = decoders.ByteLevel()
    types = metadata.get("tokenizer.ggml.token_type", [])
    for token, kind in zip(tokens, types, strict=False):
        if kind in (_CONTROL, _USER_DEFINED):
            special = kind == _CONTROL
            made.add_tokens([AddedToken(token, special=special, normalized=False)])
    if metadata.get("tokenizer.ggml.add_bos_token", False):
        start = metadata["tokenizer.ggml.bos_token_id"]
        made.post_processor = processors.TemplateProcessing(
            single=f"{tokens[start]} $A", special_tokens=[(tokens[start], start)]
        )
    return made
