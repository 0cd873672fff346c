"""AdamW with clipping, warm-up and cosine; decay on kernels and embeddings only."""

import typing

import jax
import optax

from train import config as config_lib

DECAYED = ("kernel", "embedding")


def schedule(settings: config_lib.OptimizerConfig) -> optax.Schedule:
    """The rate of update s = 0, 1, ...: 0 at the first when there is a warm-up."""
    return optax.warmup_cosine_decay_schedule(
        init_value=0.0 if settings.warmup_steps else settings.learning_rate,
        peak_value=settings.learning_rate,
        warmup_steps=settings.warmup_steps,
        decay_steps=settings.steps,
        end_value=settings.final_fraction * settings.learning_rate,
    )


def decay_mask(params: typing.Any) -> typing.Any:
    """True where weight decay acts: leaves named kernel or embedding."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: getattr(path[-1], "key", None) in DECAYED, params
    )


def build(settings: config_lib.OptimizerConfig) -> optax.GradientTransformation:
    """The optimizer of the settings."""
    clip = [] if settings.clip_norm is None else [optax.clip_by_global_norm(settings.clip_norm)]
    adamw = optax.adamw(
        schedule(settings),
        b1=settings.b1,
        b2=settings.b2,
        eps=settings.eps,
        weight_decay=settings.weight_decay,
        mask=decay_mask,
    )
    return optax.chain(*clip, adamw)
