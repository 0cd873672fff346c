"""ALBERT: Lan et al., arXiv 1909.11942; layers share parameters."""

from attention_jax.checkpoint.architecture import Architecture, Names
from attention_jax.checkpoint.architectures import common
from attention_jax.checkpoint.rules import Rule
from attention_jax.checkpoint.settings import ACTIVATIONS, Settings
from attention_jax.models import TransformerConfig
from attention_jax.positions import Learned

HEAD = "predictions"


def read_settings(settings: Settings, names: Names) -> TransformerConfig:
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
        vocab_size=settings.take("vocab_size"),
        width=settings.take("hidden_size"),
        num_layers=settings.take("num_hidden_layers"),
        num_heads=settings.take("num_attention_heads"),
        mlp_width=settings.take("intermediate_size"),
        causal=False,
        position=Learned(settings.take("max_position_embeddings")),
        residual="post",
        norm_epsilon=settings.take("layer_norm_eps", 1e-12),
        activation=settings.choose("hidden_act", ACTIVATIONS, "gelu_new"),
        token_types=settings.take("type_vocab_size"),
        embedding_width=settings.take("embedding_size"),
        embedding_norm=True,
        layer_groups=settings.take("num_hidden_groups", 1),
        head="masked" if f"{HEAD}.bias" in names else "none",
        tied=settings.take("tie_word_embeddings", True),
        pooler="pooler.weight" in names,
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
        *common.masked_head(HEAD, f"{HEAD}."),
    ]


ARCHITECTURE = Architecture(
    read_settings,
    rules,
    prefix="albert.",
    equal=common.tied_head(f"{HEAD}.decoder", "embeddings.word_embeddings", f"{HEAD}.bias"),
    without_weights=[r"embeddings\.position_ids", r"embeddings\.token_type_ids"],
)
