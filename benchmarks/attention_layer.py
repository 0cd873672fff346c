"""Times the separate form against `flax.linen.MultiHeadDotProductAttention`, side by side.

All get the same parameters, and their outputs are compared first. Runs are interleaved; printed
are medians, the ratio of medians, its spread over rounds, and the compiler's temporary memory.

    python -m benchmarks.attention_layer
    python -m benchmarks.attention_layer --batch 8 --length 512 --json layer.json
"""

import argparse
import json
import pathlib
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

import attention_jax as aj

NAMES = ("linen", "separate", "merged")


def functions(args: argparse.Namespace) -> tuple[dict[str, Callable], dict[str, Any], jax.Array]:
    """Returns a causal layer of each name, its variables, and the inputs."""
    x = jax.random.normal(jax.random.key(0), (args.batch, args.length, args.width))
    modules = {
        "linen": nn.MultiHeadDotProductAttention(num_heads=args.heads),
        "separate": aj.SeparateAttention(num_heads=args.heads),
        "merged": aj.MergedAttention(num_heads=args.heads),
    }
    variables = modules["linen"].init(jax.random.key(1), x)
    everything = dict.fromkeys(NAMES, variables) | {"merged": aj.convert(variables, aj.merge)}
    triangle = nn.make_causal_mask(jnp.ones((1, args.length)), dtype=bool)
    masks = {"linen": triangle, "separate": aj.causal(), "merged": aj.causal()}

    def layer(name: str) -> Callable:
        return lambda variables, x: modules[name].apply(variables, x, mask=masks[name])

    return {name: layer(name) for name in NAMES}, everything, x


def gradient(function: Callable) -> Callable:
    """Returns the gradient of a scalar of `function` with respect to variables and inputs."""
    return jax.grad(lambda variables, x: jnp.mean(function(variables, x) ** 2), argnums=(0, 1))


def measure(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Returns one row per name and pass."""
    layers, variables, x = functions(args)
    for name in NAMES[1:]:
        outputs = (layers[key](variables[key], x) for key in ("linen", name))
        np.testing.assert_allclose(*outputs, atol=1e-5)
    compiled = {
        (kind, name): jax.jit(turn(layers[name])).lower(variables[name], x).compile()
        for kind, turn in (("forward", lambda f: f), ("forward+backward", gradient))
        for name in NAMES
    }
    seconds: dict[tuple[str, str], list[float]] = {case: [] for case in compiled}
    for round_index in range(args.rounds + 2):
        for (kind, name), function in compiled.items():
            start = time.perf_counter()
            jax.block_until_ready(function(variables[name], x))
            if round_index >= 2:  # the first rounds only warm up
                seconds[kind, name].append(time.perf_counter() - start)
    rows = []
    for (kind, name), taken in seconds.items():
        ratios = np.array(taken) / np.array(seconds[kind, "linen"])
        memory = compiled[kind, name].memory_analysis()
        rows.append(
            {
                "pass": kind,
                "layer": name,
                "median_ms": float(np.median(taken) * 1e3),
                "ratio": float(np.median(taken) / np.median(seconds[kind, "linen"])),
                "ratio_quartiles": np.percentile(ratios, [25, 75]).tolist(),
                "temporary_mib": memory.temp_size_in_bytes / 2**20,
            }
        )
    return rows


def main() -> None:
    """Parses arguments, measures, prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("batch", 32), ("length", 128), ("width", 128), ("heads", 4)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    rows = measure(args)
    print(f"{'pass':18}{'layer':10}{'median ms':>10}{'ratio':>8}{'quartiles':>16}{'MiB':>8}")
    for row in rows:
        low, high = row["ratio_quartiles"]
        print(
            f"{row['pass']:18}{row['layer']:10}{row['median_ms']:10.1f}{row['ratio']:8.2f}"
            f"{f'{low:.2f} to {high:.2f}':>16}{row['temporary_mib']:8.1f}"
        )
    if args.json:
        settings = {**vars(args), "json": str(args.json), "jax": jax.__version__}
        args.json.write_text(json.dumps({"settings": settings, "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
