"""Positions as data: frozen dataclasses, each of which declares where it acts."""

from attention_jax.positions.alibi import ALiBi as ALiBi
from attention_jax.positions.inputs import Learned as Learned
from attention_jax.positions.inputs import Sinusoidal as Sinusoidal
from attention_jax.positions.position import InputPosition as InputPosition
from attention_jax.positions.position import Position as Position
from attention_jax.positions.position import QueryKeyPosition as QueryKeyPosition
from attention_jax.positions.position import ScorePosition as ScorePosition
from attention_jax.positions.position import check_position as check_position
from attention_jax.positions.position import check_positions as check_positions
from attention_jax.positions.position import positions_or_default as positions_or_default
from attention_jax.positions.rotary import Rotary as Rotary
