"""Flash attention of cuDNN, through JAX's `jax.nn.dot_product_attention`."""

import math
from typing import Any, Literal

import jax
import jax.numpy as jnp

from attention_jax.kernels.capability import check
from attention_jax.kernels.pattern import pattern
from attention_jax.kernels.target import platform
from attention_jax.masks.arrays import one_batch_axis
from attention_jax.request import Request
from attention_jax.types import Array, Heads


def cudnn_attention(request: Request) -> Heads:
    """Returns the output of `attend` `[..., T, H, V]` by cuDNN's flash attention.

    Grouped heads go to the kernel as they are. Array masks, biases and dropout do not: it would
    hold them as `[..., H, T, S]`, gives a row that sees nothing the mean of what is hidden, and
    drops other weights than the other implementations do.

    Raises:
      NotImplementedError: See `refusal`; or the platform is not a GPU.
    """
    check("cudnn", request, platform())
    return flash(request, "cudnn")


def flash(request: Request, implementation: Literal["cudnn", "xla"]) -> Heads:
    """Returns the output by JAX's function; "xla" gives its arguments the same meaning anywhere."""
    *batch, length, _, _ = request.query.shape
    rows, key_length = math.prod(batch), request.key.shape[-3]
    query, key, value = (
        x.reshape(rows, *x.shape[-3:]) for x in (request.query, request.key, request.value)
    )
    found = pattern(request.mask)
    settings: dict[str, Any] = {}
    sees = None
    if found.lengths:
        lengths = jnp.full((rows,), key_length, jnp.int32)
        for real in found.lengths:
            lengths = jnp.minimum(lengths, one_batch_axis(real, tuple(batch), 0)).astype(jnp.int32)
        sees = _per_row(lengths > 0)
        # Whatever the kernel leaves in gradients behind a length does not come through.
        inside = jnp.arange(key_length)[None, :, None, None] < _per_row(lengths)
        key, value = jnp.where(inside, key, 0), jnp.where(inside, value, 0)
        settings["key_value_seq_lengths"] = jnp.maximum(lengths, 1)
    if found.window is not None:
        settings["local_window_size"] = (found.window - 1, 0)
    output = jax.nn.dot_product_attention(
        query,
        key,
        value,
        scale=float(request.scale),
        is_causal=found.causal,
        implementation=implementation,
        **settings,
    )
    if sees is not None:
        output = jnp.where(sees, output, 0)
    return output.reshape(*batch, length, *output.shape[-2:])


def _per_row(x: Array) -> Array:
    """Returns `[B]` as `[B, 1, 1, 1]`."""
    return x[:, None, None, None]
