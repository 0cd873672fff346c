"""Initial values of kernels: flat ones as Flax draws them, and merged ones."""

import math
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from attention_jax import checks
from attention_jax.types import Array

Initializer = Callable[..., Array]
MergedInit = Literal["product", "iid", "zero", "symmetric"] | Initializer
_NAMES = ("product", "iid", "zero", "symmetric")


def flattened(init: Initializer, num_inputs: int) -> Initializer:
    """Returns `init` applied to a matrix: the first `num_inputs` axes times all others.

    Fans are those of the matrix, and the numbers are those of `flax.linen.DenseGeneral`. Metadata
    that `init` attaches (partition names) names the axes of the whole shape. With `num_inputs=0`
    the numbers are drawn as one vector, as Flax does for a bias.
    """

    def initialise(key: Array, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        inputs, outputs = math.prod(shape[:num_inputs]), math.prod(shape[num_inputs:])
        flat = init(key, (inputs, outputs) if num_inputs else (outputs,), dtype)
        # A box with metadata is a pytree whose only leaf is the array.
        return jax.tree.map(lambda leaf: jnp.reshape(leaf, shape), flat)

    return initialise


def check_merged_init(argument: str, init: MergedInit) -> None:
    """Raises ValueError unless `init` is one of the four names or a function."""
    if not callable(init):
        checks.check_choice(argument, init, _NAMES)


def merged_qk(
    init: MergedInit, kernel_init: Initializer, head_dim: int, num_kv_heads: int
) -> Initializer:
    """Returns an initialiser of W_qk `(D, H, E)`.

    "product" draws W_q and W_k as the separate form does and multiplies them: the same function in
    distribution. "iid" and "symmetric" draw normal entries, scaled so that each head has the norm
    of that product; "symmetric" is then full-rank with `W = W^T`. "zero" is zero.
    """

    def product(key: Array, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        query_width, heads, key_width = shape
        query_key, key_key = jax.random.split(key)
        w_q = _draw(kernel_init, 1, query_key, (query_width, heads, head_dim), dtype)
        w_k = _draw(kernel_init, 1, key_key, (key_width, num_kv_heads, head_dim), dtype)
        w_k = jnp.repeat(w_k, heads // num_kv_heads, axis=1)
        return jnp.einsum("DHK,EHK->DHE", w_q, w_k, precision="highest")

    return init if callable(init) else _named(init, product, matrix_axes=(0, 2))


def merged_ov(
    init: MergedInit,
    kernel_init: Initializer,
    out_kernel_init: Initializer,
    head_dim: int,
    num_kv_heads: int,
) -> Initializer:
    """Returns an initialiser of W_ov `(H, E, O)`; the names mean what they mean in `merged_qk`."""

    def product(key: Array, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        heads, value_width, out_width = shape
        value_key, out_key = jax.random.split(key)
        w_v = _draw(kernel_init, 1, value_key, (value_width, num_kv_heads, head_dim), dtype)
        w_v = jnp.repeat(w_v, heads // num_kv_heads, axis=1)
        w_o = _draw(out_kernel_init, 2, out_key, (heads, head_dim, out_width), dtype)
        return jnp.einsum("EHV,HVO->HEO", w_v, w_o, precision="highest")

    return init if callable(init) else _named(init, product, matrix_axes=(1, 2))


def _draw(
    init: Initializer, num_inputs: int, key: Array, shape: tuple[int, ...], dtype: DTypeLike
) -> Array:
    """Returns one factor without metadata, whose axis names would not be those of the product."""
    return jax.tree.leaves(flattened(init, num_inputs)(key, shape, dtype))[0]


def _named(name: str, product: Initializer, matrix_axes: tuple[int, int]) -> Initializer:
    rows, columns = matrix_axes

    def initialise(key: Array, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        if name == "symmetric" and shape[rows] != shape[columns]:
            raise checks.refuse(
                ValueError,
                "symmetric initialisation",
                "equal input widths on both sides",
                f"{shape[rows]} and {shape[columns]}",
                "use 'product' or 'iid'",
            )
        if name == "zero":
            return jnp.zeros(shape, dtype)
        product_key, normal_key = jax.random.split(key)
        wide = jnp.promote_types(dtype, jnp.float32)
        drawn = product(product_key, shape, wide)
        if name != "product":
            normal = jax.random.normal(normal_key, shape, wide)
            if name == "symmetric":
                normal = normal + jnp.swapaxes(normal, rows, columns)
            drawn = normal * (_norms(drawn, matrix_axes) / _norms(normal, matrix_axes))
        return drawn.astype(dtype)

    return initialise


def _norms(kernels: Array, matrix_axes: tuple[int, int]) -> Array:
    return jnp.sqrt(jnp.sum(jnp.square(kernels), axis=matrix_axes, keepdims=True))
