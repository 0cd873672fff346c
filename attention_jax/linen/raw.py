"""The raw form as a Flax module."""

from attention_jax import checks
from attention_jax.core import layer, raw
from attention_jax.linen.cached import CachedAttention
from attention_jax.linen.module import Prepared, Projections, Widths


class RawAttention(CachedAttention):
    """Attention without parameters: `y_i = sum_j softmax(scale x_i . x_j) x_j`.

    Attributes:
      scale: Factor of the scores, 1 by default.
      position: A rotary encoding of even input width, `aj.ALiBi(1)`, or None.
      softcap: Positive bound of the scores, or None.
      dropout_rate: Probability in [0, 1) of dropping a weight, independent everywhere.
      deterministic: Whether dropout is off, unless the call says so.
      dtype: Of the computation; by default that of the inputs.
      precision: Of both matrix products.
      implementation: See `attend`.

    Raises:
      ValueError: Sizes or settings do not fit; `inputs_k` must be as wide as `inputs_q`.
      TypeError: A mask is not boolean.

    Example:
      >>> import jax.numpy as jnp
      >>> x = jnp.array([[[1.0, 0.0], [0.0, 0.0]]])
      >>> RawAttention().apply({}, x)[0, 1].tolist()
      [0.5, 0.0]
    """

    scale: float = 1.0

    @property
    def _projections(self) -> Projections:
        return Projections(raw.query_key, raw.value_output)

    def __post_init__(self) -> None:
        """Checks the settings that need no inputs."""
        layer.check_alibi(self.position, 1)
        super().__post_init__()

    def _query_width(self, widths: Widths) -> int:
        return widths.key

    def _kept_shapes(self, features: int | None) -> dict[str, tuple[int, ...] | None]:
        return {"inputs": None if features is None else (features,)}

    def _prepare(self, widths: Widths) -> Prepared:
        if self.variables.get("params"):
            raise checks.refuse(
                ValueError,
                "params",
                "none, because raw attention has no weights",
                ", ".join(self.variables["params"]),
                "use the module the parameters were made with",
            )
        if widths.query != widths.key:
            raise checks.refuse(
                ValueError,
                "inputs_k",
                f"width D={widths.query} as inputs_q, because nothing projects them",
                f"width {widths.key}",
                "use MergedAttention, whose W_qk is rectangular",
            )
        return Prepared({}, self.scale)
