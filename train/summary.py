"""What a finished run leaves beside its losses: sizes, FLOPs and spectra of W_qk."""

import math
import typing

import jax
import jax.numpy as jnp
import numpy as np

import attention_jax as aj
from train import config as config_lib
from train import start

Spectra = dict[str, dict[str, list]]


def _attention_layers(params: start.Params) -> dict[str, start.Params]:
    """The layers that have attention weights, in the order of their numbers."""
    names = [name for name in params if name.startswith("block_") and "attention" in params[name]]
    names.sort(key=lambda name: int(name.removeprefix("block_")))
    return {name: params[name]["attention"] for name in names}


@jax.jit
def _ranks(layer: start.Params) -> dict[str, jax.Array]:
    circuit = aj.circuits.qk(layer)
    return {
        "rank": circuit.rank(),
        "stable_rank": circuit.stable_rank(),
        "effective_rank": circuit.effective_rank(),
    }


def ranks(params: start.Params) -> Spectra:
    """Numerical, stable and effective rank of every head's W_qk by layer; empty for raw."""
    layers = _attention_layers(params)
    return {
        name: {kind: np.asarray(value).tolist() for kind, value in _ranks(layer).items()}
        for name, layer in layers.items()
    }


def spectra(params: start.Params) -> Spectra:
    """`ranks` with every head's singular values."""
    result = ranks(params)
    for name, layer in _attention_layers(params).items():
        values = aj.circuits.qk(layer).singular_values()
        result[name]["singular_values"] = np.asarray(values).tolist()
    return result


def _size(tree: typing.Any) -> int:
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


def sizes(config: config_lib.Config) -> dict[str, int]:
    """Parameters, training FLOPs (a multiply-add is 2) and cache bytes of a config."""
    model = config.model
    params = start.abstract_params(model)
    layer = _attention_cost(config)
    tokens = config.data.batch_size * model.context
    dense = 2 * model.num_layers * model.mlp_ratio * model.width**2
    dense += model.vocab_size * model.width
    # Forward 2 FLOPs per weight and token, backward twice that.
    dense_flops = 6 * dense * tokens
    return {
        "parameters": _size(params),
        "attention_parameters": _size(list(_attention_layers(params).values())),
        "train_flops": config.optimizer.steps
        * (dense_flops + model.num_layers * layer.train_flops),
        "cache_bytes_per_token": model.num_layers * layer.cache_bytes_per_token,
    }


def _attention_cost(config: config_lib.Config) -> aj.cost.Cost:
    model = config.model
    return aj.cost.attention(
        typing.cast(typing.Any, model.form),
        d_model=model.width,
        num_heads=model.num_heads,
        head_dim=model.head_dim,
        num_kv_heads=model.num_kv_heads,
        ov=typing.cast(typing.Any, model.ov),
        use_bias=model.use_bias,
        query_length=model.context,
        batch_size=config.data.batch_size,
        dtype_bytes=jnp.dtype(model.dtype).itemsize,
    )
