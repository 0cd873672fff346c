"""BERT: Devlin et al., arXiv 1810.04805."""

from attention_jax.checkpoint.architecture import Architecture
from attention_jax.checkpoint.architectures import common
from attention_jax.checkpoint.files import Tensors
from attention_jax.checkpoint.rules import Rule
from attention_jax.checkpoint.settings import ACTIVATIONS, Settings
from attention_jax.models import TransformerConfig
from attention_jax.positions import Learned

HEAD = "cls.predictions"


def read_settings(settings: Settings, tensors: Tensors) -> TransformerConfig:
    """Returns the settings; the tensors tell whether there are a pooler and a head."""
    settings.require(
        add_cross_attention=False,
        is_decoder=False,
        is_encoder_decoder=False,
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
        activation=settings.choose("hidden_act", ACTIVATIONS, "gelu"),
        token_types=settings.size("type_vocab_size"),
        embedding_norm=True,
        head="masked" if settings.head(f"{HEAD}.bias", f"{HEAD}.bias" in tensors) else "none",
        tied=settings.take("tie_word_embeddings", True),
        pooler="pooler.dense.weight" in tensors,
    )


def rules(config: TransformerConfig) -> list[Rule]:
    """Returns the table."""
    layer, block = "encoder.layer.{i}", "block_{i}"
    inside = f"{layer}.attention.self"
    return [
        *common.embeddings(),
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
        *common.masked_head(HEAD, f"{HEAD}.transform.", config.tied),
    ]


ARCHITECTURE = Architecture(
    read_settings,
    rules,
    prefix="bert.",
    equal=common.tied_masked_head(HEAD),
    without_weights=[r"embeddings\.position_ids", r"embeddings\.token_type_ids"],
)
