"""Singular values of matrices given whole or as two factors, with derivatives that stay finite.

Matrices `W` are `left` `[H, M, N]` with `right` None, or `left right^T` of `[H, M, R]` and
`[H, N, R]`; of factors nothing as large as the matrix is made.
"""

import functools

import jax
import jax.numpy as jnp

from attention_jax.algebra import lapack
from attention_jax.types import Array, Complex, Float

Left = Float[Array, "H M R"]
Right = Float[Array, "H N R"]


def wide(factor: Array) -> Array:
    """Returns the factor in float32, or as it is where that is wider."""
    factor = jnp.asarray(factor)
    return factor.astype(jnp.promote_types(factor.dtype, jnp.float32))


def ratio(numerator: Array, denominator: Array) -> Array:
    """Returns the quotient, 0 where the denominator is 0."""
    zero = denominator == 0
    return jnp.where(zero, 0.0, numerator / jnp.where(zero, 1.0, denominator))


def norm(x: Array, axis: int | tuple[int, ...]) -> Array:
    """Returns `sqrt(sum x^2)` over axes; of zeros it is 0 with derivative 0."""
    # Relative to the greatest, so that squares neither vanish nor overflow.
    greatest = jax.lax.stop_gradient(jnp.max(jnp.abs(x), axis=axis, keepdims=True))
    total = jnp.sum(jnp.square(ratio(x, greatest)), axis=axis)
    root = jnp.sqrt(jnp.where(total == 0, 1.0, total))
    return jnp.where(total == 0, 0.0, root) * greatest.reshape(total.shape)


def decompose(
    left: Left, right: Right | None = None
) -> tuple[Float[Array, "H M Q"], Float[Array, "H Q"], Float[Array, "H N Q"]]:
    """Returns `(u, s, v)` with `W = u diag(s) v^T`, `s` descending.

    The largest entry of each column of `u` is positive. A matrix that is not finite has NaN.
    """
    if right is None:
        u, s, v = _svd(left)
    else:
        left, left_core = lapack.qr(left)
        right, right_core = lapack.qr(right)
        u, s, v = _svd(_outer(left_core, right_core))
        u, v = _times(left, u), _times(right, v)
    largest = jnp.take_along_axis(u, jnp.argmax(jnp.abs(u), axis=-2, keepdims=True), axis=-2)
    sign = jnp.where(largest < 0, -1.0, 1.0)
    return u * sign, s, v * sign


def eigenvalues(matrices: Float[Array, "H R R"]) -> Complex[Array, "H R"]:
    """Returns eigenvalues, greatest modulus first, NaN for a matrix that is not finite."""
    finite = jnp.all(jnp.isfinite(matrices), axis=(1, 2))
    values = lapack.eigenvalues(jnp.where(finite[:, None, None], matrices, 0.0))
    order = jnp.argsort(-jnp.abs(values), axis=-1)
    values = jnp.take_along_axis(values, order, axis=-1)
    return jnp.where(finite[:, None], values, jnp.nan)


def halves(u: Array, s: Array, v: Array, rank: int) -> tuple[Array, Array]:
    """Returns `u sqrt(s)` and `v sqrt(s)`, cut after `rank` columns."""
    root = jnp.sqrt(s[:, None, :rank])
    return u[..., :rank] * root, v[..., :rank] * root


@jax.custom_jvp
def singular_values(left: Left, right: Right | None = None) -> Float[Array, "H Q"]:
    """Returns the singular values, descending, NaN for a matrix that is not finite.

    The derivative of `s_i` is `u_i^T dW v_i`, which is finite for equal singular values too, where
    it depends on the choice of singular vectors but the derivative of a symmetric function of the
    `s_i` does not. Singular values that vanish to rounding, where there is no derivative, get 0.
    """
    core = left
    if right is not None:
        core = _outer(lapack.triangle(left), lapack.triangle(right))
    core, finite = _finite(core)
    values = lapack.singular_values(core)
    return jnp.where(finite[..., 0], values, jnp.nan)


