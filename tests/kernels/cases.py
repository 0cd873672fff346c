"""Requests for kernels, and the arrays that each form of attention asks them with."""

import jax
import jax.numpy as jnp

from attention_jax.masks import check_mask
from attention_jax.positions import positions_or_default
from attention_jax.request import Request


def request(query, key, value, *, mask=None, bias=None, position=None, scale=None, softcap=None,
            dropout_rate=0.0, dropout_key=None, precision=None, query_positions=None,
            return_weights=False):  # fmt: skip
    *batch, length, heads, width = query.shape
    shape = (*batch, heads, length, key.shape[-3])
    positions = positions_or_default(query_positions, None, query.shape[:-2], key.shape[:-2])
    return Request(
        query, key, value, check_mask(mask, shape, *positions), bias, position,
        width**-0.5 if scale is None else scale, softcap, dropout_rate, dropout_key, precision,
        *positions, aligned=query_positions is None, return_weights=return_weights,
    )  # fmt: skip


# Of each form: heads and width of queries, keys and values, at model width 512 and head width 64.
# All that are "input" are one array.
FORMS = {
    "separate": ((8, 64), (8, 64), (8, 64)),
    "grouped": ((8, 64), (2, 64), (2, 64)),
    "separate, merged OV": ((8, 64), (8, 64), (1, 512)),
    "merged QK": ((8, 512), (1, 512), (8, 64)),
    "merged QK and OV": ((8, 512), "input", "input"),
    "raw": ("input", "input", "input"),
}


def arrays(form, length, sharding=None, dtype=jnp.bfloat16):
    """The distinct arrays of a form, as shapes, and how query, key and value come from them."""
    sizes = FORMS[form]
    apart = [size for size in sizes if size != "input"]
    distinct = apart + [(1, 512)] * ("input" in sizes)
    shapes = [
        jax.ShapeDtypeStruct((1, length, *size), dtype, sharding=sharding) for size in distinct
    ]

    def split(*given):
        remaining = iter(given)
        return [given[-1] if size == "input" else next(remaining) for size in sizes]

    return shapes, split
