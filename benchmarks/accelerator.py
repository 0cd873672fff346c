"""Checks every path on this machine's accelerator against float64, then times them: 8 minutes.

Correctness: each implementation that the platform has, for bfloat16 and float32, shapes of each
form, and mask kinds, against the float64 NumPy reference; gradients against the dense path in
float32. Speed: forward and gradients in bfloat16 over the length, against `jax.nn`'s own kernel,
with the compiler's temporary memory. It runs on a CPU too, with `--lengths 256 512`.

    python -m benchmarks.accelerator --json accelerator.json
"""

import argparse
import functools
import pathlib
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import attention_jax as aj
from attention_jax.testing import reference
from benchmarks import measure
from benchmarks.attention import gradient

IMPLEMENTATIONS = ("dense", "blockwise", "splash", "cudnn", "auto")
# Query heads, key heads, value heads, query width, value width.
SHAPES = {
    "separate": (4, 4, 4, 64, 64),
    "grouped": (4, 2, 2, 64, 64),
    "merged": (4, 1, 4, 256, 64),
    "merged ov": (4, 1, 1, 256, 256),
    "raw": (1, 1, 1, 256, 256),
}
# Rounding of the inputs' products, of weights to the values' dtype, and of the output.
TOLERANCES = {"bfloat16": 2.0**-6, "float32": 2e-5}


def masks(length: int) -> dict[str, tuple[Any, np.ndarray]]:
    """Returns mask objects, and the same by hand."""
    index = np.arange(length)
    triangle = index[None, :] <= index[:, None]
    near = np.abs(index[None, :] - index[:, None]) < 50
    ids = index // 90
    return {
        "none": (None, np.array(True)),
        "causal": (aj.causal(), triangle),
        "window": (aj.causal() & aj.sliding_window(50), triangle & near),
        "padding": (aj.padding(jnp.array([length - 9, 0])), None),
        "segments": (
            aj.causal() & aj.segments(jnp.asarray(ids + 1)),
            triangle & (ids[:, None] == ids),
        ),
    }


def inputs(shape: tuple[int, ...], length: int, dtype: str) -> list[jax.Array]:
    """Returns query, key and value of 2 rows, exact in `dtype`."""
    heads, key_heads, value_heads, width, value_width = shape
    rng = np.random.default_rng(0)
    sizes = ((heads, width), (key_heads, width), (value_heads, value_width))
    return [jnp.asarray(rng.normal(size=(2, length, *size)), dtype) for size in sizes]


def correctness(length: int) -> list[dict[str, Any]]:
    """Returns a row per path, form, mask and dtype: the largest error, or why it was refused."""
    rows = []
    for form, shape in SHAPES.items():
        for dtype, tolerance in TOLERANCES.items():
            arrays = inputs(shape, length, dtype)
            for kind, (mask, by_hand) in masks(length).items():
                if by_hand is None:
                    by_hand = (np.arange(length) < np.array([length - 9, 0])[:, None])[
                        :, None, None
                    ]
                expected, _ = reference.attend(*arrays, mask=by_hand, scale=64**-0.5)
                row = {"form": form, "dtype": dtype, "mask": kind}
                for name in IMPLEMENTATIONS:
                    attend = functools.partial(
                        aj.attend,
                        mask=mask,
                        scale=64**-0.5,
                        implementation=name,
                        precision="highest",
                    )
                    try:
                        output = np.asarray(jax.jit(attend)(*arrays), np.float64)
                        row[name] = float(np.abs(output - expected).max())
                        row["ok"] = row.get("ok", True) and row[name] < tolerance
                    except NotImplementedError as error:
                        row[name] = str(error)
                rows.append(row)
    return rows


def gradients(length: int) -> list[dict[str, Any]]:
    """Returns the largest relative error of float32 gradients against the dense path's."""
    rows = []
    for form, shape in SHAPES.items():
        arrays = inputs(shape, length, "float32")

        def run(name: str, arrays: list[jax.Array] = arrays) -> Any:
            attend = functools.partial(
                aj.attend, mask=aj.causal(), implementation=name, precision="highest"
            )
            return jax.jit(gradient(attend))(*arrays)

        expected = run("dense")
        for name in IMPLEMENTATIONS[1:]:
            try:
                found = run(name)
            except NotImplementedError as error:
                rows.append({"form": form, "name": name, "refused": str(error)})
                continue
            error = max(
                float(jnp.abs(a - b).max() / jnp.abs(a).max())
                for a, b in zip(expected, found, strict=True)
            )
            rows.append({"form": form, "name": name, "relative_error": error, "ok": error < 1e-4})
    return rows


def speed(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Returns rows of times and memory in bfloat16, causal."""
    found = []
    for form in args.forms:
        heads, key_heads, value_heads, width, value_width = SHAPES[form]
        for length in args.lengths:
            arrays = inputs(SHAPES[form], length, "bfloat16")
            functions: dict[str, Callable] = {
                name: functools.partial(aj.attend, mask=aj.causal(), implementation=name)
                for name in IMPLEMENTATIONS
            }
            if (key_heads, width) == (value_heads, value_width):
                functions["jax.nn cudnn"] = functools.partial(
                    jax.nn.dot_product_attention, is_causal=True, implementation="cudnn"
                )
                functions["jax.nn xla"] = functools.partial(
                    jax.nn.dot_product_attention, is_causal=True
                )
            for kind, turn in (("forward", lambda f: f), ("forward+backward", gradient)):
                contenders, memory = {}, {}
                for name, function in functions.items():
                    try:
                        contenders[name], memory[name] = measure.compiled(turn(function), *arrays)
                        contenders[name]()
                    except Exception as error:  # out of memory, or not on this platform
                        print(f"{form} {length} {kind} {name}: {str(error).splitlines()[0][:150]}")
                        contenders.pop(name, None)
                seconds = measure.interleave(contenders, args.rounds)
                for row in measure.rows(seconds, "blockwise", form=form, length=length, kind=kind):
                    found.append(row | {"temporary_mib": memory[row["name"]]})
    return found


def main() -> None:
    """Parses arguments, checks, measures, prints tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096, 16384])
    parser.add_argument(
        "--forms", nargs="+", choices=tuple(SHAPES), default=["separate", "merged ov"]
    )
    parser.add_argument("--check-length", type=int, default=130)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    start = time.perf_counter()
    print(f"device: {jax.devices()[0].device_kind}")
    checked = correctness(args.check_length)
    for row in checked:
        print({k: f"{v:.1e}" if isinstance(v, float) else str(v)[:60] for k, v in row.items()})
    differentiated = gradients(args.check_length)
    for row in differentiated:
        print({k: f"{v:.1e}" if isinstance(v, float) else str(v)[:60] for k, v in row.items()})
    wrong = [row for row in checked + differentiated if not row.get("ok", True)]
    print(f"{len(checked) + len(differentiated)} checks, {len(wrong)} wrong, "
          f"{time.perf_counter() - start:.0f} s")  # fmt: skip
    timed = speed(args)
    print(measure.table(timed, ("form", "kind", "length", "name")))
    measure.save(args.json, args, checked + differentiated + timed)
    print(f"{time.perf_counter() - start:.0f} s")
    if wrong:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
