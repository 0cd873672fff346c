"""The bilinear forms inside a layer, as objects with ranks and spectra."""

import dataclasses

import jax
import jax.numpy as jnp

from attention_jax import checks
from attention_jax.algebra import tree
from attention_jax.types import Array, Float, Int, Parameters


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Circuit:
    """One matrix per head, `left @ right^T`, kept as two factors.

    Attributes:
      left: `[H, M, R]`.
      right: `[H, N, R]`, or None for a matrix that is given whole, as `left`.
    """

    left: Float[Array, "H M R"]
    right: Float[Array, "H N R"] | None = None

    def _shape(self) -> tuple[int, int]:
        columns = self.left.shape[2] if self.right is None else self.right.shape[1]
        return self.left.shape[1], columns

    def matrix(self) -> Float[Array, "H M N"]:
        """Returns the matrices."""
        if self.right is None:
            return self.left
        return jnp.einsum("HMR,HNR->HMN", self.left, self.right, precision="highest")

    def singular_values(self) -> Float[Array, "H R"]:
        """Returns the singular values, greatest first, NaN for a head that is not finite.

        Of factors they come from the R x R core.
        """
        core = self.left
        if self.right is not None:
            left = jnp.linalg.qr(self.left, mode="r")
            right = jnp.linalg.qr(self.right, mode="r")
            core = jnp.einsum("HMR,HNR->HMN", left, right, precision="highest")
        # The decomposition of an infinite matrix may never end.
        finite = jnp.all(jnp.isfinite(core), axis=(1, 2), keepdims=True)
        values = jnp.linalg.svd(jnp.where(finite, core, 0.0), compute_uv=False)
        return jnp.where(finite[..., 0], values, jnp.nan)

    def rank(self, tol: float | None = None) -> Int[Array, " H"]:
        """Returns the number of singular values above `tol` times the greatest.

        The default is the usual one, the longer side times the machine epsilon. A head that is not
        finite has rank -1.
        """
        values = self.singular_values()
        if tol is None:
            tol = max(self._shape()) * float(jnp.finfo(values.dtype).eps)
        count = jnp.sum(values > tol * values[:, :1], axis=-1)
        return jnp.where(jnp.isnan(values[:, 0]), -1, count)

    def stable_rank(self) -> Float[Array, " H"]:
        """Returns `sum s^2 / max s^2` per head, 0 for a zero matrix."""
        values = self.singular_values()
        return jnp.square(_ratio(values, values[:, :1])).sum(-1)

    def effective_rank(self) -> Float[Array, " H"]:
        """Returns `exp(entropy of s / sum s)` per head, 0 for a zero matrix.

        Paper: Roy and Vetterli, The effective rank (2007), definition 1.
        """
        values = self.singular_values()
        total = values.sum(-1)
        shares = _ratio(values, total[:, None])
        entropy = -jnp.sum(jax.scipy.special.xlogy(shares, shares), axis=-1)
        return jnp.where(total == 0, 0.0, jnp.exp(entropy))

    def symmetry(self) -> Float[Array, " H"]:
        """Returns `<W, W^T> / |W|^2` per head: 1 if symmetric, -1 if antisymmetric, 0 if zero.

        Raises:
          ValueError: The matrices are not square.
        """
        rows, columns = self._shape()
        if rows != columns:
            raise checks.refuse(
                ValueError,
                "symmetry",
                "square matrices, one width on both sides",
                f"{rows} x {columns}",
                "ask it of self-attention",
            )
        # tr(W W) of a product is the trace of the R x R core squared.
        core = self.left
        if self.right is not None:
            core = jnp.einsum("HMR,HMQ->HRQ", self.right, self.left, precision="highest")
        values = self.singular_values()
        # Relative to the greatest, so that squares neither vanish nor overflow.
        core = _ratio(core, values[:, :1, None])
        product = jnp.sum(core * core.swapaxes(1, 2), axis=(1, 2))
        return _ratio(product, jnp.square(_ratio(values, values[:, :1])).sum(-1))


def qk(params: Parameters) -> Circuit:
    """Returns W_qk of each head, `(D, E)`: scores are `x W_qk y^T`, apart from biases and scale.

    Args:
      params: Parameters of one layer, separate (grouped heads too) or merged. What may stand
        between the factors (rotation, QK-norm) is not part of the matrix.

    Raises:
      ValueError: `params` is not one layer.
      TypeError: A parameter is not floating.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> import attention_jax as aj
      >>> module = aj.SeparateAttention(num_heads=2)
      >>> params = module.init(jax.random.key(0), jnp.ones((1, 3, 8)))["params"]
      >>> qk(params).matrix().shape, qk(params).rank().tolist()
      ((2, 8, 8), [4, 4])
    """
    tree.check_layer(params)
    params = tree.wide(params)
    if "qk" in params:
        return Circuit(params["qk"]["kernel"].swapaxes(0, 1))
    w_q, w_k = params["query"]["kernel"], params["key"]["kernel"]
    w_k = jnp.repeat(w_k, w_q.shape[1] // w_k.shape[1], axis=1)
    return Circuit(w_q.swapaxes(0, 1), w_k.swapaxes(0, 1))


def ov(params: Parameters) -> Circuit:
    """Returns W_ov of each head, `(E, O)`: what the head writes for a token it attends.

    Args:
      params: Parameters of one layer, separate (grouped heads too) or merged.

    Raises:
      ValueError: `params` is not one layer.
      TypeError: A parameter is not floating.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> import attention_jax as aj
      >>> module = aj.MergedAttention(num_heads=2, ov="merged")
      >>> params = module.init(jax.random.key(0), jnp.ones((1, 3, 8)))["params"]
      >>> ov(params).matrix().shape, ov(params).rank(1e-5).tolist()
      ((2, 8, 8), [4, 4])
    """
    tree.check_layer(params)
    params = tree.wide(params)
    if "ov" in params:
        return Circuit(params["ov"]["kernel"])
    w_v, w_o = params["value"]["kernel"], params["out"]["kernel"]
    w_v = jnp.repeat(w_v, w_o.shape[0] // w_v.shape[1], axis=1)
    return Circuit(w_v.swapaxes(0, 1), w_o.swapaxes(1, 2))


def _ratio(numerator: Array, denominator: Array) -> Array:
    zero = denominator == 0
    return jnp.where(zero, 0.0, numerator / jnp.where(zero, 1.0, denominator))
