"""Weights as objects: exact conversions between the forms, and circuits."""

from attention_jax.algebra.convert import convert as convert
from attention_jax.algebra.factor import factor as factor
from attention_jax.algebra.merge import merge as merge
