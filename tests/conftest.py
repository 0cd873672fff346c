"""Settings of all tests: eight simulated devices, no silent broadcasting, seeded keys."""

import os
import pathlib
import zlib

# Several workers share the cores; threads of one that wait for each other would take all of them.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Tests compile much and compute little: without the compiler's expensive passes they take 0.6 of
# the time. Set it to 0 to test what users run; subprocesses inherit it.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
# A second run compiles nothing again, and workers share what one of them has compiled.
CACHE = pathlib.Path(__file__).parents[1] / ".cache" / "jax"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

import jax  # noqa: E402
import pytest  # noqa: E402

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture
def key(request):
    """A random key that depends on the test's own name only."""
    return jax.random.key(zlib.crc32(request.node.nodeid.encode()) % 2**31)
