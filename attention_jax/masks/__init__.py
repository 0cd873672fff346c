"""Masks as data: who may attend whom.

A mask is a frozen dataclass and a pytree, so it passes through `jax.jit`. Masks combine with `&`,
with each other and with boolean arrays. `Mask.render` is the only place where a mask becomes an
array, so that dense, blockwise and cached evaluation cannot disagree.
"""

from attention_jax.masks.blocks import seen_blocks as seen_blocks
from attention_jax.masks.build import causal as causal
from attention_jax.masks.build import padding as padding
from attention_jax.masks.build import segments as segments
from attention_jax.masks.build import sliding_window as sliding_window
from attention_jax.masks.mask import Mask as Mask
from attention_jax.masks.render import check_mask as check_mask
from attention_jax.masks.render import render as render
