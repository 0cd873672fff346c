"""A mask for given scores: checked, and as an array."""

import jax

from attention_jax import checks
from attention_jax.masks.arrays import with_ndim
from attention_jax.masks.mask import All, Explicit, Mask, as_mask, parts
from attention_jax.types import BooleanMask, KeyPositions, QueryPositions


def check_mask(
    mask: Mask | BooleanMask | None,
    shape: tuple[int, ...],
    query_positions: QueryPositions,
    key_positions: KeyPositions,
) -> Mask | None:
    """Returns `mask` as a mask object, checked against the scores' `shape` = `[..., H, T, S]`.

    Raises:
      TypeError: The mask is not boolean.
      ValueError: The mask does not broadcast to `shape`, or is ambiguous.
    """
    if mask is None:
        return None
    found = parts(as_mask(mask))
    for part in found:
        part.check_lengths(*shape[-2:])
        if isinstance(part, Explicit):
            checks.check_broadcastable("mask", part.array.shape, shape)
    checked = found[0] if len(found) == 1 else All(found)
    rendered = jax.eval_shape(checked.render, query_positions, key_positions).shape
    checks.check_broadcastable("mask", (1,) * (len(shape) - len(rendered)) + rendered, shape)
    return checked


def render(
    mask: Mask | BooleanMask | None,
    shape: tuple[int, ...],
    query_positions: QueryPositions,
    key_positions: KeyPositions,
) -> BooleanMask | None:
    """Returns a mask that `check_mask` allows as booleans with as many axes as `shape`."""
    checked = check_mask(mask, shape, query_positions, key_positions)
    if checked is None:
        return None
    return with_ndim(checked.render(query_positions, key_positions), len(shape))
