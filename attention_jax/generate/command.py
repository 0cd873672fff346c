"""The command: arguments, text, exit codes."""

import argparse
import collections.abc
import sys

from attention_jax import checkpoint, models
from attention_jax.generate.stream import growing_text, stream
from attention_jax.generate.vocabulary import Vocabulary, end_token
from attention_jax.positions import Learned
from attention_jax.types import Parameters

MISTAKES = (
    ValueError, TypeError, NotImplementedError, OSError, ImportError, FloatingPointError
)  # fmt: skip
"""Errors whose one line says what the user can mend."""
LENGTH = 64
"""Tokens to generate unless it is said."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds how to generate, whatever the model."""
    parser.add_argument(
        "--num-tokens", type=int, metavar="N", help=f"at most ({LENGTH}, or what positions allow)"
    )
    parser.add_argument(
        "--temperature", type=float, default=0.0, help="0, the default, takes the likeliest token"
    )
    parser.add_argument("--top-k", type=int, metavar="K", help="only the K likeliest tokens")
    parser.add_argument(
        "--top-p", type=float, metavar="P", help="only the likeliest tokens, of probability P"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the random draws (0)")
    parser.add_argument(
        "--stop-token", type=_number_or_none, default="end", metavar="N",
        help="end after this token (by default the one that ends a text), or none",
    )  # fmt: skip
    parser.add_argument("--cache", metavar="KIND", help="what is cached (by the form)")
    parser.add_argument(
        "--window", type=int, metavar="N", help="cache the last N tokens only, and see no others"
    )
    parser.add_argument(
        "--chunk-size", type=int, metavar="N", help="evaluate the prompt N tokens at a time"
    )


def write(
    model: models.Transformer,
    params: Parameters,
    prompt: str,
    vocabulary: Vocabulary,
    options: argparse.Namespace,
) -> None:
    """Prints `prompt` and how `model` goes on, while it does."""
    tokens = vocabulary.encode(prompt)
    found = stream(
        model,
        params,
        tokens,
        num_tokens=_length(model, tokens) if options.num_tokens is None else options.num_tokens,
        seed=options.seed,
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        stop_token=vocabulary.end if options.stop_token == "end" else options.stop_token,
        chunk_size=options.chunk_size,
        window=options.window,
        cache_kind=options.cache,
    )
    for text in growing_text(_after(tokens, found), vocabulary):
        print(text, end="", flush=True)
    print()


def _length(model: models.Transformer, tokens: list[int]) -> int:
    position = model.config.position
    room = position.capacity - len(tokens) if isinstance(position, Learned) else LENGTH
    return max(1, min(LENGTH, room))


def _after(
    tokens: list[int], found: collections.abc.Iterator[list[int]]
) -> collections.abc.Iterator[list[int]]:
    # What is refused is refused before anything is printed.
    first = next(found)
    yield tokens + first
    yield from found


def _number_or_none(text: str) -> int | str | None:
    if text in ("end", "none"):
        return {"end": "end", "none": None}[text]
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m attention_jax.generate",
        description="Lets a published language model go on after a prompt.",
    )
    parser.add_argument(
        "path",
        help="a folder with config.json and weights (safetensors or torch), a file of weights "
        "beside its config.json, or a GGUF file",
    )
    prompt = parser.add_mutually_exclusive_group(required=True)
    prompt.add_argument("--prompt", metavar="TEXT")
    prompt.add_argument(
        "--tokens", metavar="N,N,...", help="the prompt as numbers, where there is no tokenizer"
    )
    add_options(parser)
    return parser


def _vocabulary(parsed: argparse.Namespace, size: int) -> Vocabulary:
    if parsed.tokens is not None:
        return Vocabulary.numbers(end_token(parsed.path, size))
    try:
        return Vocabulary.of_checkpoint(parsed.path, size)
    except ValueError as error:
        if size != 256:
            raise
        print(f"{error} Taken instead: 256 tokens as bytes.", file=sys.stderr)
        return Vocabulary.bytes()


def main(arguments: collections.abc.Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code, 1 with one line for what the user can mend."""
    parsed = _parser().parse_args(arguments)
    try:
        config, params = checkpoint.load(parsed.path)
        vocabulary = _vocabulary(parsed, config.vocab_size)
        prompt = parsed.prompt if parsed.tokens is None else parsed.tokens
        write(models.Transformer(config), params, prompt, vocabulary, parsed)
    except MISTAKES as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0
