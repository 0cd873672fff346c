"""All paths from queries, keys and values to outputs, and the arrays of the cases.

Each path is the same function of `[B, T, H, K]`, `[B, S, G, K]` and `[B, S, G, V]`. The modules get
the heads side by side in the inputs, and kernels that select them again, so that their outputs are
the heads before W_o.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import attention_jax as aj


def fill(a, c, m, *shape):
    """Multiples of 1/4 between -2 and 2, exact in bfloat16."""
    n = np.arange(np.prod(shape))
    return (((a * n + c) % m - m // 2) / 4).reshape(shape).astype(np.float32)


def q_fill(*shape):
    return fill(5, 1, 17, *shape)


def k_fill(*shape):
    return fill(7, 3, 13, *shape)


def v_fill(*shape):
    return fill(3, 2, 11, *shape)


def selection(heads, width, wide):
    """`[heads * width, heads, wide]`: takes head h out of heads that lie side by side."""
    kernel = np.zeros((heads * width, heads, wide))
    for h in range(heads):
        for channel in range(width):
            kernel[h * width + channel, h, channel] = 1
    return kernel


def attend(query, key, value, *, mask=None, bias=None, scale=None, softcap=None, dropout_rate=0.0,
           dropout_key=None, return_weights=False, implementation="auto"):  # fmt: skip
    return aj.attend(
        query, key, value, mask=mask, bias=bias, scale=scale, softcap=softcap,
        dropout_rate=dropout_rate, dropout_key=dropout_key, return_weights=return_weights,
        implementation=implementation,
    )  # fmt: skip


def blockwise(function):
    """The function by blocks, with the weights of the dense path: blocks refuse to give any."""

    def path(*arrays, return_weights=False, **settings):
        output = function(*arrays, implementation="blockwise", **settings)
        if not return_weights:
            return output
        with pytest.raises(NotImplementedError, match="return_weights"):
            function(*arrays, implementation="blockwise", return_weights=True, **settings)
        return output, function(*arrays, return_weights=True, **settings)[1]

    return path


SETTINGS = ("scale", "softcap", "dropout_rate", "return_weights")


def layer(query, key, value, *, form, ov, api="linen", mask=None, bias=None, scale=None,
          softcap=None, dropout_rate=0.0, dropout_key=None, return_weights=False,
          implementation="auto"):  # fmt: skip
    heads, groups = query.shape[-2], key.shape[-2]
    width, value_width = query.shape[-1], value.shape[-1]
    wide = max(width, value_width)
    params = {
        "query": {"kernel": selection(heads, width, wide)},
        "key": {"kernel": selection(groups, width, wide)},
        "value": {"kernel": selection(groups, value_width, wide)},
        "out": {"kernel": selection(heads, value_width, wide).transpose(1, 2, 0)},
    }
    params = jax.tree.map(lambda x: jnp.asarray(x, query.dtype), params)
    if form == "merged" or ov == "merged":
        params = aj.merge(params, qk=form == "merged", ov=ov == "merged")
        params = jax.tree.map(lambda x: x.astype(query.dtype), params)
    module = (aj.MergedAttention if form == "merged" else aj.SeparateAttention)(
        num_heads=heads,
        head_dim=wide,
        num_kv_heads=groups,
        out_features=heads * value_width,
        ov=ov,
        use_bias=False,
        scale=width**-0.5 if scale is None else scale,
        softcap=softcap,
        dropout_rate=dropout_rate,
        deterministic=dropout_rate == 0,
        implementation=implementation,
    )
    inputs = [x.reshape(*x.shape[:-2], -1) for x in (query, key, value)]
    settings = {"mask": mask, "bias": bias, "sow_weights": return_weights}
    if api == "nnx":
        forward = nnx.capture(aj.nnx.from_linen(module, params), nnx.Intermediate)
        output, state = forward(*inputs, rngs=dropout_key, **settings)
        sown = nnx.to_pure_dict(state)
    else:
        output, state = module.apply(
            {"params": params},
            *inputs,
            dropout_rng=dropout_key,
            mutable=["intermediates"],
            **settings,
        )
        sown = state.get("intermediates")
    output = output.reshape(*output.shape[:-1], heads, value_width)
    return (output, sown["attention_weights"][0]) if return_weights else output


EAGER_MODULE = functools.partial(layer, form="separate", ov="separate")
FUNCTIONS = {
    "attend_jit": attend,
    "separate": EAGER_MODULE,
    "merged": functools.partial(layer, form="merged", ov="separate"),
    "nnx": functools.partial(layer, form="merged", ov="separate", api="nnx"),
    "blockwise": blockwise(attend),
}
SINGLE = {name: jax.jit(function, static_argnames=SETTINGS) for name, function in FUNCTIONS.items()}


@functools.partial(jax.jit, static_argnames=SETTINGS)
def together(*arrays, **settings):
    return {name: function(*arrays, **settings) for name, function in FUNCTIONS.items()}


def compiled(name):
    """The path under jit. All are compiled at once, which takes a third of the time."""

    def path(*arrays, **settings):
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((arrays, settings))):
            return SINGLE[name](*arrays, **settings)
        try:
            return together(*arrays, **settings)[name]
        except (TypeError, ValueError):
            # What one path refuses, this one must refuse itself.
            return SINGLE[name](*arrays, **settings)

    return path


PATHS = {"attend": attend} | {name: compiled(name) for name in FUNCTIONS}


def variables_of(module, *inputs, seed=0, **settings):
    """Variables with random entries, biases too, in NumPy: initialisers take long to compile."""
    rng = np.random.default_rng(seed)
    init = functools.partial(module.init, **settings)
    shapes = jax.eval_shape(init, jax.random.key(0), *inputs)
    return jax.tree.map(lambda x: jnp.asarray(0.4 * rng.normal(size=x.shape), x.dtype), shapes)
