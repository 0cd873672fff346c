"""The command, its vocabularies, and text that grows."""

import json
import pathlib
import shutil

import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax import checkpoint, models
from attention_jax.generate import Vocabulary, command, stream
from attention_jax.generate.stream import growing_text
from attention_jax.generate.vocabulary import end_token

DATA = pathlib.Path(__file__).parents[1] / "checkpoint" / "data"
TOKENS = "3,1,4,1,5"


@pytest.fixture(scope="module")
def llama():
    config, params = checkpoint.load(DATA / "tiny_llama")
    return models.Transformer(config), params


def printed(capsys, *arguments):
    """Returns what the command prints, or the line of its error."""
    code = command.main([str(argument) for argument in arguments])
    found = capsys.readouterr()
    return found.out if code == 0 else found.err


def test_the_command_prints_what_generate_gives(llama, capsys):
    tokens = jnp.array([[3, 1, 4, 1, 5]])
    plain = models.generate(*llama, tokens, num_tokens=11)[0].tolist()
    stop = plain[14]
    ends = plain[: plain.index(stop, 5) + 1]
    asked = (DATA / "tiny_llama", "--tokens", TOKENS, "--num-tokens", "11", "--stop-token")
    assert printed(capsys, *asked, stop) == ",".join(map(str, ends)) + "\n"
    sampled = ("none", "--temperature", "2", "--top-k", "20", "--top-p", "0.95", "--seed")
    # Without a number it goes on as long as positions allow, here 16 in all.
    gpt2 = printed(capsys, DATA / "tiny_gpt2", "--tokens", TOKENS, "--stop-token", "none")
    assert gpt2.count(",") == 15
    one, same, other = (printed(capsys, *asked, *sampled, seed) for seed in (0, 0, 1))
    assert one == same != other and one.count(",") == 15 and one.startswith(TOKENS)


def test_logits_that_are_not_finite_end_a_stream(llama):
    model, params = llama
    broken = {**params, "final_norm": {"scale": params["final_norm"]["scale"] * np.nan}}
    with pytest.raises(FloatingPointError, match="logits: expected finite numbers"):
        list(stream(model, broken, [3, 1, 4], num_tokens=2))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none"], "none: expected"),
        ([DATA / "tiny_bert"], "model: expected a causal model with a head"),
        ([DATA / "tiny_gpt2", "--num-tokens", "12"], "at most capacity=16 together, got 17"),
        ([DATA / "tiny_llama", "--tokens", "3,23"], "tokens: expected between 0 and 22"),
        ([DATA / "tiny_llama", "--tokens", "3,x"], "--tokens: expected numbers, as in 3,1,4"),
        ([DATA / "tiny_llama", "--stop-token", "23"], "stop_token: expected between 0 and 22"),
        ([DATA / "tiny_llama", "--top-k", "24"], "top_k: expected at most the 23 tokens"),
        ([DATA / "tiny_llama", "--cache", "keys"], "kind: expected one of"),
        ([DATA / "tiny_llama", "--num-tokens", "0"], "num_tokens: expected at least 1"),
    ],
)
def test_mistakes_get_one_line(arguments, message, capsys):
    path, *options = arguments
    tokens = [] if "--tokens" in options else ["--tokens", TOKENS]
    error = printed(capsys, path, *tokens, *options)
    assert error.startswith("error: ") and error.count("\n") == 1 and message in error


def test_a_prompt_needs_a_tokenizer_or_bytes(capsys, tmp_path):
    asked = ("--prompt", "Où", "--num-tokens", "3")
    error = printed(capsys, DATA / "tiny_llama", *asked)
    assert "tokenizer.json: expected the tokenizer beside the weights" in error
    assert error.count("\n") == 1
    with pytest.raises(SystemExit):
        command.main([str(DATA / "tiny_llama")])
    assert "--prompt" in capsys.readouterr().err


def test_the_token_that_ends_a_text(tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(DATA / "tiny_llama", folder)
    settings = json.loads((folder / "config.json").read_text())
    for found, expected in ((7, 7), (None, None), (23, None)):
        (folder / "config.json").write_text(json.dumps({**settings, "eos_token_id": found}))
        assert end_token(folder, 23) == expected
    (folder / "config.json").write_text(json.dumps({**settings, "eos_token_id": [7, 8]}))
    with pytest.raises(ValueError, match="eos_token_id: expected one token"):
        end_token(folder, 23)


def test_a_character_is_shown_when_all_its_bytes_are_there():
    text = "a–€\U0001f600b\ufffd"
    tokens = [*text.encode(), 0xE2, 0x82]
    one_by_one = [*growing_text([[token] for token in tokens], Vocabulary.bytes())]
    assert one_by_one == ["a", "–", "€", "\U0001f600", "b", "\ufffd\ufffd"]
    assert "".join(growing_text([tokens], Vocabulary.bytes())) == "".join(one_by_one)
    # A vocabulary of more than 256 tokens has some that are no bytes.
    assert Vocabulary.bytes().decode([97, 300, 98]) == "a\ufffdb"
