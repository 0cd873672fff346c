"""Which implementation answers a request."""

import math

from attention_jax import checks
from attention_jax.core.blockwise import blockwise_attention, plan
from attention_jax.core.dense import dense_attention
from attention_jax.request import Request
from attention_jax.types import Heads, Weights

IMPLEMENTATIONS = ("auto", "dense", "blockwise", "splash", "cudnn")


def run(request: Request, implementation: str) -> Heads | tuple[Heads, Weights]:
    """Returns the answer of `implementation`, or of the one that "auto" chooses."""
    if implementation == "auto":
        implementation = "dense"
    if implementation == "dense":
        output, weights = dense_attention(request)
        return (output, weights) if request.return_weights else output
    if request.return_weights:
        raise checks.refuse(NotImplementedError, "return_weights", "False with implementation='blockwise'", True, "use 'dense'")
    if implementation == "blockwise":
        *batch, length, heads, _ = request.query.shape
        sizes = (heads, request.key.shape[-2], request.value.shape[-2])
        tile = plan(math.prod(batch), *sizes, (length, request.key.shape[-3]), True)
        return blockwise_attention(request, tile)
