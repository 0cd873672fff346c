"""attention-jax: separate, merged and raw attention, and exact conversions between them.

The functions need only JAX and NumPy. The Flax modules and the assertions are imported when their
names are first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

from attention_jax import caches as caches
from attention_jax import cost as cost
from attention_jax import decode as decode
from attention_jax.algebra import circuits as circuits
from attention_jax.algebra import gauge as gauge
from attention_jax.algebra.convert import convert as convert
from attention_jax.algebra.factor import factor as factor
from attention_jax.algebra.merge import merge as merge
from attention_jax.core.attend import attend as attend
from attention_jax.masks import causal as causal
from attention_jax.masks import padding as padding
from attention_jax.masks import segments as segments
from attention_jax.masks import sliding_window as sliding_window
from attention_jax.positions import ALiBi as ALiBi
from attention_jax.positions import Learned as Learned
from attention_jax.positions import Rotary as Rotary
from attention_jax.positions import Sinusoidal as Sinusoidal
from attention_jax.version import __version__ as __version__

if TYPE_CHECKING:
    from attention_jax import checkpoint as checkpoint
    from attention_jax import linen as linen
    from attention_jax import models as models
    from attention_jax import nnx as nnx
    from attention_jax import testing as testing
    from attention_jax.linen import LearnedPositions as LearnedPositions
    from attention_jax.linen import MergedAttention as MergedAttention
    from attention_jax.linen import RawAttention as RawAttention
    from attention_jax.linen import SeparateAttention as SeparateAttention

_MODULES = ("checkpoint", "linen", "models", "nnx", "testing")
_LINEN = ("LearnedPositions", "MergedAttention", "RawAttention", "SeparateAttention")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"attention_jax.{name}")
    if name in _LINEN:
        return getattr(importlib.import_module("attention_jax.linen"), name)
    raise AttributeError(f"module 'attention_jax' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, *_LINEN})
