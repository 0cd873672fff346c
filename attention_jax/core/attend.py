"""The one evaluation that every form of attention shares."""

import jax
import jax.numpy as jnp

from attention_jax import checks
from attention_jax import masks as masking
from attention_jax.core import dispatch
from attention_jax.masks import Mask
from attention_jax.positions import ScorePosition, positions_or_default
from attention_jax.request import Request
from attention_jax.types import (
    Array,
    BooleanMask,
    DropoutKey,
    Float,
    Heads,
    Key,
    KeyPositions,
    Precision,
    Query,
    QueryPositions,
    Value,
    Weights,
)


def attend(
    query: Query,
    key: Key,
    value: Value,
    *,
    mask: Mask | BooleanMask | None = None,
    bias: Float[Array, "..."] | None = None,
    scale: float | Float[Array, ""] | None = None,
    softcap: float | None = None,
    dropout_rate: float = 0.0,
    dropout_key: DropoutKey | None = None,
    precision: Precision = None,
    implementation: str = "auto",
    return_weights: bool = False,
    query_positions: QueryPositions | None = None,
    key_positions: KeyPositions | None = None,
    position: ScorePosition | None = None,
) -> Heads | tuple[Heads, Weights]:
    """Averages values with the softmax of query-key products as weights.

    For each batch entry and head, with `cap(x) = softcap * tanh(x / softcap)`::

      scores_ts = cap(scale * sum_k query_tk key_sk) + bias_ts
      weights_ts = exp(scores_ts) / sum_{s visible} exp(scores_ts), 0 where the mask hides s
      output_tv = sum_s weights_ts value_sv

    Query head h uses key head `h // (H / G)`, and its value head likewise: neighbours share.
    Keys and values may have different numbers of heads. A query that sees no key gets zeros.

    Args:
      query: `[..., T, H, K]`, float32, bfloat16, float16, or float64 when JAX has it enabled.
      key: `[..., S, G, K]`, G a divisor of H, same dtype.
      value: `[..., S, N, V]`, V free, N a divisor of H, same dtype.
      mask: A mask object, a boolean array that broadcasts to `[..., H, T, S]` with at least four
        axes when the inputs are batched, or None. True where the query may attend the key. Hidden
        keys and values must be finite: zero times NaN is NaN.
      bias: Floats that are added to the scores, shaped as a boolean mask. Added after the cap, so
        that -inf still hides.
      scale: Factor of the products; None means `K ** -0.5`, 0.0 means zero.
      softcap: Positive bound of the scaled products, or None.
      dropout_rate: Probability in [0, 1) that a weight is dropped, for each batch entry, head,
        query and key independently; what remains is divided by `1 - dropout_rate`.
      dropout_key: Random key; required when `dropout_rate` is not 0.
      precision: Of both matrix products, as in `jax.lax.dot_general`.
      implementation: "dense" holds all scores, "blockwise" never does and has no forward-mode
        derivative, "splash" (TPU) and "cudnn" (GPU) are kernels for some requests; see
        `attention_jax.kernels.capabilities`. "auto" takes a kernel where the platform has one for
        the request, "dense" for short lengths and returned weights, and else "blockwise".
      return_weights: Whether to return the weights too.
      query_positions: `[..., T]` for mask objects; by default the last query stands at the last
        key.
      key_positions: `[..., S]`; by default 0, 1, ..., S - 1.
      position: An encoding that adds to the scores, such as `aj.ALiBi`. It is evaluated where the
        scores are, so that the blockwise path never holds the whole bias.

    Returns:
      Output `[..., T, H, V]` in the inputs' dtype. With `return_weights`, also the weights
      `[..., H, T, S]` before dropout, in the precision of the softmax: float32 or wider.

    Raises:
      ValueError: Sizes do not fit, a setting is out of range, or the dropout key is missing.
      TypeError: An input is not floating, dtypes differ, a mask is not boolean.
      NotImplementedError: The implementation cannot do what is asked, or not on this platform.

    Example:
      >>> import jax.numpy as jnp
      >>> query = jnp.zeros((1, 2, 1, 4))
      >>> value = jnp.array([1.0, 3.0]).reshape(1, 2, 1, 1)
      >>> attend(query, query, value, mask=masking.causal()).ravel().tolist()
      [1.0, 2.0]

    Paper: Vaswani et al., Attention is all you need, arXiv 1706.03762, equation 1 (its d_k is K).
    """
    query, key, value = _check_arrays(query, key, value)
    checks.check_bool("return_weights", return_weights)
    checks.check_softcap(softcap)
    checks.check_dropout_rate(dropout_rate)
    if dropout_rate > 0.0 and dropout_key is None:
        raise checks.refuse(
            ValueError,
            "dropout_key",
            f"a random key, because dropout_rate={dropout_rate}",
            None,
            "pass jax.random.key(...), or dropout_rate=0.0",
        )
    if dropout_key is not None and not checks.is_array(dropout_key):
        raise checks.refuse(
            TypeError, "dropout_key", "a random key", f"{dropout_key!r}", "use jax.random.key(seed)"
        )
    checks.check_choice("implementation", implementation, dispatch.IMPLEMENTATIONS)
    *batch, query_length, heads, width = query.shape
    key_length = key.shape[-3]
    shape = (*batch, heads, query_length, key_length)
    aligned = query_positions is None and key_positions is None
    query_positions, key_positions = positions_or_default(
        query_positions, key_positions, (*batch, query_length), (*batch, key_length)
    )
    _check_position(position, shape, query_positions, key_positions)
    request = Request(
        query,
        key,
        value,
        mask=masking.check_mask(mask, shape, query_positions, key_positions),
        bias=check_bias(bias, shape),
        position=position,
        scale=_check_scale(scale, width),
        softcap=softcap,
        dropout_rate=dropout_rate,
        dropout_key=dropout_key if dropout_rate > 0.0 else None,
        precision=precision,
        query_positions=query_positions,
        key_positions=key_positions,
        aligned=aligned,
        return_weights=return_weights,
    )
    return dispatch.run(request, implementation)


