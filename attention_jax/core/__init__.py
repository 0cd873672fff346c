"""Pure functions: one evaluation, three projections."""

from attention_jax.core.attend import attend as attend
from attention_jax.core.layer import attention as attention
