"""Which implementation answers a request."""

import math

from attention_jax import checks
from attention_jax.core.blockwise import Plan, blockwise_attention, plan
from attention_jax.core.dense import dense_attention
from attention_jax.request import Request
from attention_jax.types import Heads, Weights

IMPLEMENTATIONS = ("auto", "dense", "blockwise", "splash", "cudnn")

# Measured on two CPU cores in float32, forward and with gradients, widths 32 to 384: from these
# sizes on blocks are faster than whole scores, or as fast; below, up to twice as slow.
_BLOCKWISE_PAIRS = 2**19
_BLOCKWISE_SCORES = 2**24
_FEW_QUERIES = 16


def run(request: Request, implementation: str) -> Heads | tuple[Heads, Weights]:
    """Returns the answer of `implementation`, or of the one that "auto" chooses."""
    if implementation == "auto":
        implementation = chosen(request)
    if implementation in ("splash", "cudnn"):
        raise checks.refuse(NotImplementedError, "implementation", "auto", implementation, "use auto")
    if request.return_weights and implementation == "blockwise":
        raise checks.refuse(NotImplementedError, "return_weights", "False by blocks", True, "use dense")
    if implementation == "dense":
        output, weights = dense_attention(request)
        return (output, weights) if request.return_weights else output
    return blockwise_attention(request, _plan(request))


def chosen(request: Request) -> str:
    """Returns what "auto" takes: dense for small scores, else a kernel if one can, else blocks."""
    *batch, length, heads, _ = request.query.shape
    pairs = length * request.key.shape[-3]
    small = pairs < _BLOCKWISE_PAIRS and math.prod(batch) * heads * pairs < _BLOCKWISE_SCORES
    if request.return_weights or small or length < _FEW_QUERIES:
        return "dense"
    return "blockwise"


def _plan(request: Request) -> Plan:
    *batch, length, heads, _ = request.query.shape
    return plan(
        math.prod(batch),
        heads,
        request.key.shape[-2],
        request.value.shape[-2],
        (length, request.key.shape[-3]),
        on_cpu=True,
    )
