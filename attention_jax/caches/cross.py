"""The cache of cross attention: keys and values, projected once."""

import dataclasses

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from attention_jax import checks
from attention_jax.caches.cache import STATIC, keeps_of
from attention_jax.core.form import QueryKey, ValueOutput
from attention_jax.core.layer import attention, check_inputs
from attention_jax.masks import Mask
from attention_jax.positions import Position, check_positions
from attention_jax.types import (
    Array,
    BooleanMask,
    Float,
    Key,
    KeyInputs,
    KeyPositions,
    Outputs,
    Parameters,
    Precision,
    QueryInputs,
    QueryPositions,
    Value,
    ValueInputs,
    Weights,
)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class CrossCache:
    """What queries attend in cross attention; made by `cross_cache`, a pytree.

    Attributes:
      key: Keys `[..., S, G, K]`, where the layer keeps keys.
      value: Values `[..., S, N, V]`, where it keeps values.
      inputs_k: Inputs `[..., S, E]`, where keys are inputs.
      inputs_v: Inputs `[..., S, F]`, where values are inputs and not those of the keys.
      positions: Of the keys, `[..., S]`, or None for 0, 1, ..., S - 1.
      widths: E and F.
    """

    key: Key | None
    value: Value | None
    inputs_k: KeyInputs | None
    inputs_v: ValueInputs | None
    positions: KeyPositions | None
    widths: tuple[int, int] = dataclasses.field(metadata=STATIC)

    @property
    def inputs_alone(self) -> bool:
        """Whether nothing is kept but inputs."""
        return self.key is None and self.value is None


def project(
    query_key: QueryKey,
    value_output: ValueOutput,
    params: Parameters,
    inputs_k: KeyInputs,
    inputs_v: ValueInputs | None = None,
    *,
    key_positions: KeyPositions | None = None,
    dtype: DTypeLike | None = None,
    precision: Precision = None,
) -> CrossCache:
    """Returns the cache of what `inputs_k` and `inputs_v` give; arguments as for `attention`.

    Raises:
      ValueError: The inputs do not fit each other, or positions do not fit them.
      TypeError: They are not floating.

    Example:
      >>> import jax.numpy as jnp
      >>> from attention_jax.core import raw
      >>> project(raw.query_key, raw.value_output, {}, jnp.ones((2, 5, 3))).inputs_k.shape
      (2, 5, 3)
    """
    same = inputs_v is None
    _, inputs_k, inputs_v = check_inputs(inputs_k, inputs_k, inputs_v)
    if key_positions is not None:
        key_positions = check_positions("key_positions", key_positions, inputs_k.shape[:-1])
    arrays = (inputs_k, inputs_v, *jax.tree.leaves(params))
    dtype = jnp.result_type(*arrays) if dtype is None else dtype
    inputs_k, inputs_v, params = jax.tree.map(
        lambda array: jnp.asarray(array, dtype), (inputs_k, inputs_v, dict(params))
    )
    keeps_key, keeps_value = query_key.keeps == "heads", value_output.keeps == "heads"
    return CrossCache(
        key=query_key.key(params, inputs_k, precision) if keeps_key else None,
        value=value_output.project(params, inputs_v, precision) if keeps_value else None,
        inputs_k=None if keeps_key else inputs_k,
        inputs_v=None if keeps_value or (same and not keeps_key) else inputs_v,
        positions=key_positions,
        widths=(inputs_k.shape[-1], inputs_v.shape[-1]),
    )


def attend(
    query_key: QueryKey,
    value_output: ValueOutput,
    params: Parameters,
    x: QueryInputs,
    cache: CrossCache,
    *,
    scale: float,
    mask: Mask | BooleanMask | None = None,
    bias: Float[Array, "..."] | None = None,
    position: Position | None = None,
    query_positions: QueryPositions | None = None,
    softcap: float | None = None,
    dtype: DTypeLike | None = None,
    precision: Precision = None,
    implementation: str = "auto",
    return_weights: bool = False,
) -> Outputs | tuple[Outputs, Weights]:
    """Returns what `core.layer.attention` returns for the inputs that the cache was made of.

    Example:
      >>> import jax.numpy as jnp
      >>> from attention_jax.core import raw
      >>> cache = project(raw.query_key, raw.value_output, {}, jnp.array([[1.0], [3.0]]))
      >>> attend(raw.query_key, raw.value_output, {}, jnp.ones((1, 1)), cache, scale=0.0).item()
      2.0
    """
    expected = set(keeps_of(query_key, value_output)) - {"inputs"}
    heads = {name for name in ("key", "value") if getattr(cache, name) is not None}
    if heads != expected:
        raise checks.refuse(
            ValueError,
            "cache",
            f"one with {' and '.join(sorted(expected)) or 'inputs alone'}",
            f"one with {' and '.join(sorted(heads)) or 'inputs alone'}",
            "make it with this layer's cross_cache",
        )
    kept = jax.tree.leaves((cache.key, cache.value, cache.inputs_k, cache.inputs_v))
    dtype = jnp.result_type(x, *jax.tree.leaves(params), *kept) if dtype is None else dtype
    # Where heads are kept the inputs say nothing but how many keys there are.
    lengths = kept[0].shape[:-2] if heads else kept[0].shape[:-1]
    inputs_k = cache.inputs_k if cache.key is None else jnp.zeros((*lengths, 1), dtype)
    inputs_v = inputs_k if cache.inputs_v is None else cache.inputs_v
    if cache.key is not None:
        key = cache.key.astype(dtype)
        query_key = query_key._replace(key=lambda *_: key)
    if cache.value is not None:
        value = cache.value.astype(dtype)
        value_output = value_output._replace(project=lambda *_: value)
    return attention(
        query_key,
        value_output,
        params,
        x,
        inputs_k,
        inputs_v,
        scale=scale,
        mask=mask,
        bias=bias,
        position=position,
        query_positions=query_positions,
        key_positions=cache.positions,
        softcap=softcap,
        dtype=dtype,
        precision=precision,
        implementation=implementation,
        return_weights=return_weights,
    )
