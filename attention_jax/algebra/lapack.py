"""Decompositions of stacks of matrices, one matrix after another.

On CPUs JAX splits a batched decomposition into tasks for XLA's own threads, and waits for them on
one of these threads. Two decompositions that run at once can fill a small pool with waiting
threads, and the program never ends (seen with jaxlib 0.10.2 on two cores).
"""

import jax
import jax.numpy as jnp

from attention_jax.types import Array, Complex, Float

Matrices = Float[Array, "H M N"]


@jax.jit
def qr(matrices: Matrices) -> tuple[Float[Array, "H M Q"], Float[Array, "H Q N"]]:
    """Returns `(q, r)` with `q r` the matrices and orthonormal columns of `q`."""
    return jax.lax.map(lambda matrix: tuple(jnp.linalg.qr(matrix)), matrices)


@jax.jit
def triangle(matrices: Matrices) -> Float[Array, "H Q N"]:
    """Returns `r` of `qr` alone."""
    return jax.lax.map(lambda matrix: jnp.linalg.qr(matrix, mode="r"), matrices)


@jax.jit
def svd(
    matrices: Matrices,
) -> tuple[Float[Array, "H M Q"], Float[Array, "H Q"], Float[Array, "H Q N"]]:
    """Returns `(u, s, v^T)`, singular values descending."""
    return jax.lax.map(lambda x: tuple(jnp.linalg.svd(x, full_matrices=False)), matrices)


@jax.jit
def singular_values(matrices: Matrices) -> Float[Array, "H Q"]:
    """Returns the singular values, descending."""
    return jax.lax.map(lambda matrix: jnp.linalg.svd(matrix, compute_uv=False), matrices)


@jax.jit
def eigenvalues(matrices: Float[Array, "H N N"]) -> Complex[Array, "H N"]:
    """Returns the eigenvalues in no order."""
    return jax.lax.map(jnp.linalg.eigvals, matrices)


@jax.jit
def inverse(matrices: Float[Array, "H N N"]) -> Float[Array, "H N N"]:
    """Returns the inverses; those of singular matrices are not finite."""
    return jax.lax.map(jnp.linalg.inv, matrices)
