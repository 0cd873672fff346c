"""The bilinear forms inside layers, W_qk and W_ov, as objects."""

from attention_jax.algebra.circuits.circuit import Circuit as Circuit
from attention_jax.algebra.circuits.composition import Composition as Composition
from attention_jax.algebra.circuits.composition import composition as composition
from attention_jax.algebra.circuits.curve import TruncationCurve as TruncationCurve
from attention_jax.algebra.circuits.curve import truncation_curve as truncation_curve
from attention_jax.algebra.circuits.layer import ov as ov
from attention_jax.algebra.circuits.layer import qk as qk
from attention_jax.algebra.circuits.rotary import RotaryFamily as RotaryFamily
from attention_jax.algebra.circuits.rotary import rotary_qk as rotary_qk
from attention_jax.algebra.circuits.tokens import TokenCircuit as TokenCircuit
from attention_jax.algebra.circuits.truncation import truncate as truncate
