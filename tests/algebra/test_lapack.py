"""Decompositions end, and are those of NumPy."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np

from attention_jax.algebra import lapack

# Two stacks at once, on a pool of two threads, many times; with batched calls it hangs.
SEVERAL = """
import jax, jax.numpy as jnp
from attention_jax.algebra import lapack
keys = jax.random.split(jax.random.key(0), 4)
stacks = [jax.random.normal(key, (9, 300, 40)) for key in keys]
both = jax.jit(lambda stacks: [lapack.qr(stack) for stack in stacks])
for _ in range(60):
    jax.block_until_ready(both(stacks))
print("done")
"""


def test_several_decompositions_at_once_end():
    code = f"import os; os.sched_setaffinity(0, list(os.sched_getaffinity(0))[:2])\n{SEVERAL}"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert result.stdout.strip() == "done", result.stderr


def test_each_matrix_is_decomposed():
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        stack, square = jnp.asarray(rng.normal(size=(3, 7, 5))), rng.normal(size=(3, 5, 5))
        q, r = lapack.qr(stack)
        np.testing.assert_allclose(np.asarray(q) @ np.asarray(r), stack, atol=1e-12)
        np.testing.assert_allclose(np.abs(lapack.triangle(stack)), np.abs(r), atol=1e-12)
        u, s, vt = lapack.svd(stack)
        np.testing.assert_allclose(np.asarray(u * s[:, None]) @ np.asarray(vt), stack, atol=1e-12)
        np.testing.assert_allclose(lapack.singular_values(stack), s, atol=1e-12)
        np.testing.assert_allclose(s, np.linalg.svd(stack, compute_uv=False), atol=1e-12)
        identity = np.asarray(lapack.inverse(jnp.asarray(square))) @ square
        np.testing.assert_allclose(identity, np.broadcast_to(np.eye(5), (3, 5, 5)), atol=1e-10)
        values = np.sort_complex(np.asarray(lapack.eigenvalues(jnp.asarray(square))))
        expected = np.sort_complex(np.linalg.eigvals(square))
        np.testing.assert_allclose(values, expected, atol=1e-10)
