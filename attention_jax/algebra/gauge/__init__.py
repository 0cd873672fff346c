"""The gauge of a separate layer: the choice of factors of W_qk and W_ov, which no output sees.

For each key head any invertible A gives the same scores, `(W_q A) (W_k A^-T)^T = W_q W_k^T`, and
for each value head the same outputs, `(W_v A) (A^-1 W_o) = W_v W_o`.
"""

from attention_jax.algebra.gauge.balanced import balance as balance
from attention_jax.algebra.gauge.balanced import canonical as canonical
from attention_jax.algebra.gauge.change import change as change
from attention_jax.algebra.gauge.drawn import draw as draw
from attention_jax.algebra.gauge.drawn import random as random
