"""The shapes in annotations are true: all docstring examples run with every annotation checked."""

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[1]

HOOK = """
from jaxtyping import install_import_hook
with install_import_hook("attention_jax", "beartype.beartype"):
    import attention_jax as aj
    import attention_jax.cost, attention_jax.linen, attention_jax.nnx, attention_jax.testing
    import attention_jax.checkpoint, attention_jax.generate, attention_jax.inspect
    import attention_jax.models
"""
EXAMPLES = """
import doctest, importlib, pkgutil
names = [info.name for info in pkgutil.walk_packages(aj.__path__, "attention_jax.")]
flags = doctest.ELLIPSIS
results = [doctest.testmod(importlib.import_module(name), optionflags=flags) for name in names]
print(sum(result.attempted for result in results), sum(result.failed for result in results))
"""
WRONG = """
import jax.numpy as jnp
aj.attend(jnp.ones((2, 3, 1, 4)), jnp.ones((2, 3, 1, 5)), jnp.ones((2, 3, 1, 4)))
"""


def run(code: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT
    )


def test_all_examples_run_with_checked_annotations():
    result = run(HOOK + EXAMPLES)
    assert result.returncode == 0, result.stderr
    attempted, failed = map(int, result.stdout.split()[-2:])
    assert attempted > 280, result.stdout
    assert failed == 0, result.stdout


def test_the_hook_bites():
    result = run(HOOK + WRONG)
    assert "TypeCheckError" in result.stderr
