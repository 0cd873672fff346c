"""What lower ranks do to scores and outputs: measured, with bounds beside."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from attention_jax import checks
from attention_jax.algebra import tree
from attention_jax.algebra.circuits import layer
from attention_jax.algebra.circuits.circuit import check_rank
from attention_jax.algebra.circuits.measure import measure
from attention_jax.algebra.merge import check_one_matrix
from attention_jax.core.layer import check_inputs
from attention_jax.masks import Mask
from attention_jax.masks.mask import as_mask
from attention_jax.positions import InputPosition, Position, check_position
from attention_jax.types import (
    Array,
    BooleanMask,
    Float,
    KeyInputs,
    Parameters,
    QueryInputs,
    ValueInputs,
)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class TruncationCurve:
    """Relative changes by kept rank and head, each head truncated alone; see `truncation_curve`.

    All are Frobenius norms of the change over all tokens, divided by that of what is changed. What
    was not asked for is None.

    Attributes:
      ranks: The kept ranks, the first axis of all arrays.
      qk_scores: Measured change of a head's scores when its W_qk is truncated.
      qk_scores_bound: No less than `qk_scores`.
      qk_output: Measured change of a head's output when its W_qk is truncated.
      qk_output_bound: No less than `qk_output`.
      ov_output: Measured change of a head's output when its W_ov is truncated.
      ov_output_bound: No less than `ov_output`.
    """

    ranks: tuple[int, ...] = dataclasses.field(metadata={"static": True})
    qk_scores: Float[Array, "ranks H"] | None = None
    qk_scores_bound: Float[Array, "ranks H"] | None = None
    qk_output: Float[Array, "ranks H"] | None = None
    qk_output_bound: Float[Array, "ranks H"] | None = None
    ov_output: Float[Array, "ranks H"] | None = None
    ov_output_bound: Float[Array, "ranks H"] | None = None


def truncation_curve(
    params: Parameters,
    inputs_q: QueryInputs,
    inputs_k: KeyInputs | None = None,
    inputs_v: ValueInputs | None = None,
    *,
    ranks: Sequence[int],
    scale: float,
    qk: bool = True,
    ov: bool = True,
    homogeneous: bool = False,
    mask: Mask | BooleanMask | None = None,
    bias: Float[Array, "..."] | None = None,
    position: Position | None = None,
    softcap: float | None = None,
) -> TruncationCurve:
    """Measures on given inputs what truncating W_qk or W_ov changes, beside what it can change.

    With s the first dropped singular value, x', y' the parts of inputs in the dropped singular
    directions (the left ones of W for x and for values, the right ones for keys) and A the head's
    weights, each bound is a theorem, up to rounding::

      scores:      |change of score_ij| <= |scale| s |x'_i| |y'_j|
      output (QK): |change of row i| <= tanh(d_i / 2) * diameter of the values y_j W_ov,
                   d_i = |scale| s |x'_i| max_j |y'_j| over the keys j that i sees
      output (OV): |change| <= s |A Y'|

    The second holds because logits that move by at most d move softmax weights by at most
    `2 tanh(d / 2)` in the sum of absolute changes, and changes of weights add up to 0.

    Scores are `scale * query . key` of visible pairs, before soft cap and bias. A head's output is
    its part of the layer's output, without the output bias.

    Args:
      params: Parameters of one layer, separate (grouped heads too) or merged.
      inputs_q: `[..., T, D]`, as the layer gets them.
      inputs_k: `[..., S, E]`; `inputs_q` if None.
      inputs_v: `[..., S, F]`; `inputs_k` if None.
      ranks: The ranks to keep.
      scale: The layer's factor of the products, `head_dim ** -0.5`.
      qk: Whether to truncate W_qk.
      ov: Whether to truncate W_ov.
      homogeneous: What is truncated. False: the matrices; biases are kept exactly. True: the
        matrices with biases as one more row and column, as `truncate` does, and `[x, 1]` and
        `[y, 1]` in the place of x and y.
      mask: See `attend`.
      bias: See `attend`.
      position: An encoding that acts on scores, or without `qk` on queries and keys.
      softcap: See `attend`.

    Raises:
      ValueError: `params` is not one layer, a rank is out of range, or inputs do not fit.
      TypeError: An argument has the wrong kind.
      NotImplementedError: `qk` with a rotary encoding or QK-norm between W_q and W_k.

    Example:
      >>> import jax
      >>> import attention_jax as aj
      >>> x = jax.random.normal(jax.random.key(0), (5, 8))
      >>> params = aj.SeparateAttention(num_heads=2).init(jax.random.key(1), x)["params"]
      >>> curve = truncation_curve(params, x, ranks=(1, 2, 4), scale=0.5)
      >>> curve.qk_scores.shape, bool((curve.qk_output <= curve.qk_output_bound).all())
      ((3, 2), True)
      >>> curve.ov_output[2].tolist()
      [0.0, 0.0]
    """
    tree.check_layer(params)
    for name, value in (("qk", qk), ("ov", ov), ("homogeneous", homogeneous)):
        checks.check_bool(name, value)
    checks.check_real("scale", scale)
    check_position(position)
    if isinstance(position, InputPosition):
        raise checks.refuse(
            ValueError,
            "position",
            "an encoding that acts inside the layer",
            type(position).__name__,
            "add it to the inputs first",
        )
    if qk:
        check_one_matrix(params, position, "pass qk=False")
    checks.check_softcap(softcap)
    if bias is not None:
        checks.check_floating("bias", bias)
    if not ranks:
        raise checks.refuse(ValueError, "ranks", "at least one rank", ranks, "name what to keep")
    limits = [min(layer.qk(params).shape[1:])] if qk else []
    limits += [min(layer.ov(params).shape[1:])] if ov else []
    for rank in ranks:
        check_rank("ranks", rank, min(limits, default=rank))
    measured = measure(
        params,
        check_inputs(inputs_q, inputs_k, inputs_v),
        jnp.asarray(ranks),
        None if mask is None else as_mask(mask),
        bias,
        scale=scale,
        position=position,
        softcap=softcap,
        qk=qk,
        ov=ov,
        homogeneous=homogeneous,
    )
    return TruncationCurve(tuple(ranks), **measured)
