"""Token numbers, padding, and the positions of what follows a cache."""

import jax
import jax.numpy as jnp
import numpy as np

from attention_jax import checks
from attention_jax.types import Array, Bool, Int


def checked_ids(argument: str, ids: Int[Array, "B T"], size: int) -> Int[Array, "B T"]:
    """Returns `ids`, of at least 32 bits, traced ones outside 0 to `size` as `size`.

    Negative indices would count from the end; beyond the end a lookup gives NaN.
    """
    _check_kind(argument, ids)
    if not isinstance(ids, jax.core.Tracer) and ids.size:
        known = np.asarray(ids)
        least, greatest = known.min(), known.max()
        if least < 0 or greatest >= size:
            raise checks.refuse(
                ValueError,
                argument,
                f"between 0 and {size - 1}",
                f"from {least} to {greatest}",
                "use the tokenizer that the model was trained with",
            )
    ids = checks.signed(ids)
    return jnp.where((ids < 0) | (ids >= size), size, ids)


def checked_types(
    token_types: Int[Array, "B T"] | None, tokens: Int[Array, "B T"], size: int
) -> Int[Array, "B T"]:
    """Returns the types of `tokens`, by default 0, with the checks of `checked_ids`."""
    types = jnp.zeros_like(tokens) if token_types is None else token_types
    types = checked_ids("token_types", types, size)
    if types.shape != tokens.shape:
        raise checks.refuse(
            ValueError,
            "token_types",
            f"shape {tokens.shape} as tokens",
            f"shape {types.shape}",
            "give each token its type",
        )
    return types


def without_padding(
    tokens: Int[Array, "B T"], valid: Bool[Array, "B T"] | None
) -> Int[Array, "B T"]:
    """Returns `tokens` with 0 at padding, where often a number stands that is no token."""
    _check_kind("tokens", tokens)
    if valid is None:
        return tokens
    if not checks.is_array(valid) or valid.dtype != jnp.bool_:
        raise checks.refuse(
            TypeError, "valid", "an array of booleans, False at padding",
            valid.dtype if checks.is_array(valid) else type(valid).__name__,
            "compare the tokens with the one that stands at padding",
        )  # fmt: skip
    if valid.shape != tokens.shape:
        raise checks.refuse(
            ValueError, "valid", f"shape {tokens.shape} as tokens", f"shape {valid.shape}",
            "say it of each token",
        )  # fmt: skip
    return jnp.where(valid, tokens, 0)


def next_positions(
    first: Int[Array, " B"], length: int, valid: Bool[Array, "B T"] | None
) -> Int[Array, "B T"]:
    """Returns positions that count the valid tokens of each row from `first` on."""
    ahead = jnp.arange(length)[None] if valid is None else jnp.cumsum(valid, axis=1) - 1
    # Padding stands where the token before it does, or else at 0, which every table has.
    return jnp.maximum(first[:, None] + ahead, 0)


def _check_kind(argument: str, ids: Int[Array, "B T"]) -> None:
    if not checks.is_array(ids) or not jnp.issubdtype(ids.dtype, jnp.integer):
        raise checks.refuse(
            TypeError,
            argument,
            "an array of integers",
            ids.dtype if checks.is_array(ids) else type(ids).__name__,
            "pass token numbers as jnp.int32",
        )
    if ids.ndim != 2:
        raise checks.refuse(
            ValueError, argument, "[B, T]", f"shape {ids.shape}", "add the axis of the batch"
        )
