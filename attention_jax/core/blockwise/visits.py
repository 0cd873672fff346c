"""Which blocks are visited, and in which order."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from attention_jax.core.blockwise.arrays import shared
from attention_jax.core.blockwise.part import Part
from attention_jax.core.blockwise.plan import Plan
from attention_jax.core.blockwise.problem import Given
from attention_jax.masks import seen_blocks
from attention_jax.types import Array


def look(given: Given, plan: Plan) -> tuple[Array, Array]:
    """Returns which pairs of blocks are seen somewhere and everywhere, with axes for B and H."""
    if given.mask is None:
        yes = jnp.ones((1, 1, 1, 1), bool)
        return yes, yes
    with jax.ensure_compile_time_eval():
        return seen_blocks(
            given.mask,
            shared(given.query_positions),
            shared(given.key_positions),
            plan.queries,
            plan.keys,
        )


def order(some: Array, every: Array) -> tuple[Array, Array, Array]:
    """Returns per row of `[m, n]` the blocks to visit, whole ones first, and how many there are.

    Returns:
      Blocks `[m, n]`, the number of whole ones `[m]`, and the number of all that are visited `[m]`.
    """
    rank = jnp.where(every, 0, jnp.where(some, 1, 2))
    blocks = jnp.argsort(rank, axis=1, stable=True)
    return blocks, jnp.sum(every, 1), jnp.sum(some, 1)


def visit(part: Part, row: tuple[Array, Array, Array], step: Callable, carry: Any) -> Any:
    """Calls `carry = step(block, carry, masked)` for the whole blocks, then for those in part."""
    blocks, whole, visited = row
    carry = lax.fori_loop(0, whole, lambda n, carry: step(blocks[n], carry, False), carry)
    if part.given.mask is None and part.sizes.keys % part.plan.keys == 0:
        return carry
    return lax.fori_loop(whole, visited, lambda n, carry: step(blocks[n], carry, True), carry)
