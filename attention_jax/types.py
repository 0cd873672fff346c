"""Axis glossary and array aliases.

One letter means one axis everywhere: in annotations, in einsum strings and in docstrings.

| letter | axis                                         |
|--------|----------------------------------------------|
| B      | batch; any number of leading axes            |
| T      | query length                                 |
| S      | key and value length                         |
| H      | query heads                                  |
| G      | key heads, a divisor of H                    |
| N      | value heads, a divisor of H, usually G       |
| J      | query heads that share a key head, H = G * J |
| D      | model width of the queries' side             |
| E      | model width of the keys' side                |
| F      | model width of the values' side, usually E   |
| O      | output width                                 |
| K      | query and key width of one head              |
| V      | value width of one head                      |
| R      | rank                                         |

Where matrices are meant in general they have M rows and N columns (or Q, for a second rank).

Length comes before heads: `[..., T, H, K]`. A multiply-add counts as two FLOPs. Units are in names
(`_bytes`, `_flops`, `_s`). True in a mask means: this query may attend this key.
"""

from collections.abc import Mapping
from typing import Any

import jax
from jaxtyping import Array as Array
from jaxtyping import Bool as Bool
from jaxtyping import Complex as Complex
from jaxtyping import Float as Float
from jaxtyping import Int as Int
from jaxtyping import Num as Num
from jaxtyping import PRNGKeyArray, UInt32

QueryInputs = Float[Array, "*B T D"]
KeyInputs = Float[Array, "*B S E"]
ValueInputs = Float[Array, "*B S F"]
Outputs = Float[Array, "*B T O"]

Query = Float[Array, "*B T H K"]
Key = Float[Array, "*B S G K"]
Value = Float[Array, "*B S N V"]
Heads = Float[Array, "*B T H V"]
Weights = Float[Array, "*B H T S"]

Positions = Num[Array, "..."]
"""Positions of tokens, `[length]` or `[..., length]`; not array indices. They start at 0."""
QueryPositions = Num[Array, "... T"]
KeyPositions = Num[Array, "... S"]

BooleanMask = Bool[Array, "..."]
"""Broadcastable to `[..., H, T, S]`; True where the query may attend the key."""

DropoutKey = PRNGKeyArray | UInt32[Array, " 2"]
Parameters = Mapping[str, Any]
"""The parameters of one attention layer, nested as the Flax modules nest them."""

Precision = jax.lax.PrecisionLike
