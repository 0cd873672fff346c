"""A mask as an array for given scores."""

from attention_jax import checks
from attention_jax.masks.mask import (
    All,
    Explicit,
    Mask,
    as_mask,
    with_ndim,
)
from attention_jax.masks.mask import parts as parts_of
from attention_jax.types import BooleanMask, KeyPositions, QueryPositions


def render(
    mask: Mask | BooleanMask | None,
    shape: tuple[int, ...],
    query_positions: QueryPositions,
    key_positions: KeyPositions,
) -> BooleanMask | None:
    """Returns `mask` as booleans with as many axes as `shape` = `[..., H, T, S]`, each 1 or full.

    Raises:
      TypeError: The mask is not boolean.
      ValueError: The mask does not broadcast to `shape`, or is ambiguous.
    """
    if mask is None:
        return None
    parts = parts_of(as_mask(mask))
    for part in parts:
        part.check_lengths(*shape[-2:])
        if isinstance(part, Explicit):
            checks.check_broadcastable("mask", part.array.shape, shape)
    rendered = All(parts).render(query_positions, key_positions)
    rendered = with_ndim(rendered, max(len(shape), rendered.ndim))
    checks.check_broadcastable("mask", rendered.shape, shape)
    return rendered
