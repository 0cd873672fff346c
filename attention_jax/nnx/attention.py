"""The base of the NNX modules of all forms: the calls, and the random stream of the dropout."""

from typing import Any

from flax import linen as nn
from flax import nnx
from jax.typing import DTypeLike

from attention_jax import checks
from attention_jax.caches import Cache, CrossCache
from attention_jax.linen.cached import Kind
from attention_jax.masks import Mask
from attention_jax.nnx.twin import Twin
from attention_jax.types import (
    Array,
    Bool,
    BooleanMask,
    DropoutKey,
    Float,
    KeyInputs,
    KeyPositions,
    Outputs,
    Positions,
    QueryInputs,
    QueryPositions,
    ValueInputs,
)


class Attention(Twin):
    """What the modules of all forms share.

    Attributes:
      deterministic: Whether dropout is off, unless the call says so; `train()` and `eval()` set it.
      rngs: The stream of the dropout, or None.
    """

    def __init__(
        self, settings: nn.Module, rngs: nnx.Rngs | None, keep_rngs: bool, **widths: int
    ) -> None:
        """Creates the parameters, and with a dropout rate a stream of its own."""
        super().__init__(settings, rngs, **widths)
        self.deterministic: bool | None = settings.deterministic
        self._keep(rngs if keep_rngs else None)

    def _keep(self, rngs: nnx.Rngs | None) -> None:
        drops = self.settings.dropout_rate > 0.0
        self.rngs = nnx.data(rngs.dropout.fork() if rngs is not None and drops else None)

    def set_view(self, deterministic: bool | None = None) -> None:
        """Sets what `nnx.view` changes.

        Args:
          deterministic: Whether dropout is off; None keeps it.
        """
        if deterministic is not None:
            self.deterministic = deterministic

    def __call__(
        self,
        inputs_q: QueryInputs,
        inputs_k: KeyInputs | None = None,
        inputs_v: ValueInputs | None = None,
        *,
        mask: Mask | BooleanMask | None = None,
        bias: Float[Array, "..."] | None = None,
        deterministic: bool | None = None,
        rngs: nnx.Rngs | nnx.RngStream | DropoutKey | None = None,
        sow_weights: bool = False,
        query_positions: QueryPositions | None = None,
        key_positions: KeyPositions | None = None,
    ) -> Outputs:
        """Applies attention of `inputs_q` to `inputs_k` and `inputs_v`.

        Args:
          inputs_q: `[..., T, D]`.
          inputs_k: `[..., S, E]`; `inputs_q` if None (self-attention).
          inputs_v: `[..., S, F]`; `inputs_k` if None.
          mask: See `aj.SeparateAttention`, as for all that is not explained here.
          bias: Floats that broadcast to `[..., H, T, S]`, added to the scores.
          deterministic: Whether dropout is off; beats the module's own flag.
          rngs: Streams, of which "dropout" is used, one stream, or the key of this call, which is
            linen's `dropout_rng`; by default the module's own stream.
          sow_weights: Whether to store the weights before dropout, `[..., H, T, S]`, as the
            `nnx.Intermediate` "attention_weights", which `nnx.capture` returns.
          query_positions: `[..., T]`.
          key_positions: `[..., S]`.

        Returns:
          `[..., T, O]`.
        """
        deterministic = self.deterministic if deterministic is None else deterministic
        drops = self.settings.dropout_rate > 0.0 and deterministic is not None and not deterministic
        return self._apply(
            "__call__",
            inputs_q,
            inputs_k,
            inputs_v,
            mask=mask,
            bias=bias,
            deterministic=deterministic,
            # A stream counts its keys, so that none is drawn in vain.
            dropout_rng=self._dropout_key(rngs) if drops else None,
            sow_weights=sow_weights,
            query_positions=query_positions,
            key_positions=key_positions,
        )

    def init_cache(
        self,
        batch_size: int,
        capacity: int,
        dtype: DTypeLike | None = None,
        *,
        features: int | None = None,
        window: int | None = None,
        kind: Kind | None = None,
    ) -> Cache:
        """Returns an empty cache; see the method of the linen module."""
        return self.settings.init_cache(
            batch_size, capacity, dtype, features=features, window=window, kind=kind
        )

    def cross_cache(
        self,
        inputs_k: KeyInputs,
        inputs_v: ValueInputs | None = None,
        *,
        key_positions: KeyPositions | None = None,
        kind: Kind | None = None,
    ) -> CrossCache:
        """Returns what `extend` needs of the other sequence; see the method of the linen module."""
        return self._apply(
            "cross_cache", inputs_k, inputs_v, key_positions=key_positions, kind=kind
        )

    def extend(
        self,
        x: QueryInputs,
        cache: Cache | CrossCache,
        *,
        valid: Bool[Array, "B T"] | None = None,
        positions: Positions | None = None,
        mask: Mask | BooleanMask | None = None,
        bias: Float[Array, "..."] | None = None,
        sow_weights: bool = False,
    ) -> tuple[Outputs, Cache | CrossCache]:
        """Returns output and longer cache of new tokens; see the method of the linen module."""
        return self._apply(
            "extend",
            x,
            cache,
            valid=valid,
            positions=positions,
            mask=mask,
            bias=bias,
            sow_weights=sow_weights,
        )

    def _apply(self, method: str, *args: Any, **settings: Any) -> Any:
        """Calls the linen module, and stores weights where it has stored them."""
        output, state = self.settings.apply(
            {"params": self._parameters()},
            *args,
            method=method,
            mutable=["intermediates"],
            **settings,
        )
        if "intermediates" in state:
            weights = state["intermediates"]["attention_weights"][0]
            self.sow(nnx.Intermediate, "attention_weights", weights)
        return output

    def _dropout_key(self, rngs: nnx.Rngs | nnx.RngStream | DropoutKey | None) -> DropoutKey:
        rngs = self.rngs if rngs is None else rngs
        if rngs is None:
            raise checks.refuse(
                ValueError,
                "rngs",
                f"a stream or a key, because dropout_rate={self.settings.dropout_rate}",
                None,
                "pass rngs=nnx.Rngs(dropout=0) to the call",
            )
        stream = rngs.dropout if isinstance(rngs, nnx.Rngs) else rngs
        return stream() if isinstance(stream, nnx.RngStream) else stream
