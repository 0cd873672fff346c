"""Decoding for any step function: choosing tokens, and the loop that feeds them back."""

from attention_jax.decode.loop import Sampling as Sampling
from attention_jax.decode.loop import State as State
from attention_jax.decode.loop import Step as Step
from attention_jax.decode.loop import begin as begin
from attention_jax.decode.loop import loop as loop
from attention_jax.decode.sampling import greedy as greedy
from attention_jax.decode.sampling import sample as sample
