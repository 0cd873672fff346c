"""Initial parameters: every form starts from the same draw, merged ones from the same function."""

import dataclasses
import functools
import typing

import jax
import jax.numpy as jnp

import attention_jax as aj
from train import config as config_lib
from train import model as model_lib

Params = dict[str, typing.Any]


def initial_params(config: config_lib.ModelConfig, seed: int | jax.Array) -> Params:
    """The parameters at step 0.

    Args:
      config: the model; merged with `start="separate"` converts the separate form's own draw
        (W_qk = W_q W_k^T), so that both forms are the same function.
      seed: the run's seed.

    Returns:
      The tree of parameters.
    """
    if config.dtype == "float64" and not typing.cast(typing.Any, jax.config).jax_enable_x64:
        raise ValueError(
            "model.dtype: expected float64 to be enabled, got jax_enable_x64=False; "
            "set the environment variable JAX_ENABLE_X64=1 or use float32"
        )
    converts = config.form == "merged" and config.start == "separate"
    drawn = dataclasses.replace(config, form="separate") if converts else config
    tokens = jnp.zeros((1, config.context), jnp.int32)
    variables = model_lib.Decoder(drawn).init(jax.random.key(seed), tokens, deterministic=True)
    params = dict(variables["params"])
    if not converts:
        return params
    conversion = functools.partial(
        aj.merge, softcap=config.softcap, position=model_lib.position(drawn)
    )
    return aj.convert(params, conversion)


def abstract_params(config: config_lib.ModelConfig) -> Params:
    """Shapes and dtypes of `initial_params`, computing nothing."""
    return jax.eval_shape(functools.partial(initial_params, config, 0))
