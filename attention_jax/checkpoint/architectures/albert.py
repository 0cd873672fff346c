"""ALBERT: Lan et al., arXiv 1909.11942; layers share parameters."""

from attention_jax.checkpoint.architecture import Architecture
from attention_jax.checkpoint.architectures import common
from attention_jax.checkpoint.files import Tensors
from attention_jax.checkpoint.rules import Rule
from attention_jax.checkpoint.settings import ACTIVATIONS, Settings
from attention_jax.models import TransformerConfig
from attention_jax.positions import Learned

HEAD = "predictions"


def read_settings(settings: Settings, tensors: Tensors) -> TransformerConfig:
    """Returns the settings; the tensors tell whether there are a pooler and a head."""
    settings.require(
        add_cross_attention=False,
        down_scale_factor=1,
        gap_size=0,
        inner_group_num=1,
        is_decoder=False,
        is_encoder_decoder=False,
        net_structure_type=0,
        num_memory_blocks=0,
        position_embedding_type="absolute",
        pruned_heads={},
    )
    return TransformerConfig(
        vocab_size=settings.size("vocab_size"),
        width=settings.size("hidden_size"),
        num_layers=settings.size("num_hidden_layers"),
        num_heads=settings.size("num_attention_heads"),
        mlp_width=settings.size("intermediate_size"),
        causal=False,
        position=Learned(settings.size("max_position_embeddings")),
        residual="post",
        norm_epsilon=settings.real("layer_norm_eps", 1e-12),
        activation=settings.choose("hidden_act", ACTIVATIONS, "gelu_new"),
        token_types=settings.size("type_vocab_size"),
        embedding_width=settings.size("embedding_size"),
        embedding_norm=True,
        layer_groups=settings.size("num_hidden_groups", 1),
        head="masked" if settings.head(f"{HEAD}.bias", f"{HEAD}.bias" in tensors) else "none",
        tied=settings.take("tie_word_embeddings", True),
        pooler="pooler.weight" in tensors,
    )


def rules(config: TransformerConfig) -> list[Rule]:
    """Returns the table."""
    layer, block = "encoder.albert_layer_groups.{i}.albert_layers.0", "block_{i}"
    inside = f"{layer}.attention"
    return [
        *common.embeddings(),
        *common.pair("encoder.embedding_hidden_mapping_in", "embedding_projection"),
        *common.projections(
            f"{inside}.query", f"{inside}.key", f"{inside}.value", f"{inside}.dense"
        ),
        *common.norm(f"{inside}.LayerNorm", f"{block}/norm_attention"),
        *common.pair(f"{layer}.ffn", f"{block}/mlp_in"),
        *common.pair(f"{layer}.ffn_output", f"{block}/mlp_out"),
        *common.norm(f"{layer}.full_layer_layer_norm", f"{block}/norm_mlp"),
        *common.pair("pooler", "pooler"),
        *common.masked_head(HEAD, f"{HEAD}.", config.tied),
    ]


ARCHITECTURE = Architecture(
    read_settings,
    rules,
    prefix="albert.",
    equal=common.tied_masked_head(HEAD),
    without_weights=[r"embeddings\.position_ids", r"embeddings\.token_type_ids"],
)
