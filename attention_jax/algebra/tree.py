"""Parameter trees of one attention layer: what belongs in them, and checks."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from attention_jax import checks
from attention_jax.types import Array, Parameters

SEPARATE_QK = ("query", "key")
# Where the kernels that belong to query heads have them.
_HEAD_AXES = {"query": 1, "qk": 1, "ov": 0, "out": 0}
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
    """Tells whether `tree` has the parameters of an attention layer of a known form."""
    if not isinstance(tree, Mapping):
        return False
    has = {name for name, entries in tree.items() if isinstance(entries, Mapping)}
    return ({"qk"} <= has or set(SEPARATE_QK) <= has) and ({"ov"} <= has or {"value", "out"} <= has)


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
        for group in set(params) & set(_ENTRIES)
        for name in set(params[group]) - _ENTRIES[group]
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
                "use aj.convert, which goes through stacked layers, or jax.vmap",
            )
    _check_sizes(params)


def _check_sizes(params: Parameters) -> None:
    """Raises ValueError unless heads and widths of the kernels fit each other, and the biases."""
    shapes = {
        group: entries["kernel"].shape for group, entries in params.items() if "kernel" in entries
    }
    query_heads = {name: shapes[name][axis] for name, axis in _HEAD_AXES.items() if name in shapes}
    heads = set(query_heads.values())
    if len(heads) != 1:
        raise checks.refuse(
            ValueError,
            "params",
            "equally many query heads in all kernels",
            query_heads,
            "pass the parameters of one layer",
        )
    for name in ("key", "value"):
        if name in shapes:
            checks.check_heads(next(iter(heads)), shapes[name][1])
    for one, other, axis in (("query", "key", 2), ("value", "out", 1)):
        if one in shapes and other in shapes and shapes[one][2] != shapes[other][axis]:
            raise checks.refuse(
                ValueError,
                f"params {other}/kernel",
                f"heads of width {shapes[one][2]} as {one}/kernel",
                f"shape {shapes[other]}",
                "pass the parameters of one layer",
            )
    for group, entries in params.items():
        if group not in shapes:
            continue
        expected = {"bias": _bias_shape(group, shapes[group])}
        if group == "qk":
            expected |= {"row_kernel": shapes[group][:2], "row_bias": shapes[group][1:2]}
        for name, shape in expected.items():
            if name in entries and entries[name].shape != shape:
                raise checks.refuse(
                    ValueError,
                    f"params {group}/{name}",
                    f"shape {shape}, to fit the kernel's {shapes[group]}",
                    f"shape {entries[name].shape}",
                    "pass the parameters of one layer",
                )


def _bias_shape(group: str, kernel: tuple[int, ...]) -> tuple[int, ...]:
    if group == "ov":
        return (kernel[0], kernel[2])
    return kernel[2:] if group == "out" else kernel[1:]


def wide(params: Parameters) -> dict[str, dict[str, Array]]:
    """Returns a copy in float32, or in the parameters' own precision where that is wider."""

    def widened(leaf: Array) -> Array:
        array = jnp.asarray(leaf)
        return array.astype(jnp.promote_types(array.dtype, jnp.float32))

    return {
        group: {name: widened(leaf) for name, leaf in entries.items()}
        for group, entries in params.items()
    }


def homogeneous(entries: Parameters, axis: int) -> Array:
    """Returns the kernel with its bias as one more entry along `axis`, zeros if it has none."""
    kernel = entries["kernel"]
    shape = kernel.shape[:axis] + kernel.shape[axis + 1 :]
    bias = entries["bias"] if "bias" in entries else jnp.zeros(shape, kernel.dtype)
    return jnp.concatenate([kernel, jnp.expand_dims(bias, axis)], axis=axis)
