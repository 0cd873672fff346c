"""The functions need JAX and NumPy only; the modules and assertions load what they need later."""

import subprocess
import sys

import pytest

BLOCKED = ("flax", "optax", "orbax", "grain", "chex", "rich", "matplotlib")
BLOCK = f"""
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in {BLOCKED!r}:
            raise ImportError('blocked: ' + name)
sys.meta_path.insert(0, Block())
"""
CORE = """
import sys
import jax, jax.numpy, jaxtyping, numpy
before = set(sys.modules)
import importlib, pkgutil
import attention_jax as aj
for package in ('core', 'algebra', 'caches', 'cost', 'decode', 'masks', 'positions'):
    path = [aj.__path__[0] + '/' + package]
    names = [info.name for info in pkgutil.iter_modules(path)]
    assert names
    for name in names:
        importlib.import_module('attention_jax.' + package + '.' + name)
for name in ('checks', 'kernels', 'request', 'types'):
    importlib.import_module('attention_jax.' + name)
x = jax.numpy.ones((2, 3, 1, 4))
assert aj.attend(x, x, x, mask=aj.causal()).shape == x.shape
new = {name.split('.')[0] for name in set(sys.modules) - before}
print(sorted(new - sys.stdlib_module_names - {'jax', 'jaxlib', 'numpy'}))
"""


def run(code: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_the_core_imports_only_jax_and_numpy():
    result = run(BLOCK + CORE)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "['attention_jax']"


def test_another_import_is_found():
    result = run(CORE.replace("x = ", "import flax; x = "))
    assert result.returncode == 0, result.stderr
    assert "'flax'" in result.stdout


@pytest.mark.parametrize("name", ["SeparateAttention", "nnx", "testing"])
def test_the_block_bites(name):
    result = run(BLOCK + f"import attention_jax as aj\naj.{name}")
    assert result.returncode != 0
    assert "blocked: " in result.stderr


def test_every_public_name_is_there():
    import attention_jax as aj

    missing = [name for name in dir(aj) if not hasattr(aj, name)]
    assert not missing
    expected = {"SeparateAttention", "MergedAttention", "RawAttention", "nnx", "testing"}
    assert expected <= set(dir(aj))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = aj.nothing
