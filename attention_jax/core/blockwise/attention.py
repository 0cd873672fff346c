"""The blockwise path for a request."""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from attention_jax.core import dropout
from attention_jax.core.blockwise.backward import Residuals, backward
from attention_jax.core.blockwise.forward import forward
from attention_jax.core.blockwise.plan import Plan
from attention_jax.core.blockwise.problem import Given, Inputs, Settings
from attention_jax.core.derivatives import first_order_only, reverse_mode_only
from attention_jax.masks.arrays import one_batch_axis
from attention_jax.positions import ScorePosition
from attention_jax.request import Request
from attention_jax.types import Array, Heads


def blockwise_attention(request: Request, plan: Plan) -> Heads:
    """Returns the output of `attend` `[..., T, H, V]` without ever holding `T` times `S` scores.

    For each block of queries it goes through the blocks of keys, keeping of each row the largest
    score, the sum of exponentials and the weighted sum of values. Blocks that the mask hides are
    skipped, those that it shows whole are not masked. The backward pass computes the weights again
    from the log-sum-exp of the rows, block by block.

    Papers: Milakov and Gimelshein, Online normalizer calculation for softmax, arXiv 1805.02867;
    Rabe and Staats, Self-attention does not need O(n^2) memory, arXiv 2112.05682; Dao et al.,
    FlashAttention, arXiv 2205.14135 (section 3 and appendix B for the backward pass).
    """
    batch = request.query.shape[:-3]
    rows = math.prod(batch)
    leaves, position = _position(request.position)
    varies = isinstance(request.scale, jax.Array)

    def one_axis(x: Array, ndim: int) -> Array:
        return one_batch_axis(x, batch, ndim)

    query, key, value = (
        x.reshape(rows, *x.shape[-3:]) for x in (request.query, request.key, request.value)
    )
    inputs = Inputs(
        query,
        key,
        value,
        bias=None if request.bias is None else one_axis(request.bias, 3),
        scale=jnp.asarray(request.scale) if varies else None,
        position=leaves,
    )
    seeds = None
    if request.dropout_key is not None:
        heads = request.query.shape[-2]
        seeds = dropout.words(request.dropout_key, (*batch, heads)).reshape(rows, heads, 2)
    # A mask that is known now must stay so, or the compiler folds its constants, which is slow.
    with jax.ensure_compile_time_eval():
        mask = None if request.mask is None else request.mask._rows(batch)
    given = Given(
        mask,
        one_axis(request.query_positions, 1),
        one_axis(request.key_positions, 1),
        seeds,
    )
    settings = Settings(
        plan,
        None if varies else float(request.scale),
        request.softcap,
        request.dropout_rate,
        request.precision,
        position,
    )
    inputs, given = _equally_varying(inputs, given)
    output = _attention(settings, jax.tree.map(reverse_mode_only, inputs), given)
    return output.reshape(*batch, *output.shape[1:])


def _equally_varying(inputs: Inputs, given: Given) -> tuple[Inputs, Given]:
    """Returns arrays that all vary over the same mesh axes inside `jax.shard_map`.

    Loops there refuse sums that begin the same on all devices and end differently; and what all
    devices share gets the sum of their gradients.
    """

    def axes(x: Array) -> frozenset:
        return jax.typeof(x).manual_axis_type.varying

    everywhere = frozenset().union(*map(axes, jax.tree.leaves((inputs, given))))

    def vary(x: Array) -> Array:
        missing = tuple(sorted(everywhere - axes(x)))
        return jax.lax.pcast(x, missing, to="varying") if missing else x

    return jax.tree.map(vary, (inputs, given))


def _position(
    position: ScorePosition | None,
) -> tuple[tuple[Array, ...], Callable[..., Array] | None]:
    """Returns the arrays of an encoding, and its bias as a function of them."""
    if position is None:
        return (), None
    leaves, structure = jax.tree.flatten(position)
    arrays = tuple(leaf for leaf in leaves if isinstance(leaf, jax.Array))

    def bias(arrays: tuple[Array, ...], *positions: Array) -> Array:
        given = iter(arrays)
        filled = [next(given) if isinstance(leaf, jax.Array) else leaf for leaf in leaves]
        return jax.tree.unflatten(structure, filled).bias(*positions)

    return arrays, bias


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(settings: Settings, inputs: Inputs, given: Given) -> Array:
    return forward(settings, inputs, given)[0]


def _forward(settings: Settings, inputs: Inputs, given: Given) -> tuple[Array, Residuals]:
    output, total = forward(settings, inputs, given)
    return output, Residuals(inputs, given, output, total)


def _backward(settings: Settings, residuals: Residuals, gradient: Array) -> tuple[Inputs, None]:
    inputs, given, output, total = residuals
    guarded = jax.tree.map(first_order_only, inputs)
    gradient = first_order_only(gradient)
    return backward(settings, Residuals(guarded, given, output, total), gradient), None


_attention.defvjp(_forward, _backward)
