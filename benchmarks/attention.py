"""Times `attend` against jax.nn, Flax and PyTorch over the length, side by side.

All get the same queries, keys and values, and their outputs are compared first. Runs take turns;
printed are medians, the ratio of medians to `--reference` with the quartiles of the ratio per
round, the compiler's temporary memory, and exponents of growth with the length.

    python -m benchmarks.attention
    python -m benchmarks.attention --lengths 512 1024 2048 4096 --rounds 9 --json attention.json
    python -m benchmarks.attention --lengths 65536 --heads 1 --names blockwise --rounds 1
"""

import argparse
import functools
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import nnx

import attention_jax as aj
from benchmarks import measure

NAMES = ("torch", "blockwise", "auto", "dense", "jax.nn", "linen", "nnx")


def functions(names: list[str], mask: str) -> dict[str, Callable]:
    """Returns the functions of queries, keys and values that run in JAX."""
    causal = mask == "causal"
    ours = aj.causal() if causal else None

    def triangle(query: jax.Array) -> jax.Array | None:
        return nn.make_causal_mask(query[..., 0, 0], dtype=bool) if causal else None

    everything = {
        name: functools.partial(aj.attend, mask=ours, implementation=name)
        for name in ("blockwise", "auto", "dense")
    } | {
        "jax.nn": functools.partial(jax.nn.dot_product_attention, is_causal=causal),
        "linen": lambda q, k, v: nn.dot_product_attention(q, k, v, mask=triangle(q)),
        "nnx": lambda q, k, v: nnx.dot_product_attention(q, k, v, is_causal=causal),
    }
    return {name: everything[name] for name in names if name in everything}


def gradient(function: Callable) -> Callable:
    """Returns the gradients of the sum of squares of the output."""
    return jax.grad(lambda *arrays: jnp.sum(function(*arrays) ** 2), argnums=(0, 1, 2))


def torch_runs(torch: Any, arrays: list[np.ndarray], causal: bool) -> dict[str, Callable]:
    """Returns PyTorch's forward pass and gradient."""
    leaves = [torch.tensor(x.swapaxes(1, 2).copy(), requires_grad=True) for x in arrays]
    attend = functools.partial(
        torch.nn.functional.scaled_dot_product_attention, *leaves, is_causal=causal
    )

    def forward() -> Any:
        with torch.no_grad():
            return attend()

    def both() -> None:
        for leaf in leaves:
            leaf.grad = None
        (attend() ** 2).sum().backward()

    return {"forward": forward, "forward+backward": both}


def measure_length(args: argparse.Namespace, length: int, torch: Any) -> list[dict[str, Any]]:
    """Returns the rows of one length."""
    shape = (3, args.batch, length, args.heads, args.width)
    arrays = list(np.random.default_rng(0).normal(size=shape).astype(np.float32))
    ours = functions(args.names, args.mask)
    torch_passes = torch_runs(torch, arrays, args.mask == "causal") if torch else {}
    expected = None
    if torch_passes:
        expected = torch_passes["forward"]().numpy().swapaxes(1, 2)
    found = []
    for name, turn in (("forward", lambda f: f), ("forward+backward", gradient)):
        contenders, memory = {}, {}
        if name in torch_passes:
            contenders["torch"] = torch_passes[name]
        for key, function in ours.items():
            contenders[key], memory[key] = measure.compiled(turn(function), *arrays)
            if name == "forward":
                output = contenders[key]()
                expected = output if expected is None else expected
                np.testing.assert_allclose(output, expected, atol=2e-5)
        seconds = measure.interleave(contenders, args.rounds, warm=1)
        reference = args.reference if args.reference in seconds else next(iter(seconds))
        for row in measure.rows(seconds, reference, length=length, kind=name):
            found.append(row | {"temporary_mib": memory.get(row["name"])})
    return found


def growth(found: list[dict[str, Any]]) -> str:
    """Returns the exponents of time and memory with the length, per contender and pass."""
    lines = []
    for kind in ("forward", "forward+backward"):
        for name in dict.fromkeys(row["name"] for row in found):
            own = [row for row in found if (row["kind"], row["name"]) == (kind, name)]
            lengths = [row["length"] for row in own]
            time = measure.exponent(lengths, [row["median_ms"] for row in own])
            line = f"{kind} {name}: time {time:.2f}"
            if own[0]["temporary_mib"]:
                memory = [row["temporary_mib"] for row in own]
                line += f", memory {measure.exponent(lengths, memory):.2f}"
            lines.append(line)
    return "\n".join(lines)


def main() -> None:
    """Parses arguments, measures, prints tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[4096])
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--width", type=int, default=64, help="of a head")
    parser.add_argument("--mask", choices=("causal", "none"), default="causal")
    parser.add_argument("--names", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--reference", choices=NAMES, default="torch")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    torch = measure.torch_or_none() if "torch" in args.names else None
    found = []
    for length in args.lengths:
        found += measure_length(args, length, torch)
    print(measure.table(found, ("kind", "length", "name")))
    if len(args.lengths) > 1:
        print("\nexponents of growth with the length\n" + growth(found))
    measure.save(args.json, args, found)


if __name__ == "__main__":
    main()
