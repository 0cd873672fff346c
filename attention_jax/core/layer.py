"""One attention layer as a pure function of its parameters: project, attend, combine."""

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from attention_jax import checks
from attention_jax.core.attend import attend
from attention_jax.core.form import QueryKey, ValueOutput
from attention_jax.masks import Mask
from attention_jax.positions import (
    ALiBi,
    Position,
    QueryKeyPosition,
    ScorePosition,
    positions_or_default,
)
from attention_jax.types import (
    Array,
    BooleanMask,
    DropoutKey,
    Float,
    KeyInputs,
    KeyPositions,
    Outputs,
    Parameters,
    Precision,
    QueryInputs,
    QueryPositions,
    ValueInputs,
    Weights,
)


def attention(
    query_key: QueryKey,
    value_output: ValueOutput,
    params: Parameters,
    inputs_q: QueryInputs,
    inputs_k: KeyInputs | None = None,
    inputs_v: ValueInputs | None = None,
    *,
    scale: float,
    mask: Mask | BooleanMask | None = None,
    bias: Float[Array, "..."] | None = None,
    position: Position | None = None,
    query_positions: QueryPositions | None = None,
    key_positions: KeyPositions | None = None,
    softcap: float | None = None,
    dropout_rate: float = 0.0,
    dropout_key: DropoutKey | None = None,
    dtype: DTypeLike | None = None,
    precision: Precision = None,
    implementation: str = "auto",
    return_weights: bool = False,
) -> Outputs | tuple[Outputs, Weights]:
    """Applies one attention layer whose form is given by its projections.

    `query, key = query_key.project(...)`, `value = value_output.project(...)`,
    `output = value_output.combine(attend(query, key, value))`.

    Args:
      query_key: `separate.query_key`, `merged.query_key` or `raw.query_key`.
      value_output: `separate.value_output`, `merged.value_output` or `raw.value_output`.
      params: Parameters of the layer, nested as the Flax modules nest them.
      inputs_q: `[..., T, D]`.
      inputs_k: `[..., S, E]`; `inputs_q` if None.
      inputs_v: `[..., S, F]`; `inputs_k` if None.
      scale: Factor of the products: `head_dim ** -0.5`, also in the merged form, whose queries are
        wider than the head they stand for. There is no default, because it would be that width's.
      mask: See `attend`.
      bias: See `attend`.
      position: An encoding that acts on queries and keys, or on scores.
      query_positions: `[..., T]`; see `attend`. Where `inputs_k` is
        None one of the two is enough.
      key_positions: `[..., S]`; see `attend`.
      softcap: See `attend`.
      dropout_rate: See `attend`.
      dropout_key: See `attend`.
      dtype: Of the computation; None takes the promotion of inputs and parameters.
      precision: Of every matrix product, projections included.
      implementation: See `attend`.
      return_weights: See `attend`.

    Returns:
      Output `[..., T, O]`, with `return_weights` also the weights `[..., H, T, S]`.

    Raises:
      ValueError: Inputs do not fit each other, or `attend` refuses its arguments.
      TypeError: Inputs are not floating, or the scale is None.
      NotImplementedError: The encoding would act where this form has nothing to act on.

    Example:
      >>> import jax.numpy as jnp
      >>> from attention_jax.core import raw
      >>> x = jnp.array([[1.0, 0.0], [0.0, 0.0]])
      >>> attention(raw.query_key, raw.value_output, {}, x, scale=1.0)[1].tolist()
      [0.5, 0.0]
    """
    if scale is None:
        raise checks.refuse(
            TypeError, "scale", "a number", None, "pass head_dim ** -0.5 of the separate form"
        )
    if inputs_k is None:
        # Self-attention: a token has one position, as query and as key.
        query_positions = key_positions if query_positions is None else query_positions
        key_positions = query_positions if key_positions is None else key_positions
    inputs_q, inputs_k, inputs_v = check_inputs(inputs_q, inputs_k, inputs_v)
    arrays = (inputs_q, inputs_k, inputs_v, *jax.tree.leaves(params))
    dtype = jnp.result_type(*arrays) if dtype is None else dtype
    inputs_q, inputs_k, inputs_v, params = jax.tree.map(
        lambda array: jnp.asarray(array, dtype), (inputs_q, inputs_k, inputs_v, dict(params))
    )
    query_positions, key_positions = positions_or_default(
        query_positions, key_positions, inputs_q.shape[:-1], inputs_k.shape[:-1]
    )
    query, key = query_key.project(params, inputs_q, inputs_k, precision)
    if isinstance(position, QueryKeyPosition):
        check_rotates(position, query_key.rotates)
        query = position.rotate(query, query_positions)
        key = position.rotate(key, key_positions)
    elif isinstance(position, ScorePosition):
        check_alibi(position, query.shape[-2])
    attended = attend(
        query,
        key,
        value_output.project(params, inputs_v, precision),
        mask=mask,
        bias=bias,
        scale=scale,
        softcap=softcap,
        dropout_rate=dropout_rate,
        dropout_key=dropout_key,
        precision=precision,
        implementation=implementation,
        return_weights=return_weights,
        query_positions=query_positions,
        key_positions=key_positions,
        position=position if isinstance(position, ScorePosition) else None,
    )
    heads, weights = attended if isinstance(attended, tuple) else (attended, None)
    output = value_output.combine(params, heads, precision)
    return output if weights is None else (output, weights)


