"""Interleaved timings: medians, their ratio to a reference, spread, tables and JSON."""

import argparse
import json
import os
import pathlib
import platform
import time
from collections.abc import Callable, Mapping
from typing import Any

# Threads of PyTorch that wait for work must not take the cores from the next contender.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import jax  # noqa: E402
import numpy as np  # noqa: E402

Contenders = Mapping[str, Callable[[], Any]]


def interleave(contenders: Contenders, rounds: int, warm: int = 2) -> dict[str, list[float]]:
    """Returns the seconds of each contender in each round; all take turns.

    A contender returns when its work is done. The first `warm` rounds are not counted.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for index in range(warm + rounds):
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            if index >= warm:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def rows(seconds: Mapping[str, list[float]], reference: str, **more: Any) -> list[dict[str, Any]]:
    """Returns a row per contender: median, ratio of medians, quartiles of the ratio per round."""
    base = np.array(seconds[reference])
    return [
        {
            **more,
            "name": name,
            "median_ms": float(np.median(taken) * 1e3),
            "ratio": float(np.median(taken) / np.median(base)),
            "ratio_quartiles": np.percentile(np.array(taken) / base, [25, 75]).tolist(),
        }
        for name, taken in seconds.items()
    ]


def exponent(sizes: list[int], values: list[float]) -> float:
    """Returns p of the least-squares fit `value ~ size ** p`."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def table(found: list[dict[str, Any]], columns: tuple[str, ...]) -> str:
    """Returns a plain table of `columns`, then median, ratio, quartiles and memory."""
    head = [*columns, "median ms", "ratio", "quartiles", "MiB"]
    body = []
    for row in found:
        low, high = row["ratio_quartiles"]
        memory = row.get("temporary_mib")
        body.append(
            [
                *(str(row[column]) for column in columns),
                f"{row['median_ms']:.2f}",
                f"{row['ratio']:.2f}",
                f"{low:.2f} to {high:.2f}",
                "" if memory is None else f"{memory:.1f}",
            ]
        )
    widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
    lines = [
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        for line in (head, *body)
    ]
    return "\n".join(lines)


def save(path: pathlib.Path | None, args: argparse.Namespace, found: list[dict[str, Any]]) -> None:
    """Writes settings, versions, machine and rows as JSON, if there is a path."""
    if path is None:
        return
    settings = {name: str(value) for name, value in vars(args).items()}
    machine = {
        "jax": jax.__version__,
        "device": jax.devices()[0].device_kind,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }
    path.write_text(json.dumps({"settings": settings, "machine": machine, "rows": found}, indent=1))


def compiled(function: Callable, *arguments: Any) -> tuple[Callable[[], Any], float]:
    """Returns a contender that runs `function` compiled, and its temporary memory in MiB."""
    program = jax.jit(function).lower(*arguments).compile()
    memory = program.memory_analysis().temp_size_in_bytes / 2**20
    return lambda: jax.block_until_ready(program(*arguments)), memory


def torch_or_none() -> Any:
    """Returns PyTorch with as many threads as there are cores, or None where it is missing."""
    try:
        import torch
    except ImportError:
        print("PyTorch is not installed: its rows are left out (pip install torch)")
        return None
    torch.set_num_threads(os.cpu_count() or 1)
    return torch
