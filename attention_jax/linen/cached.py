"""What the modules of all forms share in decoding: caches, and calls that extend them."""

from typing import Any, Literal

import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike

from attention_jax import caches, checks
from attention_jax.caches import Cache, CrossCache
from attention_jax.core import layer
from attention_jax.linen.module import Attention, Projections, Widths
from attention_jax.masks import Mask
from attention_jax.types import (
    Array,
    Bool,
    BooleanMask,
    Float,
    KeyInputs,
    KeyPositions,
    Outputs,
    Positions,
    QueryInputs,
    ValueInputs,
)

Kind = Literal["inputs"]


class CachedAttention(Attention):
    """The methods `init_cache`, `cross_cache` and `extend`."""

    def _over_inputs(self) -> Projections:
        """Returns projections of the same function whose keys and values are the inputs."""
        return self._projections

    def _query_width(self, widths: Widths) -> int:
        """Returns the width of the queries' inputs where only the others are known."""
        raise NotImplementedError

    def _kept_shapes(self, features: int | None) -> dict[str, tuple[int, ...] | None]:
        """Returns the shapes of what a cache may keep of a token with inputs of this width."""
        raise NotImplementedError

    @nn.nowrap
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
        """Returns an empty cache for `extend`; needs no variables.

        It keeps keys where the form projects keys and values where it projects values, `(heads, K)`
        numbers of a token for each; and where keys or values are the inputs it keeps the inputs,
        D numbers, once for all heads.

        Args:
          batch_size: Number of rows B.
          capacity: Number of tokens of a row that there is room for, padding included. With a
            window as long as that, or shorter, any number of tokens may follow.
          dtype: Of what is kept; wider numbers are rounded to it. By default that of the module, or
            else of its parameters (float32 without), and wider numbers are refused.
          features: Width D of the inputs. Where it is not given, what depends on it is allocated by
            the first call of `extend`; `jax.lax.scan` needs it from the start.
          window: How many of the last tokens a token sees, itself included, or None for all. The
            cache keeps no more than that; it is `aj.causal() & aj.sliding_window(window)`.
          kind: "inputs" keeps the inputs alone also where the form projects: W_k then acts on the
            queries and W_v on averages of inputs. The same function; None takes the form's own.

        Raises:
          ValueError: A size is below 1, or the kind is unknown.
          TypeError: A size is not an integer, or the dtype not floating.
          NotImplementedError: `kind="inputs"` with a rotary encoding or QK-norm between W_q and
            W_k.

        Example:
          >>> import attention_jax as aj
          >>> module = aj.SeparateAttention(num_heads=4, num_kv_heads=2)
          >>> module.init_cache(1, 16, features=8).key.shape
          (1, 2, 16, 2)
          >>> module.init_cache(1, 16, features=8, kind="inputs").inputs.shape
          (1, 16, 8)
        """
        if features is not None:
            checks.check_positive_int("features", features)
        shapes = self._kept_shapes(features)
        given = self.dtype if dtype is None else dtype
        return caches.empty(
            batch_size,
            capacity,
            {name: shapes[name] for name in caches.keeps_of(*self._evaluated(kind))},
            dtype=getattr(self, "param_dtype", jnp.float32) if given is None else given,
            rounds=dtype is not None,
            window=window,
        )

    @nn.nowrap
    def _evaluated(self, kind: Kind | None) -> Projections:
        if kind is None:
            return self._projections
        checks.check_choice("kind", kind, ("inputs",))
        return self._over_inputs()

    def cross_cache(
        self,
        inputs_k: KeyInputs,
        inputs_v: ValueInputs | None = None,
        *,
        key_positions: KeyPositions | None = None,
        kind: Kind | None = None,
    ) -> CrossCache:
        """Returns what `extend` needs of the other sequence, computed once.

        Args:
          inputs_k: `[..., S, E]`.
          inputs_v: `[..., S, F]`; `inputs_k` if None.
          key_positions: `[..., S]`; by default 0, 1, ..., S - 1.
          kind: See `init_cache`.

        Raises:
          ValueError: Inputs do not fit each other or the parameters, or the kind is unknown.
          NotImplementedError: See `init_cache`.

        Example:
          >>> import attention_jax as aj, jax, jax.numpy as jnp
          >>> module = aj.SeparateAttention(num_heads=2)
          >>> x, y = jnp.ones((1, 3, 8)), jnp.ones((1, 5, 6))
          >>> variables = module.init(jax.random.key(0), x, y)
          >>> cache = module.apply(variables, y, method="cross_cache")
          >>> output, cache = module.apply(variables, x, cache, method="extend")
          >>> bool(jnp.allclose(output, module.apply(variables, x, y), atol=1e-6))
          True
        """
        checked = layer.check_inputs(inputs_k, inputs_k, inputs_v)
        widths = Widths(*(x.shape[-1] for x in checked))
        params, _ = self._prepare(widths._replace(query=self._query_width(widths)))
        return caches.project(
            *self._evaluated(kind),
            params,
            inputs_k,
            inputs_v,
            key_positions=key_positions,
            dtype=self.dtype,
            precision=self.precision,
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
        """Applies attention of new tokens to those in the cache.

        With a `Cache` tokens attend each other too, and it is causal: a token sees itself and
        earlier ones. Any division of a text into calls gives the output of one call of the module
        with `mask=aj.causal()`, up to rounding. With a `CrossCache` it is the call with the inputs
        that the cache was made of. Weights are never dropped.

        Args:
          x: `[B, T, D]`, any number of tokens; with a `CrossCache` any batch axes.
          cache: From `init_cache` and earlier calls, or from `cross_cache`.
          valid: `[B, T]`, False at padding, wherever it stands: no token sees it, its own output is
            that of a token that sees nothing, and positions in its row do not count it.
          positions: `[T]` or `[B, T]`; by default each row counts on its valid tokens, from 0. With
            a `CrossCache` they are the call's `query_positions`.
          mask: What hides more: a mask object, rendered from positions, or booleans that broadcast
            to `[B, H, T, C]`, an entry per slot of the cache.
          bias: Floats that broadcast to `[B, H, T, C]`, added to the scores.
          sow_weights: Whether to store the weights `[B, H, T, C]`, as in the call.

        Returns:
          `(output [B, T, O], cache)`, the cache with the new tokens, or as it was for a
          `CrossCache`.

        Raises:
          ValueError: Arguments do not fit, or the tokens are known not to fit into the cache. Under
            `jax.jit`, where it is not known, nothing is written then, and this output and all later
            ones are NaN.
          TypeError: A kind is wrong, or numbers are wider than those of the cache.
          NotImplementedError: A cache with a window got positions, or something with an entry per
            slot.

        Example:
          >>> import attention_jax as aj, jax, jax.numpy as jnp
          >>> module = aj.MergedAttention(num_heads=2, ov="merged")
          >>> x = jax.random.normal(jax.random.key(0), (1, 5, 8))
          >>> variables = module.init(jax.random.key(1), x)
          >>> cache = module.init_cache(batch_size=1, capacity=6)
          >>> first, cache = module.apply(variables, x[:, :3], cache, method="extend")
          >>> last, cache = module.apply(variables, x[:, 3:], cache, method="extend")
          >>> whole = module.apply(variables, x, mask=aj.causal())
          >>> bool(jnp.allclose(jnp.concatenate([first, last], axis=1), whole, atol=1e-5))
          True
        """
        checks.check_bool("sow_weights", sow_weights)
        checks.check_floating("x", x)
        if not isinstance(cache, Cache | CrossCache):
            raise checks.refuse(
                TypeError, "cache", "a Cache or CrossCache", type(cache).__name__,
                "make it with init_cache or cross_cache",
            )  # fmt: skip
        width = x.shape[-1]
        settings: dict[str, Any] = {
            "mask": mask,
            "bias": bias,
            "position": self.position,
            "softcap": self.softcap,
            "dtype": self.dtype,
            "precision": self.precision,
            "implementation": self.implementation,
            "return_weights": sow_weights,
        }
        projections = self._over_inputs() if cache.inputs_alone else self._projections
        if isinstance(cache, Cache):
            params, scale = self._prepare(Widths(width, width, width))
            output, cache, *weights = caches.extend(
                *projections, params, x, cache,
                scale=scale, valid=valid, positions=positions, **settings,
            )  # fmt: skip
        else:
            if valid is not None:
                raise checks.refuse(
                    ValueError, "valid", "None with a CrossCache", "an array",
                    "hide what queries shall not see with mask=",
                )  # fmt: skip
            params, scale = self._prepare(Widths(width, *cache.widths))
            attended = caches.attend(
                *projections, params, x, cache, scale=scale, query_positions=positions, **settings
            )
            output, *weights = attended if isinstance(attended, tuple) else (attended,)
        if sow_weights:
            self.sow("intermediates", "attention_weights", weights[0])
        return output, cache
