"""Compiles attention for a TPU that is not there, and prints what the compiler says as JSON lines.

`python -m tests.kernels.compile_for_tpu v5e splash 8192 32768`, in an environment as that of
`test_tpu_compile.py`.
"""

import json
import math
import re
import sys

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import AbstractDevice, AbstractMesh, SingleDeviceSharding

import attention_jax as aj
from tests.kernels.cases import FORMS, arrays


def device_of(chip):
    topology = topologies.get_topology_desc(
        platform="tpu", topology_name=f"{chip}:1x1", chips_per_host_bounds=(1, 1, 1)
    )
    return topology.devices[0]


def lowering_for(device):
    """A context in which code is traced for `device`."""
    abstract = AbstractDevice(
        device_kind=device.device_kind, num_cores=device.num_cores, platform=device.platform
    )
    return jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=abstract))


def measured(implementation, form, length, gradient, device):
    given, split = arrays(form, length, SingleDeviceSharding(device))

    def forward(*given):
        return aj.attend(*split(*given), mask=aj.causal(), implementation=implementation)

    def loss(*given):
        return jnp.sum(forward(*given).astype(jnp.float32) ** 2)

    run = jax.grad(loss, tuple(range(len(given)))) if gradient else forward
    with lowering_for(device):
        compiled = jax.jit(run).lower(*given).compile()
    text = compiled.as_text()
    shapes = [list(map(int, found.split(","))) for found in re.findall(r"\w\d+\[([\d,]+)\]", text)]
    memory = compiled.memory_analysis()
    return {
        "form": form,
        "length": length,
        "gradient": gradient,
        "peak_MiB": memory.peak_memory_in_bytes / 2**20,
        "temporary_MiB": memory.temp_size_in_bytes / 2**20,
        "largest": max(map(math.prod, shapes)),
        "kernels": text.count('custom_call_target="tpu_custom_call"'),
    }


if __name__ == "__main__":
    chip, implementation, *lengths = sys.argv[1:]
    for form in FORMS:
        for length in map(int, lengths):
            for gradient in (False, True):
                row = measured(implementation, form, length, gradient, device_of(chip))
                print(json.dumps(row), flush=True)
