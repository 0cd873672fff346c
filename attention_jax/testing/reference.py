"""Attention in float64 NumPy, one score at a time: the judge of every path.

It shares no code with the library, takes nothing but arrays and checks nothing.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

Layer = Mapping[str, Mapping[str, Any]]


def attend(
    query: Any,
    key: Any,
    value: Any,
    mask: Any | None = None,
    bias: Any | None = None,
    scale: float | None = None,
    softcap: float | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns `(output, weights)` as `attention_jax.attend` defines them."""
    query, key, value = (np.asarray(x, np.float64) for x in (query, key, value))
    *batch, length, heads, width = query.shape
    shape = (*batch, heads, length, key.shape[-3])
    scale = 1.0 / np.sqrt(width) if scale is None else scale
    visible = np.broadcast_to(True if mask is None else np.asarray(mask), shape)
    added = np.broadcast_to(0.0 if bias is None else np.asarray(bias, np.float64), shape)
    weights = np.zeros(shape)
    output = np.zeros((*batch, length, heads, value.shape[-1]))
    for index in np.ndindex(*batch, heads, length):
        *row, head, t = index
        at = tuple(row)
        key_head = head // (heads // key.shape[-2])
        value_head = head // (heads // value.shape[-2])
        seen = [s for s in range(shape[-1]) if visible[(*index, s)]]
        scores = []
        for s in seen:
            score = scale * float(query[(*at, t, head)] @ key[(*at, s, key_head)])
            score = score if softcap is None else softcap * np.tanh(score / softcap)
            scores.append(score + added[(*index, s)])
        if not seen or max(scores) == -np.inf:
            continue
        exponentials = [np.exp(score - max(scores)) for score in scores]
        for s, exponential in zip(seen, exponentials, strict=True):
            weights[(*index, s)] = exponential / sum(exponentials)
            output[(*at, t, head)] += weights[(*index, s)] * value[(*at, s, value_head)]
    return output, weights


def layer(
    params: Layer, inputs_q: Any, inputs_k: Any, inputs_v: Any, head_dim: int, **settings: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Returns `(output, weights)` of a separate layer with the settings of `attend`."""
    x, y, z = (np.asarray(inputs, np.float64) for inputs in (inputs_q, inputs_k, inputs_v))
    query, key, value = (
        np.einsum("...d,dhk->...hk", inputs, np.asarray(params[name]["kernel"], np.float64))
        + np.asarray(params[name].get("bias", 0.0), np.float64)
        for name, inputs in (("query", x), ("key", y), ("value", z))
    )
    settings = {"scale": head_dim**-0.5, **settings}
    heads, weights = attend(query, key, value, **settings)
    kernel = np.asarray(params["out"]["kernel"], np.float64)
    output = np.einsum("...hv,hvo->...o", heads, kernel)
    return output + np.asarray(params["out"].get("bias", 0.0), np.float64), weights
