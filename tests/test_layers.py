"""Imports go down only."""

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[1]

# Each layer may import itself and the layers above it in this list; one row is one layer.
LAYERS = [
    {"version", "types"},
    {"checks"},
    {"masks", "positions"},
    {"request"},
    {"kernels"},
    {"core"},
    {"algebra", "cost", "decode"},
    {"caches"},
    {"linen"},
    {"nnx"},
    {"models"},
    {"checkpoint"},
    {"generate", "inspect"},
    {"testing"},
]
TRAIN = [
    {"files", "progress", "data", "statistics"},
    {"config", "metrics"},
    {"overrides", "documents", "model", "optimizer"},
    {"config_files", "ngrams", "start"},
    {"state", "summary", "checkpoints", "results"},
    {"step", "verdict", "figures", "generate"},
    {"parallel", "report"},
    {"loop"},
    {"study"},
    {"__main__"},
]
# Inside the core a form never imports another one, and all stand on the evaluation.
CORE = [
    {"softmax", "form", "dropout", "derivatives"},
    {"dense", "blockwise"},
    {"dispatch"},
    {"attend", "separate", "merged", "raw"},
    {"absorbed"},
    {"layer"},
]


def imports(source: str) -> set[str]:
    """Returns the dotted names of all modules that `source` imports from `attention_jax`."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the layer"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in found if name.split(".")[0] in ("attention_jax", "train", "tests")}


def rank(layers: list[set[str]], name: str) -> int:
    """Returns the index of the layer that holds `name`; the package itself is above all."""
    found = [index for index, layer in enumerate(layers) if name in layer]
    assert found, f"{name} is in no layer: add it to the list at the top of this file"
    return found[0]


def violations(path: str, source: str) -> list[str]:
    """Returns the imports in the file at `path` (below the root) that do not go down."""
    parts = pathlib.PurePath(path).with_suffix("").parts
    package, here = parts[0], parts[1]
    return [
        f"{path} imports {name}"
        for name in imports(source)
        if here != "__init__" and _goes_up(package, parts, name.split("."))
    ]


def _goes_up(package: str, parts: tuple[str, ...], target: list[str]) -> bool:
    if target[0] != package:
        return package != "train" or target[0] != "attention_jax"
    layers = LAYERS if package == "attention_jax" else TRAIN
    # The package's own name holds everything, so nothing below may import it.
    if len(target) == 1:
        return True
    here, there = rank(layers, parts[1]), rank(layers, target[1])
    if parts[1] != target[1]:
        return there >= here
    if parts[1] == "core" and parts[2] != "__init__" and parts[2] != target[2]:
        return rank(CORE, target[2]) >= rank(CORE, parts[2])
    return False


def test_every_import_goes_down():
    files = [*ROOT.glob("attention_jax/**/*.py"), *ROOT.glob("train/**/*.py")]
    assert len(files) > 30
    found = [
        violation
        for file in files
        for violation in violations(str(file.relative_to(ROOT)), file.read_text())
    ]
    assert not found


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("attention_jax/core/dense.py", "from attention_jax.linen import SeparateAttention"),
        ("attention_jax/core/merged.py", "from attention_jax.core import separate"),
        ("attention_jax/masks/mask.py", "from attention_jax.positions import Rotary"),
        ("attention_jax/cost/layer.py", "from attention_jax.algebra import merge"),
        ("attention_jax/linen/raw.py", "import attention_jax.testing"),
        ("attention_jax/linen/raw.py", "from attention_jax.nnx import twin"),
        ("attention_jax/core/dense.py", "from train import loop"),
        ("attention_jax/core/dense.py", "import attention_jax as aj"),
        ("train/loop.py", "from tests.core import reference"),
        ("train/config.py", "from train import loop"),
    ],
)
def test_an_import_that_goes_up_is_found(path, line):
    assert violations(path, line)
