"""A model in another form: its settings and parameters together."""

import dataclasses
from typing import Any, Literal

from attention_jax import algebra, checks
from attention_jax.algebra.convert import Conversion
from attention_jax.algebra.report import Report
from attention_jax.models.config import TransformerConfig
from attention_jax.types import Parameters

Model = tuple[TransformerConfig, dict[str, Any], Report]


def merge(
    config: TransformerConfig, params: Parameters, *, qk: bool = True, ov: bool = True
) -> Model:
    """Merges the matrices of every layer: the same function with W_qk and W_ov.

    Unlike `aj.convert(params, aj.merge)` it knows the model's position encoding and soft cap, which
    leave no trace in the parameters.

    Args:
      config: The model's settings.
      params: Its parameters.
      qk: Whether to merge W_q with W_k.
      ov: Whether to merge W_v with W_o.

    Returns:
      `(config, params, report)` of the merged model.

    Raises:
      NotImplementedError: A rotary encoding or QK-norm stands between W_q and W_k.
      ValueError: The parameters are not those of a separate model, or nothing is asked for.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from attention_jax.models import Transformer
      >>> config = TransformerConfig(5, 8, 1, 2, 16)
      >>> tokens = jnp.array([[3, 1, 4]])
      >>> params = Transformer(config).init(jax.random.key(0), tokens)["params"]
      >>> merged, merged_params, report = merge(config, params)
      >>> merged.form, merged.ov, report.error < 1e-6
      ('merged', 'merged', True)
      >>> difference = Transformer(merged).apply({"params": merged_params}, tokens) - Transformer(
      ...     config).apply({"params": params}, tokens)
      >>> bool(abs(difference).max() < 1e-5)
      True
    """

    def conversion(layer: Parameters) -> dict[str, Any]:
        return algebra.merge(layer, qk=qk, ov=ov, position=config.position, softcap=config.softcap)

    forms: dict[str, Literal["merged"]] = {}
    if qk:
        forms["form"] = "merged"
    if ov:
        forms["ov"] = "merged"
    # The merged layer keeps the scale of the head that it stands for.
    return _converted(config, params, conversion, head_dim=_head_dim(config), **forms)


def factor(
    config: TransformerConfig,
    params: Parameters,
    *,
    head_dim: int | None = None,
    num_kv_heads: int | None = None,
) -> Model:
    """Factors the merged matrices of every layer into two of width `head_dim`.

    Args:
      config: The model's settings.
      params: Its parameters.
      head_dim: Width of the factors; by default that of the heads that were merged, with which the
        function is the same up to rounding.
      num_kv_heads: Key and value heads; by default those of `config`.

    Returns:
      `(config, params, report)` of the separate model; the report says the error.

    Raises:
      ValueError: Nothing is merged, or sizes do not fit.
      NotImplementedError: Another width while one part of the layer stays separate.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from attention_jax.models import Transformer
      >>> config = TransformerConfig(5, 8, 1, 2, 16, form="merged", ov="merged")
      >>> tokens = jnp.array([[3, 1, 4]])
      >>> params = Transformer(config).init(jax.random.key(0), tokens)["params"]
      >>> separate, _, report = factor(config, params)
      >>> separate.form, separate.ov, report.error < 1e-6
      ('separate', 'separate', True)
      >>> factor(config, params, head_dim=1)[2].error > 0.1
      True
    """
    width = _head_dim(config)
    head_dim = width if head_dim is None else head_dim
    groups = config.num_kv_heads if num_kv_heads is None else num_kv_heads

    if (head_dim, groups) != (width, config.num_kv_heads) and "separate" in (
        config.form,
        config.ov,
    ):
        raise checks.refuse(
            NotImplementedError,
            "head_dim, num_kv_heads",
            "those of the part that is not merged",
            f"head_dim={head_dim}, num_kv_heads={groups}",
            "merge the other part too: heads of one layer have one width",
        )

    def conversion(layer: Parameters) -> dict[str, Any]:
        return algebra.factor(layer, head_dim=head_dim, num_kv_heads=groups)[0]

    # Factors of another width stand for the same scores, so the scale stays.
    scale = config.scale if head_dim == width or config.scale is not None else width**-0.5
    return _converted(
        config,
        params,
        conversion,
        head_dim=head_dim,
        num_kv_heads=groups,
        scale=scale,
        form="separate",
        ov="separate",
    )


def _head_dim(config: TransformerConfig) -> int:
    if config.head_dim is not None:
        return config.head_dim
    if config.width % config.num_heads:
        raise checks.refuse(
            ValueError, "config.width", f"a multiple of num_heads={config.num_heads}",
            config.width, "set head_dim",
        )  # fmt: skip
    return config.width // config.num_heads


def _converted(
    config: TransformerConfig,
    params: Parameters,
    conversion: Conversion,
    **changes: Any,
) -> Model:
    converted, report = algebra.convert(params, conversion, return_report=True)
    if report.refused:
        # One model has one form, so a layer that stays behind is an error here.
        algebra.convert(params, conversion)
    return dataclasses.replace(config, **changes), converted, report
