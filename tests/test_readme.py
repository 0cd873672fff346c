"""The README's code runs and prints what it says; its first two commands are the two set-ups."""

import contextlib
import io
import pathlib
import re

import pytest

README = pathlib.Path(__file__).parents[1] / "README.md"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(text: str) -> list[tuple[str, str]]:
    """Returns `(language, code)` of each fenced block."""
    return FENCE.findall(text)


def check(text: str) -> int:
    """Runs the Python blocks in order, compares what each prints with the block after it."""
    found = blocks(text)
    names: dict[str, object] = {}
    count = 0
    for index, (language, code) in enumerate(found):
        if language != "python":
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, f"README block {index}", "exec"), names)
        if index + 1 < len(found) and found[index + 1][0] == "text":
            assert printed.getvalue().strip() == found[index + 1][1].strip()
        count += 1
    return count


def test_the_code_runs_and_prints_what_it_says():
    assert check(README.read_text()) >= 1


def test_the_first_two_bash_blocks_are_the_two_commands():
    commands = [code.strip() for language, code in blocks(README.read_text()) if language == "bash"]
    assert len(commands[0].splitlines()) == len(commands[1].splitlines()) == 1
    assert "python -m train configs/quick.py" in commands[0]
    assert commands[1].endswith("python -m pytest -n auto")
    for command in commands[:2]:
        assert "python3 -m venv" in command and "pip install" in command


def test_the_length():
    assert len(README.read_text().splitlines()) <= 150


def test_wrong_output_and_broken_code_are_found():
    with pytest.raises(AssertionError):
        check("```python\nprint(1)\n```\n```text\n2\n```\n")
    with pytest.raises(NameError):
        check("```python\nundefined\n```\n")
