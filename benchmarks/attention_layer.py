"""Times whole layers against Flax's two and PyTorch's, over length, width and heads, side by side.

All but merged-OV and raw layers get the same function, and their outputs are compared first. Runs
take turns; printed are medians, the ratio of medians to Flax linen's layer with the quartiles of
the ratio per round, and the compiler's temporary memory.

    python -m benchmarks.attention_layer
    python -m benchmarks.attention_layer --lengths 128 512 2048 --batch 4 --json layer.json
"""

import argparse
import itertools
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

NAMES = ("linen", "nnx", "torch", "separate", "merged", "merged ov", "raw")


def layers(
    x: np.ndarray, heads: int, implementation: str
) -> dict[str, tuple[Callable[..., jax.Array], Any]]:
    """Returns causal layers as functions of variables and inputs, with their variables."""
    linen = nn.MultiHeadDotProductAttention(num_heads=heads)
    variables = jax.jit(linen.init)(jax.random.key(1), x)
    params = variables["params"]
    twin = nnx.MultiHeadAttention(
        num_heads=heads, in_features=x.shape[-1], decode=False, rngs=nnx.Rngs(0)
    )
    graph, state = nnx.split(twin)
    nnx.replace_by_pure_dict(state, params)
    triangle = nn.make_causal_mask(jnp.ones((1, x.shape[-2])), dtype=bool)
    settings = {"num_heads": heads, "implementation": implementation}
    ours = {
        "separate": (aj.SeparateAttention(**settings), params),
        "merged": (aj.MergedAttention(**settings), aj.merge(params)),
        "merged ov": (aj.MergedAttention(ov="merged", **settings), aj.merge(params, ov=True)),
        "raw": (aj.RawAttention(implementation=implementation), {}),
    }

    def layer(module: nn.Module) -> Callable[..., jax.Array]:
        return lambda params, x: module.apply({"params": params}, x, mask=aj.causal())

    return {
        "linen": (lambda p, x: linen.apply({"params": p}, x, mask=triangle), params),
        "nnx": (lambda state, x: nnx.merge(graph, state)(x, mask=triangle), state),
    } | {name: (layer(module), params) for name, (module, params) in ours.items()}


def torch_layer(torch: Any, x: np.ndarray, heads: int, params: Any) -> dict[str, Callable]:
    """Returns both passes of `torch.nn.MultiheadAttention` with the same weights."""
    width = x.shape[-1]
    layer = torch.nn.MultiheadAttention(width, heads, batch_first=True)
    kernels = [np.asarray(params[name]["kernel"]) for name in ("query", "key", "value")]
    with torch.no_grad():
        joined = np.concatenate([kernel.reshape(width, width).T for kernel in kernels])
        layer.in_proj_weight.copy_(torch.tensor(joined))
        out = np.asarray(params["out"]["kernel"]).reshape(width, width).T
        layer.out_proj.weight.copy_(torch.tensor(out.copy()))
    inputs = torch.tensor(x, requires_grad=True)
    hidden = torch.nn.Transformer.generate_square_subsequent_mask(x.shape[-2])

    def attend() -> Any:
        return layer(inputs, inputs, inputs, attn_mask=hidden, is_causal=True, need_weights=False)[
            0
        ]

    def forward() -> Any:
        with torch.no_grad():
            return attend()

    def both() -> None:
        layer.zero_grad()
        inputs.grad = None
        (attend() ** 2).mean().backward()

    return {"forward": forward, "forward+backward": both}


def gradient(function: Callable) -> Callable:
    """Returns the gradient of a scalar of `function` with respect to variables and inputs."""
    return jax.grad(lambda variables, x: jnp.mean(function(variables, x) ** 2), argnums=(0, 1))


def measure_size(
    args: argparse.Namespace, length: int, width: int, heads: int, torch: Any
) -> list[dict[str, Any]]:
    """Returns the rows of one size."""
    x = np.random.default_rng(0).normal(size=(args.batch, length, width)).astype(np.float32)
    everything = layers(x, heads, args.implementation)
    others = {}
    if torch is not None:
        others = torch_layer(torch, x, heads, everything["linen"][1])
    found = []
    for kind, turn in (("forward", lambda f: f), ("forward+backward", gradient)):
        contenders, memory = {}, {}
        for name in args.names:
            if name == "torch":
                if others:
                    contenders[name] = others[kind]
                continue
            function, variables = everything[name]
            contenders[name], memory[name] = measure.compiled(turn(function), variables, x)
        if kind == "forward":
            expected = np.asarray(everything["linen"][0](everything["linen"][1], x))
            for name, run in contenders.items():
                if name != "raw":
                    np.testing.assert_allclose(np.asarray(run()), expected, atol=2e-5, err_msg=name)
        seconds = measure.interleave(contenders, args.rounds)
        size = {"kind": kind, "length": length, "width": width, "heads": heads}
        for row in measure.rows(seconds, args.names[0], **size):
            found.append(row | {"temporary_mib": memory.get(row["name"])})
    return found


def main() -> None:
    """Parses arguments, measures, prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--lengths", type=int, nargs="+", default=[128])
    parser.add_argument("--widths", type=int, nargs="+", default=[128])
    parser.add_argument("--heads", type=int, nargs="+", default=[4])
    parser.add_argument("--names", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--implementation", default="auto")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    torch = measure.torch_or_none() if "torch" in args.names else None
    found = []
    for sizes in itertools.product(args.lengths, args.widths, args.heads):
        found += measure_size(args, *sizes, torch)
    print(measure.table(found, ("kind", "length", "width", "heads", "name")))
    measure.save(args.json, args, found)


if __name__ == "__main__":
    main()
