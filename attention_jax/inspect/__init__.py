"""What the attention matrices of a published checkpoint are: `python -m attention_jax.inspect`."""

from attention_jax.inspect.inspection import Inspection as Inspection
from attention_jax.inspect.inspection import inspect as inspect