def check_rotates(
    position: Position | None,
    rotates: bool,
    remedy: str = "keep the separate form (ov='merged' is possible), or use aj.ALiBi",
) -> None:
    """Raises NotImplementedError if `position` acts on queries and keys that cannot be rotated."""
    if isinstance(position, QueryKeyPosition) and not rotates:
        name = type(position).__name__
        raise checks.refuse(
            NotImplementedError,
            "position",
            "an encoding that leaves queries and keys alone, because with rotation the product "
            "W_q R W_k^T changes with the offset and no single merged matrix exists",
            f"{name}, a rotary encoding" if name == "Rotary" else name,
            remedy,
        )


def check_alibi(position: Position | None, num_heads: int) -> None:
    """Raises ValueError if `position` is ALiBi for another number of heads."""
    if isinstance(position, ALiBi) and position.num_heads != num_heads:
        raise checks.refuse(
            ValueError,
            "position",
            f"ALiBi(num_heads={num_heads})",
            f"ALiBi(num_heads={position.num_heads})",
            "use the layer's number of query heads",
        )


def check_inputs(
    inputs_q: QueryInputs, inputs_k: KeyInputs | None, inputs_v: ValueInputs | None
) -> tuple[QueryInputs, KeyInputs, ValueInputs]:
    """Returns the three inputs with defaults filled in, checked against each other."""
    if inputs_k is None:
        if inputs_v is not None:
            raise checks.refuse(
                ValueError,
                "inputs_k",
                "given when inputs_v is given",
                None,
                "pass inputs_k; inputs_v alone does not say what the keys are",
            )
        inputs_k = inputs_q
    if inputs_v is None:
        inputs_v = inputs_k
    for name, x in (("inputs_q", inputs_q), ("inputs_k", inputs_k), ("inputs_v", inputs_v)):
        checks.check_floating(name, x)
        if x.ndim < 2:
            raise checks.refuse(
                ValueError, name, "[..., length, width]", f"shape {x.shape}", "add the length axis"
            )
        if x.shape[:-2] != inputs_q.shape[:-2]:
            raise checks.refuse(
                ValueError,
                name,
                f"batch axes {inputs_q.shape[:-2]} as inputs_q",
                f"shape {x.shape}",
                "broadcast the batch axes explicitly with jnp.broadcast_to",
            )
    if inputs_v.shape[-2] != inputs_k.shape[-2]:
        raise checks.refuse(
            ValueError,
            "inputs_v",
            f"length S={inputs_k.shape[-2]} as inputs_k",
            f"shape {inputs_v.shape}",
            "pass one value input per key input",
        )
    return inputs_q, inputs_k, inputs_v
