"""BERT: Devlin et al., arXiv 1810.04805."""

from attention_jax.checkpoint.architecture import Architecture, Names
from attention_jax.checkpoint.architectures import common
from attention_jax.checkpoint.rules import Rule
from attention_jax.checkpoint.settings import ACTIVATIONS, Settings
from attention_jax.models import TransformerConfig
from attention_jax.positions import Learned

HEAD = "cls.predictions"


def read_settings(settings: Settings, names: Names) -> TransformerConfig:
    """Returns the settings; the tensors tell whether there are a pooler and a head."""
    settings.require(
        add_cross_attention=False,
        is_decoder=False,
        is_encoder_decoder=False,
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
        activation=settings.choose("hidden_act", ACTIVATIONS, "gelu"),
        token_types=settings.take("type_vocab_size"),
        embedding_norm=True,
        head="masked" if f"{HEAD}.bias" in names else "none",
        tied=settings.take("tie_word_embeddings", True),
        pooler="pooler.dense.weight" in names,
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
        *common.masked_head(HEAD, f"{HEAD}.transform."),
    ]


ARCHITECTURE = Architecture(
    read_settings,
    rules,
    prefix="bert.",
    equal=common.tied_head(f"{HEAD}.decoder", "embeddings.word_embeddings", f"{HEAD}.bias"),
    without_weights=[r"embeddings\.position_ids", r"embeddings\.token_type_ids"],
)
