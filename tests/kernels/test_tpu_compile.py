"""The TPU compiler takes every form, forward and gradient, in memory linear in length.

It needs no TPU, but its package, into an environment of its own since JAX would use it:

    python -m venv .venv-tpu
    .venv-tpu/bin/python -m pip install -e ".[dev,tpu]"
    .venv-tpu/bin/python -m pytest -m slow tests/kernels/test_tpu_compile.py
"""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import pytest

from tests.kernels.cases import FORMS

ROOT = pathlib.Path(__file__).parents[2]
# Without these the compiler's library looks for a TPU, and locks out other processes.
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_LOG_DIR": "disabled",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    # What was compiled for a device that is absent cannot be read back.
    "JAX_ENABLE_COMPILATION_CACHE": "false",
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "0",
}


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("libtpu") is None,
        reason="libtpu is not installed: see the top of this file",
    ),
]


def compiled(chip, implementation, *lengths):
    command = [sys.executable, "-m", "tests.kernels.compile_for_tpu", chip, implementation]
    result = subprocess.run(
        [*command, *map(str, lengths)],
        capture_output=True, text=True, check=False, cwd=ROOT, env=os.environ | ENVIRONMENT,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    print(result.stdout)
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.parametrize("implementation", ["splash", "blockwise"])
@pytest.mark.parametrize("chip", ["v5e", "v6e"])
def test_every_form_compiles_in_linear_memory(chip, implementation):
    rows = compiled(chip, implementation, 8192, 32768)
    peaks = {(row["form"], row["gradient"], row["length"]): row["peak_MiB"] for row in rows}
    assert len(peaks) == 2 * 2 * len(FORMS)
    for row in rows:
        expected = (3 if row["gradient"] else 1) if implementation == "splash" else 0
        assert row["kernels"] == expected, row
        assert row["largest"] < row["length"] ** 2 / 1.9, row
        # Four times the length. What stays in fast memory is not in the peak of the shorter one.
        short, long = (peaks[row["form"], row["gradient"], length] for length in (8192, 32768))
        assert long < 6 * short, row


def test_whole_scores_are_found():
    rows = compiled("v5e", "dense", 8192)
    assert rows and all(row["largest"] >= 8192**2 for row in rows)
