"""Parameter trees of one attention layer: what belongs in them, and checks."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from attention_jax import checks
from attention_jax.types import Array, Parameters

SEPARATE_QK = ("query", "key")
NORMS = ("query_ln", "key_ln")
_ENTRIES = {
    "query": {"kernel", "bias"},
    "key": {"kernel", "bias"},
    "query_ln": {"scale"},
    "key_ln": {"scale"},
    "value": {"kernel", "bias"},
    "out": {"kernel", "bias"},
    "qk": {"kernel", "bias", "row_kernel", "row_bias"},
    "ov": {"kernel", "bias"},
}


def is_layer(tree: Any) -> bool:
    """Tells whether `tree` holds the parameters of one attention layer of a known form."""
    if not isinstance(tree, Mapping) or not all(isinstance(x, Mapping) for x in tree.values()):
        return False
    has_qk = "qk" in tree or all(name in tree for name in SEPARATE_QK)
    return has_qk and ("ov" in tree or ("value" in tree and "out" in tree))


def check_layer(params: Parameters) -> None:
    """Raises unless `params` are the parameters of one attention layer, and nothing else."""
    if not is_layer(params):
        raise checks.refuse(
            ValueError,
            "params",
            "the parameters of one attention layer: query and key, or qk; value and out, or ov",
            sorted(params) if isinstance(params, Mapping) else type(params).__name__,
            "pass variables['params'] of one layer, or use aj.convert for a whole model",
        )
    unknown = sorted(set(params) - set(_ENTRIES)) + sorted(
        f"{group}/{name}"
        for group in params
        for name in set(params[group]) - _ENTRIES.get(group, set(params[group]))
    )
    if unknown:
        raise checks.refuse(
            ValueError,
            "params",
            "entries that this library knows",
            ", ".join(unknown),
            "remove what is not part of the layer; nothing is dropped silently",
        )
    for group, entries in params.items():
        for name, leaf in entries.items():
            if not checks.is_array(leaf):
                raise checks.refuse(
                    TypeError,
                    f"params {group}/{name}",
                    "an array",
                    type(leaf).__name__,
                    "remove the boxes of partition metadata with flax.linen.meta.unbox first",
                )
            checks.check_floating(f"params {group}/{name}", leaf)
        ndim = entries["kernel"].ndim if "kernel" in entries else 3
        if ndim != 3:
            raise checks.refuse(
                ValueError,
                f"params {group}/kernel",
                "three axes, one layer",
                f"{ndim} axes",
                "map over stacked layers with jax.vmap",
            )


def wide(params: Parameters) -> dict[str, dict[str, Array]]:
    """Returns a copy in float32, or in the parameters' own precision where that is wider."""
    return {
        group: {
            name: jnp.asarray(leaf, jnp.promote_types(leaf.dtype, jnp.float32))
            for name, leaf in entries.items()
        }
        for group, entries in params.items()
    }


def homogeneous(entries: Parameters, axis: int) -> Array:
    """Returns the kernel with its bias as one more entry along `axis`, zeros if it has none."""
    kernel = entries["kernel"]
    shape = kernel.shape[:axis] + kernel.shape[axis + 1 :]
    bias = entries["bias"] if "bias" in entries else jnp.zeros(shape, kernel.dtype)
    return jnp.concatenate([kernel, jnp.expand_dims(bias, axis)], axis=axis)
