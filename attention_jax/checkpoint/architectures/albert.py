"""ALBERT: Lan et al., arXiv 1909.11942; layers share parameters."""

from attention_jax.checkpoint.architecture import Architecture
from attention_jax.checkpoint.architectures import common, encoder
from attention_jax.checkpoint.files import Tensors
from attention_jax.checkpoint.rules import Rule
from attention_jax.checkpoint.settings import Settings
from attention_jax.models import TransformerConfig

HEAD = "predictions"


def read_settings(settings: Settings, tensors: Tensors) -> TransformerConfig:
    """Returns the settings; the tensors tell whether there are a pooler and a head."""
    settings.require(
        down_scale_factor=1,
        gap_size=0,
        inner_group_num=1,
        net_structure_type=0,
        num_memory_blocks=0,
    )
    shared = encoder.read_settings(
        settings, tensors, head=HEAD, pooler="pooler", activation="gelu_new"
    )
    return TransformerConfig(
        **shared,
        embedding_width=settings.size("embedding_size"),
        layer_groups=settings.size("num_hidden_groups", 1),
    )


def rules(config: TransformerConfig) -> list[Rule]:
    """Returns the table."""
    layer, block = "encoder.albert_layer_groups.{i}.albert_layers.0", "block_{i}"
    inside = f"{layer}.attention"
    return [
        *encoder.embeddings(),
        *common.pair("encoder.embedding_hidden_mapping_in", "embedding_projection"),
        *common.projections(
            f"{inside}.query", f"{inside}.key", f"{inside}.value", f"{inside}.dense"
        ),
        *common.norm(f"{inside}.LayerNorm", f"{block}/norm_attention"),
        *common.pair(f"{layer}.ffn", f"{block}/mlp_in"),
        *common.pair(f"{layer}.ffn_output", f"{block}/mlp_out"),
        *common.norm(f"{layer}.full_layer_layer_norm", f"{block}/norm_mlp"),
        *common.pair("pooler", "pooler"),
        *encoder.head(HEAD, f"{HEAD}.", config.tied),
    ]


ARCHITECTURE = Architecture(
    read_settings,
    rules,
    prefix="albert.",
    equal=encoder.tied_head(HEAD),
    without_weights=encoder.WITHOUT_WEIGHTS,
)
