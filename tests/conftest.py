"""Settings of all tests: eight simulated devices, no silent broadcasting, seeded keys."""

import zlib

import jax
import pytest

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture
def key(request):
    """A random key that depends on the test's own name only."""
    return jax.random.key(zlib.crc32(request.node.nodeid.encode()) % 2**31)
