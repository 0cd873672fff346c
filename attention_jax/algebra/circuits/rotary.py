"""Rotary heads: a matrix for every offset between query and key."""

import dataclasses
import numbers

import jax
import jax.numpy as jnp
import numpy as np

from attention_jax import checks
from attention_jax.algebra import lowrank, tree
from attention_jax.algebra.circuits.circuit import Circuit
from attention_jax.algebra.circuits.layer import qk
from attention_jax.positions import Rotary
from attention_jax.types import Array, Float, Num, Parameters


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class RotaryFamily:
    """The matrices of rotary heads, one for each offset between query and key.

    The offset is the query's position minus the key's. With pairs f of channels that turn by
    `theta_f` per position, `q_f` and `k_f` two columns each of W_q and W_k, and J a quarter turn::

      W(offset) = W_q R(offset) W_k^T
                = C + sum_f [cos(offset theta_f) C_f + sin(offset theta_f) S_f]
      C_f = q_f k_f^T,   S_f = q_f J k_f^T,   J = [[0, 1], [-1, 0]]

    C comes from the channels that are not rotated. Every mean of the family has rank K at most.

    Attributes:
      left: W_q of each head, `[H, D, K]`.
      right: W_k of each head, `[H, E, K]`.
      position: The encoding.

    Example:
      >>> import jax.numpy as jnp
      >>> from attention_jax.positions import Rotary
      >>> column = jnp.array([[[1.0, 0.0]]])  # [H, D, K]
      >>> family = RotaryFamily(column, column, Rotary())
      >>> [round(family.at(offset).matrix().item(), 6) for offset in (0, 1, 2)]
      [1.0, 0.540302, -0.416147]

    Paper: Su et al., RoFormer, arXiv 2104.09864, equation 16.
    """

    left: Float[Array, "H D K"]
    right: Float[Array, "H E K"]
    position: Rotary = dataclasses.field(metadata={"static": True})

    @property
    def frequencies(self) -> Float[Array, " F"]:
        """The angles `theta_f` by which pairs turn per position."""
        zero = jnp.zeros((1,), lowrank.wide(self.left).dtype)
        # sin(offset theta_f) has slope theta_f at 0: the encoding alone knows its angles.
        _, slope = jax.jvp(lambda offset: self._turns(offset)[1], (zero,), (jnp.ones_like(zero),))
        return slope[0]

    def at(self, offset: int | float | Num[Array, ""]) -> Circuit:
        """Returns W(offset): scores of a query that stands `offset` positions after the key.

        Raises:
          ValueError: `offset` has an axis.
        """
        if jnp.shape(offset):
            raise checks.refuse(
                ValueError, "offset", "a number", f"shape {jnp.shape(offset)}", "use jax.vmap"
            )
        left, right = lowrank.wide(self.left), lowrank.wide(self.right)
        positions = jnp.broadcast_to(jnp.asarray(offset), left.shape[:1])
        return Circuit(self.position.rotate(left, positions), right)

    def mean(self, offsets: Num[Array, " n"]) -> Circuit:
        """Returns the mean of W over `offsets`.

        Raises:
          ValueError: `offsets` is not one axis of at least one offset.
          TypeError: `offsets` is not an array.
        """
        cos, sin = (turn.mean(0)[None, None] for turn in self._turns(_checked(offsets)))
        left, right = lowrank.wide(self.left), lowrank.wide(self.right)
        first, second = self._pairs()
        one, other = left[..., first], left[..., second]
        left = left.at[..., first].set(one * cos - other * sin)
        return Circuit(left.at[..., second].set(other * cos + one * sin), right)

    def singular_values(self, offsets: Num[Array, " n"]) -> Float[Array, "n H K"]:
        """Returns the singular values of W at each of the `offsets`.

        Raises:
          ValueError: `offsets` is not one axis of at least one offset.
          TypeError: `offsets` is not an array.
        """
        return jax.lax.map(lambda offset: self.at(offset).singular_values(), _checked(offsets))

    def constant(self) -> Circuit:
        """Returns C, one column of zeros if all channels are rotated."""
        left, right = lowrank.wide(self.left), lowrank.wide(self.right)
        rest = slice(2 * len(self._pairs()[0]), None)
        if rest.start == left.shape[-1]:
            return Circuit(jnp.zeros_like(left[..., :1]), jnp.zeros_like(right[..., :1]))
        return Circuit(left[..., rest], right[..., rest])

    def cosine(self, f: int) -> Circuit:
        """Returns C_f, of rank 2 at most.

        Raises:
          ValueError: There is no pair f.
          TypeError: f is not an integer.
        """
        return Circuit(*self._columns(f))

    def sine(self, f: int) -> Circuit:
        """Returns S_f, of rank 2 at most.

        Raises:
          ValueError: There is no pair f.
          TypeError: f is not an integer.
        """
        left, right = self._columns(f)
        return Circuit(jnp.stack([-left[..., 1], left[..., 0]], axis=-1), right)

    def _columns(self, f: int) -> tuple[Float[Array, "H D 2"], Float[Array, "H E 2"]]:
        first, second = self._pairs()
        if isinstance(f, bool) or not isinstance(f, numbers.Integral):
            raise checks.refuse(TypeError, "f", "an integer", f"{f!r}", "see frequencies")
        if not 0 <= f < len(first):
            raise checks.refuse(
                ValueError, "f", f"a pair from 0 to {len(first) - 1}", f, "see frequencies"
            )
        left, right = lowrank.wide(self.left), lowrank.wide(self.right)
        pair = np.array([first[f], second[f]])
        return left[..., pair], right[..., pair]

    def _pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the indices of the first and second channels of all pairs."""
        half = self.position.width(self.left.shape[-1]) // 2
        if self.position.style == "half":
            return np.arange(half), np.arange(half, 2 * half)
        return np.arange(0, 2 * half, 2), np.arange(1, 2 * half, 2)

    def _turns(self, offsets: Array) -> tuple[Float[Array, "n F"], Float[Array, "n F"]]:
        """Returns `cos(offset theta_f)` and `sin(offset theta_f)`, which (1, 0) is rotated to."""
        first, second = self._pairs()
        left = lowrank.wide(self.left)
        unit = jnp.zeros((*offsets.shape, 1, left.shape[-1]), left.dtype).at[..., first].set(1.0)
        turned = self.position.rotate(unit, offsets)[..., 0, :]
        return turned[..., first], turned[..., second]


def rotary_qk(params: Parameters, position: Rotary, *, homogeneous: bool = False) -> RotaryFamily:
    """Returns W_qk of each rotary head as a family of matrices; see `RotaryFamily`.

    Scores of a query x at position i and a key y at position j are `x W(i - j) y^T`, apart from
    biases and scale.

    Args:
      params: Parameters of one layer with separate queries and keys, grouped heads too. QK-norm
        is not part of the matrices.
      position: The layer's encoding.
      homogeneous: Whether biases are part of the matrices; see `qk`.

    Raises:
      ValueError: `params` is not one layer, W_qk is merged, or the heads' width is odd.
      TypeError: A parameter is not floating, or `position` is not Rotary.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> import attention_jax as aj
      >>> module = aj.SeparateAttention(num_heads=2, position=aj.Rotary())
      >>> params = module.init(jax.random.key(0), jnp.ones((1, 3, 8)))["params"]
      >>> family = rotary_qk(params, aj.Rotary())
      >>> family.at(5).rank().tolist(), family.frequencies.round(4).tolist()
      ([4, 4], [1.0, 0.009999999776482582])
    """
    if not isinstance(position, Rotary):
        raise checks.refuse(
            TypeError, "position", "a Rotary", f"{position!r}", "use circuits.qk without rotation"
        )
    tree.check_layer(params)
    if "qk" in params:
        raise checks.refuse(
            ValueError, "params", "query and key", "qk", "a merged W_qk cannot be rotated"
        )
    left, right = qk(params, homogeneous=homogeneous).factors()
    assert right is not None
    # Refuses an odd width here rather than at the first use.
    position.width(left.shape[-1])
    return RotaryFamily(left, right, position)


def _checked(offsets: Array) -> Array:
    if not checks.is_array(offsets):
        raise checks.refuse(
            TypeError, "offsets", "an array", type(offsets).__name__, "use jnp.arange(n)"
        )
    if offsets.ndim != 1 or not offsets.size:
        raise checks.refuse(
            ValueError, "offsets", "one axis of offsets", f"shape {offsets.shape}", "use jnp.arange"
        )
    return jnp.asarray(offsets)
