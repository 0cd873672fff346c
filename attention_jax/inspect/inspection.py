"""All that is measured of one checkpoint."""

import dataclasses
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attention_jax import checkpoint
from attention_jax.algebra import circuits
from attention_jax.inspect.cache import Cache, compare
from attention_jax.inspect.sample import Sample, sample
from attention_jax.inspect.side import Side, describe
from attention_jax.masks import causal
from attention_jax.models import Transformer, TransformerConfig
from attention_jax.positions import InputPosition, QueryKeyPosition, Rotary
from attention_jax.types import Array, Parameters

CURVES = (
    "qk_scores",
    "qk_scores_bound",
    "qk_output",
    "qk_output_bound",
    "ov_output",
    "ov_output_bound",
)
OFFSETS = 64
"""Rotary matrices are averaged over offsets from 0 to this."""


@dataclasses.dataclass(frozen=True, eq=False)
class Inspection:
    """What the attention matrices of one checkpoint are.

    Attributes:
      path: What was inspected.
      config: The model's settings.
      parameters: Number of its parameters.
      layers: Names of the layers with their own parameters.
      qk: Measures of W_qk; of rotary heads at offset 0.
      ov: Measures of W_ov.
      qk_mean_norm: Of rotary heads, `[layers, H]`: the norm of the mean of W(offset) over offsets
        from 0 to 63, divided by that of W(0): what does not depend on the distance. Else None.
      ranks: The kept ranks of the curves.
      curves: Relative errors by name, `[layers, ranks, H]`; see `circuits.TruncationCurve`. Without
        those of W_qk where it is not one matrix.
      sample: The tokens of the curves.
      cache: Cache bytes per token.
    """

    path: str
    config: TransformerConfig
    parameters: int
    layers: tuple[str, ...]
    qk: Side
    ov: Side
    qk_mean_norm: np.ndarray | None
    ranks: tuple[int, ...]
    curves: dict[str, np.ndarray]
    sample: Sample
    cache: Cache

    def to_json(self) -> dict[str, Any]:
        """Returns everything as plain lists, numbers and strings."""
        position = self.config.position
        return {
            "path": self.path,
            "config": {
                **{
                    field.name: getattr(self.config, field.name)
                    for field in dataclasses.fields(self.config)
                },
                "position": None if position is None else repr(position),
            },
            "parameters": self.parameters,
            "layers": list(self.layers),
            "qk": {name: _plain(array) for name, array in vars(self.qk).items()},
            "ov": {name: _plain(array) for name, array in vars(self.ov).items()},
            "qk_mean_norm": None if self.qk_mean_norm is None else _plain(self.qk_mean_norm),
            "ranks": list(self.ranks),
            "curves": {name: _plain(array) for name, array in self.curves.items()},
            "sample": {"tokens": _plain(self.sample.tokens), "source": self.sample.source},
            "cache": dataclasses.asdict(self.cache),
        }


def inspect(
    path: str | os.PathLike[str],
    *,
    text: str | None = None,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> Inspection:
    """Measures W_qk and W_ov of every head of a published checkpoint.

    Args:
      path: See `checkpoint.load`.
      text: On which truncation is measured; by default the beginning of a novel, or random tokens
        where there is no tokenizer.
      progress: Called with the name of the work, the layers done and all layers.

    Raises:
      FileNotFoundError: There is no such file.
      ValueError: A file is damaged or does not fit its settings.
      NotImplementedError: The architecture or a setting is not supported.

    Example:
      >>> found = inspect("tests/checkpoint/data/tiny_gpt2")
      >>> found.qk.rank.tolist(), found.ranks, found.curves["ov_output"].shape
      ([[4, 4, 4], [4, 4, 4]], (1, 2, 3, 4), (2, 4, 3))
    """
    config, params = checkpoint.load(path)
    layers = tuple(f"block_{index}" for index in range(config.groups))
    attention = [params[name]["attention"] for name in layers]
    qk, mean_norm = _qk(config, attention)
    ov = describe([circuits.ov(layer) for layer in attention])
    drawn = sample(path, config, text)
    ranks = _ranks(qk.singular_values.shape[-1])
    inputs = _attention_inputs(config, params, drawn.tokens)
    curves = []
    for index, layer in enumerate(attention):
        progress("truncation", index, len(layers))
        curves.append(_curve(config, layer, inputs[index], ranks))
    progress("truncation", len(layers), len(layers))
    leaves = jax.tree.leaves(params)
    return Inspection(
        path=str(path),
        config=config,
        parameters=sum(leaf.size for leaf in leaves),
        layers=layers,
        qk=qk,
        ov=ov,
        qk_mean_norm=mean_norm,
        ranks=ranks,
        curves={name: np.stack([curve[name] for curve in curves]) for name in curves[0]},
        sample=drawn,
        cache=compare(config, attention[0]["query"]["kernel"].dtype.itemsize),
    )


def _qk(config: TransformerConfig, layers: list[Parameters]) -> tuple[Side, np.ndarray | None]:
    if not isinstance(config.position, Rotary):
        return describe([circuits.qk(layer) for layer in layers]), None
    families = [circuits.rotary_qk(layer, config.position) for layer in layers]
    at_zero = describe([family.at(0) for family in families])
    means = [np.asarray(family.mean(jnp.arange(OFFSETS)).frobenius_norm()) for family in families]
    return at_zero, np.stack(means) / np.where(at_zero.norm == 0, 1.0, at_zero.norm)


def _ranks(width: int) -> tuple[int, ...]:
    """Returns about ten ranks up to `width`."""
    fractions = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 3 / 8, 1 / 2, 5 / 8, 3 / 4, 7 / 8, 15 / 16, 1)
    return tuple(sorted({max(1, round(width * fraction)) for fraction in fractions}))


def _attention_inputs(
    config: TransformerConfig, params: Parameters, tokens: np.ndarray
) -> list[Array]:
    """Returns what each layer reads, `[B, T, D]`; what shared layers read is stacked along B."""
    model = Transformer(config)
    run = jax.jit(
        lambda params, tokens: model.apply(
            {"params": params},
            tokens,
            deterministic=True,
            method="encode",
            mutable=["intermediates"],
        )[1]
    )
    sown = run(params, jnp.asarray(tokens))["intermediates"]
    return [
        jnp.concatenate(sown[f"block_{index}"]["attention_inputs"])
        for index in range(config.groups)
    ]


def _curve(
    config: TransformerConfig, layer: Parameters, inputs: Array, ranks: tuple[int, ...]
) -> dict[str, np.ndarray]:
    position = None if isinstance(config.position, InputPosition) else config.position
    one_matrix = not isinstance(position, QueryKeyPosition) and not config.normalize_qk
    width = layer["query"]["kernel"].shape[-1]
    curve = circuits.truncation_curve(
        layer,
        inputs,
        ranks=ranks,
        scale=float(width**-0.5 if config.scale is None else config.scale),
        qk=one_matrix,
        mask=causal() if config.causal else None,
        position=position,
        softcap=config.softcap,
    )
    found = {name: getattr(curve, name) for name in CURVES}
    return {name: np.asarray(array) for name, array in found.items() if array is not None}


def _plain(array: np.ndarray) -> Any:
    """Returns nested lists; numbers that are not finite, which JSON has not, become None."""
    values = array.astype(object)
    if np.issubdtype(array.dtype, np.floating):
        values[~np.isfinite(array)] = None
    return values.tolist()
