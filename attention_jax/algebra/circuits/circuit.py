"""A matrix per head, kept as two factors, with its spectrum."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Complex

from attention_jax import checks
from attention_jax.algebra import lowrank
from attention_jax.types import Array, Float, Int


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Circuit:
    """One matrix per head, `left @ right^T`, kept as two factors.

    Everything but `matrix` costs what the factors cost: with R below M and N nothing as large as
    the M x N matrix is made. Results are in float32, or in the factors' own precision where that is
    wider. Derivatives are finite for equal and vanishing singular values too; see `truncate`.

    Attributes:
      left: `[H, M, R]`.
      right: `[H, N, R]`, or None for a matrix that is given whole, as `left`.

    Raises:
      ValueError: By the methods, if the factors do not fit each other.
      TypeError: By the methods, if a factor is not floating.

    Example:
      >>> import jax.numpy as jnp
      >>> circuit = Circuit(jnp.diag(jnp.array([2.0, 2.0, 1.0]))[None])
      >>> circuit.rank().tolist(), circuit.nuclear_norm().tolist()
      ([3], [5.0])
      >>> (circuit @ circuit.transpose()).singular_values().tolist()
      [[4.0, 4.0, 1.0]]
    """

    left: Float[Array, "H M R"]
    right: Float[Array, "H N R"] | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        """`(H, M, N)`."""
        heads, rows, columns = self.left.shape
        return heads, rows, columns if self.right is None else self.right.shape[1]

    def factors(self) -> tuple[Float[Array, "H M R"], Float[Array, "H N R"] | None]:
        """Returns `left` and `right`, checked, in float32 or wider."""
        for name, factor in (("left", self.left), ("right", self.right)):
            if factor is None:
                continue
            checks.check_floating(name, factor)
            if factor.ndim != 3 or factor.shape[::2] != self.left.shape[::2]:
                raise checks.refuse(
                    ValueError,
                    name,
                    "[H, M, R] and [H, N, R] of equal H and R",
                    f"shapes {self.left.shape} and {getattr(self.right, 'shape', None)}",
                    "put heads first and the common axis last",
                )
        left = lowrank.wide(self.left)
        return left, None if self.right is None else lowrank.wide(self.right)

    def matrix(self) -> Float[Array, "H M N"]:
        """Returns the matrices."""
        left, right = self.factors()
        if right is None:
            return left
        return jnp.einsum("HMR,HNR->HMN", left, right, precision="highest")

    def transpose(self) -> "Circuit":
        """Returns the transposed matrices."""
        left, right = self.factors()
        return Circuit(left.swapaxes(1, 2)) if right is None else Circuit(right, left)

    def __matmul__(self, other: "Circuit") -> "Circuit":
        """Returns the products head by head, of factors as factors of the smaller rank.

        Raises:
          ValueError: The numbers of heads or the inner widths differ.
        """
        if not isinstance(other, Circuit):
            return NotImplemented
        if self.shape[::2] != other.shape[:2]:
            raise checks.refuse(
                ValueError,
                "circuits",
                "equally many heads and one inner width",
                f"shapes {self.shape} and {other.shape}",
                "pair the heads one to one; circuits.composition compares all with all",
            )
        (left, inner), (other_inner, right) = self.factors(), other.factors()
        inner = left.swapaxes(1, 2) if inner is None else inner
        core = jnp.einsum("HNR,HNQ->HRQ", inner, other_inner, precision="highest")
        if self.right is None:
            return Circuit(core, right)
        if right is None:
            return Circuit(left, core.swapaxes(1, 2))
        if core.shape[1] <= core.shape[2]:
            return Circuit(left, jnp.einsum("HRQ,HNQ->HNR", core, right, precision="highest"))
        return Circuit(jnp.einsum("HMR,HRQ->HMQ", left, core, precision="highest"), right)

    def singular_values(self) -> Float[Array, "H R"]:
        """Returns the singular values, greatest first, NaN for a head that is not finite.

        Of factors they come from the R x R core. There are `min(M, N, R)` of them.
        """
        return lowrank.singular_values(*self.factors())

    def rank(self, tol: float | None = None) -> Int[Array, " H"]:
        """Returns the number of singular values above `tol` times the greatest.

        The default is the usual one, the longer side times the machine epsilon. A head that is not
        finite has rank -1.
        """
        values = self.singular_values()
        if tol is None:
            tol = max(self.shape[1:]) * float(jnp.finfo(values.dtype).eps)
        count = jnp.sum(values > tol * values[:, :1], axis=-1)
        return jnp.where(jnp.isnan(values[:, 0]), -1, count)

    def stable_rank(self) -> Float[Array, " H"]:
        """Returns `sum s^2 / max s^2` per head, 0 for a zero matrix."""
        values = self.singular_values()
        return jnp.square(lowrank.ratio(values, values[:, :1])).sum(-1)

    def effective_rank(self) -> Float[Array, " H"]:
        """Returns `exp(entropy of s / sum s)` per head, 0 for a zero matrix.

        Paper: Roy and Vetterli, The effective rank (2007), definition 1.
        """
        values = self.singular_values()
        total = values.sum(-1)
        shares = lowrank.ratio(values, total[:, None])
        # A share of zero adds nothing; the slope of its entropy is infinite, so it has none here.
        entropy = -jnp.sum(shares * jnp.log(jnp.where(shares == 0, 1.0, shares)), axis=-1)
        return jnp.where(total == 0, 0.0, jnp.exp(entropy))

    def nuclear_norm(self) -> Float[Array, " H"]:
        """Returns `sum s` per head; its derivative is `U V^T` of the nonzero ones."""
        return self.singular_values().sum(-1)

    def frobenius_norm(self) -> Float[Array, " H"]:
        """Returns `sqrt(sum s^2)` per head, the root of the sum of all squared entries."""
        return lowrank.norm(self.singular_values(), axis=-1)

    def spectral_norm(self) -> Float[Array, " H"]:
        """Returns `max s` per head: no input grows by more."""
        return self.singular_values()[:, 0]

    def symmetry(self) -> Float[Array, " H"]:
        """Returns `<W, W^T> / |W|^2` per head: 1 if symmetric, -1 if antisymmetric, 0 if zero.

        Raises:
          ValueError: The matrices are not square.
        """
        self.check_square("symmetry")
        left, right = self.factors()
        # tr(W W) of a product is the trace of the R x R core squared.
        core = left
        if right is not None:
            core = jnp.einsum("HMR,HMQ->HRQ", right, left, precision="highest")
        norm = self.frobenius_norm()
        # Relative to the norm, so that squares neither vanish nor overflow.
        core = lowrank.ratio(core, norm[:, None, None])
        return jnp.sum(core * core.swapaxes(1, 2), axis=(1, 2))

    def symmetric_share(self) -> Float[Array, " H"]:
        """Returns `|(W + W^T) / 2|^2 / |W|^2` per head, 0 for a zero matrix.

        Raises:
          ValueError: The matrices are not square.
        """
        return self._share(1.0)

    def antisymmetric_share(self) -> Float[Array, " H"]:
        """Returns `|(W - W^T) / 2|^2 / |W|^2` per head, what the symmetric share lacks to 1.

        Raises:
          ValueError: The matrices are not square.
        """
        return self._share(-1.0)

    def _share(self, sign: float) -> Float[Array, " H"]:
        # Rounding may carry a share of nothing below zero.
        share = jnp.clip((1.0 + sign * self.symmetry()) / 2, 0.0, 1.0)
        return jnp.where(self.spectral_norm() == 0, 0.0, share)

    def eigenvalues(self) -> Complex[Array, "H R"]:
        """Returns the eigenvalues, greatest modulus first, NaN for a head that is not finite.

        Of factors they are those of the R x R core `right^T left`, which are all but zeros. JAX
        computes them on CPUs and GPUs, and refuses to on TPUs.

        Raises:
          ValueError: The matrices are not square.
        """
        self.check_square("eigenvalues")
        left, right = self.factors()
        core = left
        if right is not None and right.shape[2] < right.shape[1]:
            core = jnp.einsum("HMR,HMQ->HRQ", right, left, precision="highest")
        elif right is not None:
            core = self.matrix()
        return lowrank.eigenvalues(core)

    def truncate(self, rank: int) -> "Circuit":
        """Returns the nearest matrices of at most `rank`, `sum_{i <= rank} s_i u_i v_i^T`.

        The factors are balanced, `U sqrt(S)` and `V sqrt(S)`, with the largest entry of each column
        of the first positive; they have `min(rank, R)` columns. Where the last kept and the first
        dropped singular value are equal any choice is as near, and this makes one.

        The product has its exact derivative wherever it has one, that is where the last kept
        singular value is greater than the first dropped one. Where they are equal, to rounding,
        the exact derivative diverges, and the part of it that the gap divides is left out: what
        remains is the projection of the change to the tangent space of the matrices of this rank. A
        kept direction whose singular value is exactly zero stands still, as two zero factors do.

        Raises:
          ValueError: `rank` is not in 1 to `min(M, N)`.
          TypeError: `rank` is not an integer.

        Example:
          >>> import jax.numpy as jnp
          >>> circuit = Circuit(jnp.diag(jnp.array([2.0, 2.0, 1.0]))[None])
          >>> circuit.truncate(2).matrix()[0].diagonal().round(5).tolist()
          [2.0, 2.0, 0.0]

        Paper: Eckart and Young (1936), for the optimality of the cut.
        """
        check_rank("rank", rank, min(self.shape[1:]))
        left, right = self.factors()
        return Circuit(*lowrank.truncated(left, right, min(rank, *left.shape[1:])))

    def truncation_error(self, rank: int) -> Float[Array, " H"]:
        """Returns the Frobenius norm of what `truncate` drops, `sqrt(sum_{i > rank} s_i^2)`.

        Raises:
          ValueError: `rank` is not in 1 to `min(M, N)`.
          TypeError: `rank` is not an integer.
        """
        check_rank("rank", rank, min(self.shape[1:]))
        values = self.singular_values()
        dropped = jnp.arange(values.shape[-1])[None] >= rank
        return lowrank.norm(jnp.where(dropped, values, 0.0), axis=-1)

    def check_square(self, argument: str) -> None:
        """Raises ValueError unless the matrices are square."""
        _, rows, columns = self.shape
        if rows != columns:
            raise checks.refuse(
                ValueError,
                argument,
                "square matrices, one width on both sides",
                f"{rows} x {columns}",
                "ask it of self-attention",
            )


def check_rank(argument: str, rank: int, limit: int) -> None:
    """Raises unless `rank` is an integer from 1 to `limit`."""
    checks.check_positive_int(argument, rank)
    if rank > limit:
        raise checks.refuse(
            ValueError,
            argument,
            f"at most {limit}, the greatest possible rank",
            rank,
            "choose a smaller rank, or leave the matrices as they are",
        )
