"""BERT: Devlin et al., arXiv 1810.04805."""

from attention_jax.checkpoint.architecture import Architecture
from attention_jax.checkpoint.architectures import common, encoder
from attention_jax.checkpoint.files import Tensors
from attention_jax.checkpoint.rules import Rule
from attention_jax.checkpoint.settings import Settings
from attention_jax.models import TransformerConfig

HEAD = "cls.predictions"


def read_settings(settings: Settings, tensors: Tensors) -> TransformerConfig:
    """Returns the settings; the tensors tell whether there are a pooler and a head."""
    shared = encoder.read_settings(
        settings, tensors, head=HEAD, pooler="pooler.dense", activation="gelu"
    )
    return TransformerConfig(**shared)


def rules(config: TransformerConfig) -> list[Rule]:
    """Returns the table."""
    layer, block = "encoder.layer.{i}", "block_{i}"
    inside = f"{layer}.attention.self"
    return [
        *encoder.embeddings(),
        *common.projections(
            f"{inside}.query",
            f"{inside}.key",
            f"{inside}.value",
            f"{layer}.attention.output.dense",
        ),
        *common.norm(f"{layer}.attention.output.LayerNorm", f"{block}/norm_attention"),
        *common.pair(f"{layer}.intermediate.dense", f"{block}/mlp_in"),
        *common.pair(f"{layer}.output.dense", f"{block}/mlp_out"),
        *common.norm(f"{layer}.output.LayerNorm", f"{block}/norm_mlp"),
        *common.pair("pooler.dense", "pooler"),
        *encoder.head(HEAD, f"{HEAD}.transform.", config.tied),
    ]


ARCHITECTURE = Architecture(
    read_settings,
    rules,
    prefix="bert.",
    equal=encoder.tied_head(HEAD),
    without_weights=encoder.WITHOUT_WEIGHTS,
)
