"""Which implementation answers a request."""

import math
from typing import cast, get_args

from attention_jax import kernels
from attention_jax.core.blockwise import Plan, blockwise_attention, plan
from attention_jax.core.dense import dense_attention
from attention_jax.core.derivatives import reverse_mode_only
from attention_jax.kernels import Implementation
from attention_jax.request import Request
from attention_jax.types import Heads, Weights

IMPLEMENTATIONS = ("auto", *get_args(Implementation))

# Measured on two CPU cores in float32, forward and with gradients, widths 32 to 384: from these
# sizes on blocks are faster than whole scores, or as fast; below, up to twice as slow.
_BLOCKWISE_PAIRS = 2**19
_BLOCKWISE_SCORES = 2**24
_FEW_QUERIES = 16


def run(request: Request, implementation: str) -> Heads | tuple[Heads, Weights]:
    """Returns the answer of `implementation`, or of the one that "auto" chooses."""
    name = chosen(request) if implementation == "auto" else cast(Implementation, implementation)
    kernels.check(name, request, kernels.platform())
    if name == "dense":
        output, weights = dense_attention(request)
        return (output, weights) if request.return_weights else output
    if name == "blockwise":
        return blockwise_attention(request, _plan(request))
    guarded = request._replace(
        query=reverse_mode_only(request.query),
        key=reverse_mode_only(request.key),
        value=reverse_mode_only(request.value),
    )
    return {"splash": kernels.splash_attention, "cudnn": kernels.cudnn_attention}[name](guarded)


def chosen(request: Request) -> Implementation:
    """Returns what "auto" takes: dense for small scores, else a kernel if one can, else blocks."""
    *batch, length, heads, _ = request.query.shape
    pairs = length * request.key.shape[-3]
    small = pairs < _BLOCKWISE_PAIRS and math.prod(batch) * heads * pairs < _BLOCKWISE_SCORES
    if request.return_weights or small or length < _FEW_QUERIES:
        return "dense"
    platform = kernels.platform()
    # The compiler cannot cut the TPU kernel over devices, and would refuse the whole program.
    candidates: tuple[Implementation, ...] = ("cudnn", "blockwise")
    if kernels.one_device():
        candidates = ("splash", *candidates)
    for name in candidates:
        if kernels.refusal(name, request, platform) is None:
            return name
    return "dense"


def _plan(request: Request) -> Plan:
    *batch, length, heads, _ = request.query.shape
    return plan(
        math.prod(batch),
        heads,
        request.key.shape[-2],
        request.value.shape[-2],
        (length, request.key.shape[-3]),
        on_cpu=kernels.platform() == "cpu",
    )
