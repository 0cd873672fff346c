"""The cache of self-attention."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from attention_jax import checks
from attention_jax.core.form import QueryKey, ValueOutput
from attention_jax.types import Array, Bool, Float, Int

STATIC = {"static": True}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Cache:
    """What a layer keeps of the tokens so far, in C slots; made by `init_cache`, a pytree.

    Tokens of all rows fill the slots from the left, padding included. With a window as long as the
    cache, each row fills its slots in a circle instead, padding left out: slot `position % C`.

    Attributes:
      key: Keys `[B, G, C, K]`, rotated to their positions, where the layer keeps keys. Heads come
        before slots here, which halves the time that one token needs.
      value: Values `[B, N, C, V]`, where it keeps values.
      inputs: Inputs `[B, C, D]`, once for all heads, where keys or values are inputs. An array that
        is kept is None before the first tokens, if `init_cache` could not know its width.
      positions: Position of the token in each slot, `[B, C]`.
      valid: Whether a slot holds a token that may be seen, `[B, C]`.
      length: Number of filled slots. More than C after an overflow under `jax.jit`.
      next_position: Position of the next token of each row, `[B]`.
      keeps: Which of "key", "value" and "inputs" the layer keeps.
      dtype: Of the arrays that are kept.
      rounds: Whether wider numbers are rounded to `dtype`, or else refused.
      window: How many tokens a token sees, itself included; None means all.
    """

    key: Float[Array, "B G C K"] | None
    value: Float[Array, "B N C V"] | None
    inputs: Float[Array, "B C D"] | None
    positions: Int[Array, "B C"]
    valid: Bool[Array, "B C"]
    length: Int[Array, ""]
    next_position: Int[Array, " B"]
    keeps: tuple[str, ...] = dataclasses.field(metadata=STATIC)
    dtype: np.dtype = dataclasses.field(metadata=STATIC)
    rounds: bool = dataclasses.field(metadata=STATIC)
    window: int | None = dataclasses.field(metadata=STATIC)

    @property
    def capacity(self) -> int:
        """The number of slots C."""
        return self.positions.shape[-1]

    @property
    def rolls(self) -> bool:
        """Whether new tokens take the slots of those that no later token sees."""
        return self.window == self.capacity

    @property
    def inputs_alone(self) -> bool:
        """Whether nothing is kept but inputs."""
        return self.keeps == ("inputs",)

    @property
    def entries(self) -> dict[str, Array | None]:
        """The arrays that the layer keeps, by name."""
        return {name: getattr(self, name) for name in self.keeps}


def empty(
    batch_size: int,
    capacity: int,
    shapes: Mapping[str, tuple[int, ...] | None],
    *,
    dtype: DTypeLike = jnp.float32,
    rounds: bool = False,
    window: int | None = None,
) -> Cache:
    """Returns a cache without tokens.

    Args:
      batch_size: Number of rows B.
      capacity: Number of slots C; with a window at most that many are made, and if the window is as
        long as that the number of tokens has no limit.
      shapes: Of what is kept for one token: "key" `(G, K)`, "value" `(N, V)` and "inputs" `(D,)`,
        those of them that the layer keeps. None where it is not known yet; `jax.lax.scan` needs all
        known, because its carry cannot grow.
      dtype: Of the arrays that are kept.
      rounds: Whether wider numbers are rounded to `dtype`, or else refused.
      window: How many tokens a token sees, itself included, or None for all.

    Raises:
      ValueError: A size is below 1.
      TypeError: A size is not an integer, or `dtype` is not floating or not enabled in JAX.

    Example:
      >>> cache = empty(2, 5, {"key": (3, 4), "inputs": None})
      >>> cache.key.shape, cache.inputs, cache.capacity, int(cache.length)
      ((2, 3, 5, 4), None, 5, 0)
      >>> empty(2, 100, {"inputs": (6,)}, window=7).inputs.shape
      (2, 7, 6)
    """
    checks.check_positive_int("batch_size", batch_size)
    checks.check_positive_int("capacity", capacity)
    if window is not None:
        checks.check_positive_int("window", window)
        capacity = min(capacity, window)
    dtype = _floating(dtype)
    kept: dict[str, Any] = {
        name: None
        if shape is None
        else jnp.zeros((batch_size, *shape[:-1], capacity, shape[-1]), dtype)
        for name, shape in shapes.items()
    }
    return Cache(
        key=kept.get("key"),
        value=kept.get("value"),
        inputs=kept.get("inputs"),
        positions=jnp.zeros((batch_size, capacity), jnp.int32),
        valid=jnp.zeros((batch_size, capacity), bool),
        length=jnp.zeros((), jnp.int32),
        next_position=jnp.zeros((batch_size,), jnp.int32),
        keeps=tuple(shapes),
        dtype=dtype,
        rounds=rounds,
        window=window,
    )


def keeps_of(query_key: QueryKey, value_output: ValueOutput) -> tuple[str, ...]:
    """Returns the names of what a cache of this form keeps of each token."""
    key = "key" if query_key.keeps == "heads" else "inputs"
    value = "value" if value_output.keeps == "heads" else "inputs"
    return tuple(dict.fromkeys((key, value)))


def _floating(dtype: DTypeLike) -> np.dtype:
    wanted = jnp.dtype(dtype)
    if not jnp.issubdtype(wanted, jnp.floating) or wanted.itemsize < 2:
        raise checks.refuse(
            TypeError, "dtype", "a floating dtype of 16 bits or more", wanted, "use jnp.float32"
        )
    if jax.dtypes.canonicalize_dtype(wanted) != wanted:
        raise checks.refuse(
            TypeError, "dtype", "a dtype that JAX has enabled", wanted, "enable x64 in JAX"
        )
    return wanted
