"""What attention costs: parameters, FLOPs, bytes and caches, per form."""

from attention_jax.cost.layer import Cost as Cost
from attention_jax.cost.layer import Form as Form
from attention_jax.cost.layer import attention as attention
from attention_jax.cost.lengths import break_even_length as break_even_length
from attention_jax.cost.pairs import attended_pairs as attended_pairs
