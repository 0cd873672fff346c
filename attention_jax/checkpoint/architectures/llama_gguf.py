"""Llama in a GGUF file: other names, and rows of W_q and W_k ordered for interleaved rotation."""

from attention_jax.checkpoint.architecture import Architecture
from attention_jax.checkpoint.architectures import common
from attention_jax.checkpoint.files import Tensors
from attention_jax.checkpoint.rules import Rule
from attention_jax.checkpoint.settings import Settings
from attention_jax.models import TransformerConfig
from attention_jax.positions import Rotary


def read_settings(settings: Settings, tensors: Tensors) -> TransformerConfig:
    """Returns the settings."""
    width = settings.size("llama.embedding_length")
    num_heads = settings.size("llama.attention.head_count")
    head_dim = settings.size("llama.attention.key_length", width // num_heads)
    settings.require(
        **{
            "llama.attention.value_length": head_dim,
            "llama.expert_count": 0,
            "llama.expert_used_count": 0,
            "split.count": 1,
        }
    )
    settings.choose("llama.rope.scaling.type", {"none": None}, "none")
    rotated = settings.size("llama.rope.dimension_count", head_dim)
    # The length it was trained on; angles do not depend on it.
    settings.take("llama.context_length", None)
    return TransformerConfig(
        vocab_size=settings.size("llama.vocab_size", _rows(tensors)),
        width=width,
        num_layers=settings.size("llama.block_count"),
        num_heads=num_heads,
        mlp_width=settings.size("llama.feed_forward_length"),
        head_dim=head_dim,
        num_kv_heads=settings.size("llama.attention.head_count_kv", num_heads),
        position=Rotary(
            theta=settings.take("llama.rope.freq_base", 10000.0),
            style="interleaved",
            fraction=rotated / head_dim,
        ),
        norm="rms",
        norm_epsilon=settings.take("llama.attention.layer_norm_rms_epsilon"),
        activation="silu",
        gated=True,
        attention_bias="blk.0.attn_q.bias" in tensors,
        mlp_bias="blk.0.ffn_up.bias" in tensors,
        tied="output.weight" not in tensors,
    )


def _rows(tensors: Tensors) -> int:
    """Returns the rows of the embedding; where it is missing, the table of tensors will say so."""
    name = "token_embd.weight"
    return tensors.shape(name)[0] if name in tensors else 1


def rules(config: TransformerConfig) -> list[Rule]:
    """Returns the table."""
    layer, block = "blk.{i}", "block_{i}"
    return [
        Rule("token_embd.weight", "embedding/embedding"),
        *common.projections(
            f"{layer}.attn_q", f"{layer}.attn_k", f"{layer}.attn_v", f"{layer}.attn_output"
        ),
        *common.norm(f"{layer}.attn_norm", f"{block}/norm_attention"),
        *common.norm(f"{layer}.ffn_norm", f"{block}/norm_mlp"),
        *common.pair(f"{layer}.ffn_up", f"{block}/mlp_in"),
        *common.pair(f"{layer}.ffn_gate", f"{block}/mlp_gate"),
        *common.pair(f"{layer}.ffn_down", f"{block}/mlp_out"),
        *common.norm("output_norm", "final_norm"),
        *common.pair("output", "head", bias=None),
    ]


ARCHITECTURE = Architecture(read_settings, rules)
