"""Llama: Touvron et al., arXiv 2302.13971; grouped heads, rotary encoding, gated feed-forward."""

from attention_jax.checkpoint.architecture import Architecture
from attention_jax.checkpoint.architectures import common
from attention_jax.checkpoint.files import Tensors
from attention_jax.checkpoint.rules import Rule
from attention_jax.checkpoint.settings import ACTIVATIONS, Settings
from attention_jax.models import TransformerConfig


def read_settings(settings: Settings, tensors: Tensors) -> TransformerConfig:
    """Returns the settings."""
    settings.require(is_encoder_decoder=False, pruned_heads={}, rope_interleaved=False)
    tied = settings.take("tie_word_embeddings", False)
    has_head = settings.head("lm_head.weight", "lm_head.weight" in tensors, tied)
    position = settings.rotary(theta=10000.0)
    if position.fraction != 1.0:
        # Published code of this architecture rotates whole heads whatever this says.
        raise settings.unsupported("partial_rotary_factor", "1.0", position.fraction)
    # The length it was trained on; angles do not depend on it.
    settings.take("max_position_embeddings", None)
    return TransformerConfig(
        **common.sizes(settings),
        head_dim=settings.take("head_dim", None),
        num_kv_heads=settings.take("num_key_value_heads", None),
        position=position,
        norm="rms",
        norm_epsilon=settings.real("rms_norm_eps", 1e-6),
        activation=settings.choose("hidden_act", ACTIVATIONS, "silu"),
        gated=True,
        attention_bias=settings.take("attention_bias", False),
        mlp_bias=settings.take("mlp_bias", False),
        head="linear" if has_head else "none",
        tied=tied,
    )


def rules(config: TransformerConfig) -> list[Rule]:
    """Returns the table."""
    layer, block = "layers.{i}", "block_{i}"
    inside = f"{layer}.self_attn"
    return [
        Rule("embed_tokens.weight", "embedding/embedding"),
        *common.projections(
            f"{inside}.q_proj", f"{inside}.k_proj", f"{inside}.v_proj", f"{inside}.o_proj"
        ),
        *common.norm(f"{layer}.input_layernorm", f"{block}/norm_attention"),
        *common.norm(f"{layer}.post_attention_layernorm", f"{block}/norm_mlp"),
        *common.pair(f"{layer}.mlp.up_proj", f"{block}/mlp_in"),
        *common.pair(f"{layer}.mlp.gate_proj", f"{block}/mlp_gate"),
        *common.pair(f"{layer}.mlp.down_proj", f"{block}/mlp_out"),
        *common.norm("norm", "final_norm"),
        *common.pair("lm_head", "head", bias=None),
    ]


ARCHITECTURE = Architecture(
    read_settings,
    rules,
    prefix="model.",
    equal=common.tied_head(["lm_head.weight"], "embed_tokens.weight"),
    without_weights=[r"(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq"],
)