@singular_values.defjvp
def _singular_values_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    u, s, v = decompose(*primals)
    change = jnp.sum(u * _change(primals, tangents, v), axis=-2)
    return s, jnp.where(s <= _rounding(u, s, v), 0.0, change)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def truncated(
    left: Left, right: Right | None, rank: int
) -> tuple[Float[Array, "H M r"], Float[Array, "H N r"]]:
    """Returns `U sqrt(S)` and `V sqrt(S)` of the `rank` greatest singular values.

    Their product `T` is what has a derivative. With `E = U^T dW V` in full bases, kept `i` and
    dropped `j`, it is (for `E_ji` with the two coefficients exchanged)::

      dT_ii' = E_ii',   dT_jj' = 0,
      dT_ij = (s_i^2 E_ij + s_i s_j E_ji) / (s_i^2 - s_j^2)

    It diverges where a kept and a dropped singular value are equal, and there it is a choice which
    directions are kept: for such a pair the part that the gap divides is dropped, which leaves
    `dT_ij = E_ij`, the projection of `dW` to the tangent space of the matrices of this rank. The
    factors move by `(U E / 2 + ...) / sqrt(S)`, balanced to first order; one whose singular value
    is exactly 0 stands still, because a product of two zeros does.
    """
    u, s, v = decompose(left, right)
    return halves(u, s, v, rank)


@truncated.defjvp
def _truncated_jvp(rank: int, primals: tuple, tangents: tuple) -> tuple[tuple, tuple]:
    u, s, v = decompose(*primals)
    u_kept, v_kept, u_cut, v_cut = u[..., :rank], v[..., :rank], u[..., rank:], v[..., rank:]
    rows = _change(primals, tangents, v_kept)
    columns = _change(_transposed(primals), _transposed(tangents), u_kept)
    inside = _core(u_kept, rows)
    rows = rows - _times(u_kept, inside)
    columns = columns - _times(v_kept, inside.swapaxes(-1, -2))
    # [H, kept, dropped] blocks of E and, transposed, of its mirror image.
    upper, lower = _core(columns, v_cut), _core(rows, u_cut)
    kept, cut = s[:, :rank, None], s[:, None, rank:]
    apart = kept - cut > _rounding(u, s, v)[..., None]
    share = ratio(cut, jnp.where(apart, kept, 1.0))
    gap = jnp.where(apart, 1.0 - jnp.square(share), jnp.inf)
    square, cross = jnp.square(share) / gap, share / gap
    columns = columns + _outer(v_cut, square * upper + cross * lower)
    rows = rows + _outer(u_cut, square * lower + cross * upper)
    root = jnp.sqrt(s[:, None, :rank])
    moved_left = ratio(_times(u_kept, inside) / 2 + rows, root)
    moved_right = ratio(_times(v_kept, inside.swapaxes(-1, -2)) / 2 + columns, root)
    return halves(u, s, v, rank), (moved_left, moved_right)


def _svd(matrices: Array) -> tuple[Array, Array, Array]:
    matrices, finite = _finite(matrices)
    u, s, vt = lapack.svd(matrices)
    u, s, v = (jnp.where(finite, x, jnp.nan) for x in (u, s[..., None], vt.swapaxes(-1, -2)))
    return u, s[..., 0], v


def _finite(matrices: Array) -> tuple[Array, Array]:
    """Returns the matrices, zero if not finite: their decomposition may never end."""
    finite = jnp.all(jnp.isfinite(matrices), axis=(-2, -1), keepdims=True)
    return jnp.where(finite, matrices, 0.0), finite


def _rounding(u: Array, s: Array, v: Array) -> Array:
    """Returns the size below which differences of singular values mean nothing, `[H, 1]`."""
    return max(u.shape[-2], v.shape[-2]) * jnp.finfo(s.dtype).eps * s[:, :1]


def _change(primals: tuple, tangents: tuple, vectors: Array) -> Array:
    """Returns `dW vectors`."""
    (left, right), (d_left, d_right) = primals, tangents
    if right is None:
        return _times(d_left, vectors)
    return _times(d_left, _core(right, vectors)) + _times(left, _core(d_right, vectors))


def _transposed(pair: tuple) -> tuple:
    left, right = pair
    return (left.swapaxes(-1, -2), None) if right is None else (right, left)


def _times(a: Array, b: Array) -> Array:
    return jnp.einsum("HMR,HRQ->HMQ", a, b, precision="highest")


def _core(a: Array, b: Array) -> Array:
    return jnp.einsum("HMR,HMQ->HRQ", a, b, precision="highest")


def _outer(a: Array, b: Array) -> Array:
    return jnp.einsum("HMR,HNR->HMN", a, b, precision="highest")