def _check_arrays(query: Array, key: Array, value: Array) -> tuple[Query, Key, Value]:
    for name, x in (("query", query), ("key", key), ("value", value)):
        checks.check_floating(name, x)
    # NumPy's float64 becomes float32 here, unless JAX has float64 enabled.
    query, key, value = (jnp.asarray(x) for x in (query, key, value))
    for name, x in (("query", query), ("key", key), ("value", value)):
        letters = {"query": "[..., T, H, K]", "key": "[..., S, G, K]", "value": "[..., S, N, V]"}
        if x.ndim < 3:
            raise checks.refuse(
                ValueError, name, letters[name], f"shape {x.shape}", "add the axis of the heads"
            )
        if x.dtype != query.dtype:
            raise checks.refuse(
                TypeError, name, f"the query's dtype {query.dtype}", x.dtype, "cast to one dtype"
            )
        if 0 in x.shape[-3:]:
            raise checks.refuse(
                ValueError, name, f"{letters[name]} without empty axes", f"shape {x.shape}",
                "pass at least one token, head and channel",
            )  # fmt: skip
        if x.shape[:-3] != query.shape[:-3]:
            raise checks.refuse(
                ValueError,
                name,
                f"the query's batch axes {query.shape[:-3]} before {letters[name]}",
                f"shape {x.shape}",
                "broadcast the batch axes explicitly with jnp.broadcast_to",
            )
        if query.shape[-2] % x.shape[-2]:
            raise checks.refuse(
                ValueError,
                name,
                f"heads (axis -2) that divide the query's H={query.shape[-2]}",
                f"{x.shape[-2]} heads in shape {x.shape}",
                "arrays are [..., length, heads, width]: swap axes -3 and -2 if heads come first",
            )
    if key.shape[-1] != query.shape[-1]:
        raise checks.refuse(
            ValueError,
            "key",
            f"width K={query.shape[-1]} as the query's (axis -1)",
            f"{key.shape[-1]} in shape {key.shape}",
            "project queries and keys to one width",
        )
    if value.shape[-3] != key.shape[-3]:
        raise checks.refuse(
            ValueError,
            "value",
            f"length S={key.shape[-3]} as the key's (axis -3)",
            f"{value.shape[-3]} in shape {value.shape}",
            "pass one value per key; arrays are [..., length, heads, width]",
        )
    return query, key, value


def check_bias(bias: Array | None, shape: tuple[int, ...]) -> Array | None:
    """Returns `bias` with as many axes as `shape` = `[..., H, T, S]`, or raises."""
    if bias is None:
        return None
    if checks.is_array(bias) and bias.dtype == jnp.bool_:
        raise checks.refuse(
            TypeError, "bias", "floats that are added to the scores", bias.dtype, "pass it as mask"
        )
    checks.check_floating("bias", bias)
    checks.check_broadcastable("bias", bias.shape, shape)
    return jnp.asarray(bias).reshape((1,) * (len(shape) - bias.ndim) + bias.shape)


def _check_position(
    position: ScorePosition | None, shape: tuple[int, ...], queries: Array, keys: Array
) -> None:
    if position is None:
        return
    if not isinstance(position, ScorePosition):
        raise checks.refuse(
            TypeError,
            "position",
            "an encoding that acts on scores, or None",
            f"{position!r}",
            "pass aj.ALiBi(num_heads); apply others to queries and keys, or to inputs, beforehand",
        )
    added = jax.eval_shape(position.bias, queries, keys).shape
    added = (1,) * (len(shape) - len(added)) + added
    checks.check_broadcastable("bias of position", added, shape)


def _check_scale(scale: float | Array | None, width: int) -> float | Array:
    if scale is None:
        return width**-0.5
    if isinstance(scale, jax.Array):
        checks.check_floating("scale", scale)
        if scale.shape != ():
            raise checks.refuse(
                ValueError,
                "scale",
                "a number or an array of shape ()",
                f"shape {scale.shape}",
                "multiply the query by factors that differ between heads",
            )
        return scale
    checks.check_real("scale", scale)
    if not abs(scale) <= checks.LARGEST:
        raise checks.refuse(
            ValueError, "scale", "a finite number", scale, "None takes the default, 0.0 means zero"
        )
    return float(scale)
