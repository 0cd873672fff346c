"""How strongly heads of one layer read what heads of an earlier one write."""

import dataclasses

import jax
import jax.numpy as jnp

from attention_jax import checks
from attention_jax.algebra import lapack, lowrank
from attention_jax.algebra.circuits.circuit import Circuit
from attention_jax.algebra.circuits.layer import ov, qk
from attention_jax.types import Array, Float, Parameters


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Composition:
    """Composition scores between the heads of two layers, from 0 to 1; see `composition`.

    Attributes:
      query: `[earlier H, later H]`, through the queries of the later head.
      key: `[earlier H, later H]`, through its keys.
      value: `[earlier H, later H]`, through its values.
    """

    query: Float[Array, "earlier later"]
    key: Float[Array, "earlier later"]
    value: Float[Array, "earlier later"]


def composition(earlier: Parameters, later: Parameters) -> Composition:
    """Returns how much of what earlier heads write is read by later heads.

    A head writes `y W_ov` into the residual stream, and a later head's scores are `x W_qk y^T`. So
    with Frobenius norms, for an earlier head 1 and a later head 2::

      query = |W_ov,1 W_qk,2| / (|W_ov,1| |W_qk,2|)
      key   = |W_ov,1 W_qk,2^T| / (|W_ov,1| |W_qk,2|)
      value = |W_ov,1 W_ov,2| / (|W_ov,1| |W_ov,2|)

    Unrelated isotropic matrices have about `D ** -0.5`. A zero matrix has 0. Biases, scales and
    what may stand between W_q and W_k (rotation, QK-norm) are not part of the scores.

    Args:
      earlier: Parameters of one layer, separate or merged, whose output has width D.
      later: Parameters of one layer of self-attention whose inputs have width D.

    Raises:
      ValueError: An argument is not one layer, or the widths differ.
      TypeError: A parameter is not floating.

    Example:
      >>> import jax.numpy as jnp
      >>> one, other = jnp.eye(2)[:, :1, None], jnp.eye(2)[:, 1:, None]
      >>> layer = {"query": {"kernel": one}, "key": {"kernel": other}, "value": {"kernel": one}}
      >>> layer["out"] = {"kernel": other.transpose(1, 2, 0)}
      >>> scores = composition(layer, layer)
      >>> scores.query.item(), scores.key.item(), scores.value.item()
      (0.0, 1.0, 0.0)

    Paper: Elhage et al., A mathematical framework for transformer circuits (2021), whose matrices
    act on columns and are the transposes of these.
    """
    written, scored, read = ov(earlier), qk(later), ov(later)
    widths = {"queries": scored.shape[1], "keys": scored.shape[2], "values": read.shape[1]}
    if set(widths.values()) != {written.shape[2]}:
        raise checks.refuse(
            ValueError,
            "later",
            f"inputs of width {written.shape[2]}, the width of the earlier layer's output",
            widths,
            "pass two layers of one residual stream",
        )
    source = _core(written.transpose())
    return Composition(
        query=_scores(source, _core(scored)),
        key=_scores(source, _core(scored.transpose())),
        value=_scores(source, _core(read)),
    )


def _core(circuit: Circuit) -> Float[Array, "H M R"]:
    """Returns `[H, M, R]` whose product with its transpose is `W W^T`, of Frobenius norm 1."""
    left, right = circuit.factors()
    if right is None:
        core = lapack.triangle(left.swapaxes(1, 2)).swapaxes(1, 2)
    else:
        triangle = lapack.triangle(right)
        core = jnp.einsum("HMR,HQR->HMQ", left, triangle, precision="highest")
    return lowrank.ratio(core, lowrank.norm(core, (1, 2))[:, None, None])


def _scores(
    written: Float[Array, "earlier D R"], read: Float[Array, "later D Q"]
) -> Float[Array, "earlier later"]:
    def one(core: Float[Array, "D R"]) -> Float[Array, " later"]:
        return lowrank.norm(jnp.einsum("DR,HDQ->HRQ", core, read, precision="highest"), (1, 2))

    # One earlier head at a time: whole matrices have cores as large as they are.
    return jax.lax.map(one, written)
