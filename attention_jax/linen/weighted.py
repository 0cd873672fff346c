"""The base of the forms with weights: heads, values and outputs."""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike

from attention_jax import checks
from attention_jax.core import absorbed, layer, merged, separate
from attention_jax.core.form import QueryKey
from attention_jax.linen import initializers
from attention_jax.linen.cached import CachedAttention
from attention_jax.linen.initializers import Initializer, MergedInit
from attention_jax.linen.module import Prepared, Projections, Widths
from attention_jax.linen.parameters import Entries, ParameterGroup


class WeightedAttention(CachedAttention):
    """The settings of the forms with weights, and the half that both share: values and outputs."""

    num_heads: int
    head_dim: int | None = None
    _: dataclasses.KW_ONLY
    num_kv_heads: int | None = None
    out_features: int | None = None
    ov: Literal["separate", "merged"] = "separate"
    use_bias: bool = True
    qkv_features: int | None = None
    normalize_qk: bool = False
    scale: float | None = None
    param_dtype: DTypeLike = jnp.float32
    kernel_init: Initializer = nn.initializers.lecun_normal()
    out_kernel_init: Initializer | None = None
    bias_init: Initializer = nn.initializers.zeros_init()
    out_bias_init: Initializer | None = None
    ov_init: MergedInit = "product"

    def __post_init__(self) -> None:
        """Checks the settings that need no inputs."""
        checks.check_heads(self.num_heads, self._num_kv_heads)
        for name in ("use_bias", "normalize_qk"):
            checks.check_bool(name, getattr(self, name))
        for name in ("head_dim", "out_features", "qkv_features"):
            if getattr(self, name) is not None:
                checks.check_positive_int(name, getattr(self, name))
        if self.qkv_features is not None:
            if self.head_dim is not None:
                raise checks.refuse(
                    ValueError,
                    "qkv_features",
                    "None when head_dim is given",
                    self.qkv_features,
                    "give one of the two: qkv_features = num_heads * head_dim",
                )
            self._per_head("qkv_features", self.qkv_features)
        checks.check_choice("ov", self.ov, ("separate", "merged"))
        initializers.check_merged_init("ov_init", self.ov_init)
        layer.check_alibi(self.position, self.num_heads)
        super().__post_init__()

    @property
    def _num_kv_heads(self) -> int:
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads

    @property
    def _query_key(self) -> QueryKey:
        raise NotImplementedError

    @property
    def _projections(self) -> Projections:
        value_output = separate.value_output if self.ov == "separate" else merged.value_output
        return Projections(self._query_key, value_output)

    def _over_inputs(self) -> Projections:
        query_key, value_output = self._projections
        if query_key.keeps == "heads":
            query_key = absorbed.query_key(self.softcap)
            remedy = "leave kind=None, which keeps keys and values"
            layer.check_rotates(self.position, query_key.rotates, remedy)
            if self.normalize_qk:
                raise checks.refuse(
                    NotImplementedError,
                    "kind",
                    "None with normalize_qk, because with QK-norm scores depend on W_q and W_k "
                    "apart",
                    "'inputs'",
                    remedy,
                )
        if value_output.keeps == "heads":
            value_output = absorbed.value_output
        return Projections(query_key, value_output)

    def _kept_shapes(self, features: int | None) -> dict[str, tuple[int, ...] | None]:
        width = features
        known = self.head_dim is not None or self.qkv_features is not None or width is not None
        heads = (self._num_kv_heads, self._head_dim(width or 0)) if known else None
        return {"key": heads, "value": heads, "inputs": None if width is None else (width,)}

    def _query_width(self, widths: Widths) -> int:
        params = self.variables.get("params", {})
        for name in ("query", "qk"):
            if name in params:
                return jax.tree.leaves(params[name]["kernel"])[0].shape[0]
        raise checks.refuse(
            ValueError,
            "variables",
            "parameters, which tell the width of the queries' inputs",
            ", ".join(params) or "none",
            "initialise the module with its call",
        )

    def _head_dim(self, width: int) -> int:
        if self.head_dim is not None:
            return self.head_dim
        if self.qkv_features is not None:
            return self.qkv_features // self.num_heads
        return self._per_head("width of inputs_q", width)

    def _per_head(self, name: str, features: int) -> int:
        if features % self.num_heads:
            raise checks.refuse(
                ValueError,
                name,
                f"a multiple of num_heads={self.num_heads}",
                features,
                "choose widths that divide, or set head_dim",
            )
        return features // self.num_heads

    def _check_nothing_ignored(self, params: dict) -> None:
        ignored = sorted(set(self.variables.get("params", {})) - set(params))
        if ignored:
            raise checks.refuse(
                ValueError,
                "params",
                f"the entries {', '.join(params)} of these settings",
                f"also {', '.join(ignored)}",
                "use the settings the parameters were made with, or convert the parameters",
            )

    def _group(self, name: str, entries: Entries, invisible: tuple[str, ...] = ()) -> dict:
        return ParameterGroup(self.param_dtype, invisible, name=name)(**entries)

    def _kernel_and_bias(
        self, kernel: tuple[Initializer, tuple[int, ...]], bias_shape: tuple[int, ...]
    ) -> Entries:
        entries: Entries = {"kernel": kernel}
        if self.use_bias:
            entries["bias"] = (initializers.flattened(self.bias_init, 0), bias_shape)
        return entries

    def _projection(self, name: str, width: int, num_heads: int, head_dim: int) -> dict:
        shape = (width, num_heads, head_dim)
        kernel = (initializers.flattened(self.kernel_init, 1), shape)
        return self._group(name, self._kernel_and_bias(kernel, shape[1:]))

    def _value_output_parameters(self, width: int, out_features: int, head_dim: int) -> dict:
        out_init = self.kernel_init if self.out_kernel_init is None else self.out_kernel_init
        out_bias_init = self.bias_init if self.out_bias_init is None else self.out_bias_init
        out: Entries = {}
        params = {}
        if self.ov == "separate":
            params["value"] = self._projection("value", width, self._num_kv_heads, head_dim)
            shape = (self.num_heads, head_dim, out_features)
            out["kernel"] = (initializers.flattened(out_init, 2), shape)
        else:
            init = initializers.merged_ov(
                self.ov_init, self.kernel_init, out_init, head_dim, self._num_kv_heads
            )
            kernel = (init, (self.num_heads, width, out_features))
            bias_shape = (self.num_heads, out_features)
            params["ov"] = self._group("ov", self._kernel_and_bias(kernel, bias_shape))
        if self.use_bias:
            out["bias"] = (initializers.flattened(out_bias_init, 0), (out_features,))
        if out:
            params["out"] = self._group("out", out)
        return params

    def _query_key_parameters(self, widths: Widths, head_dim: int) -> dict:
        raise NotImplementedError

    @nn.compact
    def _prepare(self, widths: Widths) -> Prepared:
        head_dim = self._head_dim(widths.query)
        out_features = widths.query if self.out_features is None else self.out_features
        params = self._query_key_parameters(widths, head_dim)
        params |= self._value_output_parameters(widths.value, out_features, head_dim)
        self._check_nothing_ignored(params)
        return Prepared(params, head_dim**-0.5 if self.scale is None else self.scale)
