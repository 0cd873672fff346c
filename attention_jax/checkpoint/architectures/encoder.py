"""What BERT and ALBERT share: settings, embeddings, and the head that predicts masked tokens."""

from collections.abc import Mapping
from typing import Any

from attention_jax.checkpoint.architectures import common
from attention_jax.checkpoint.files import Tensors
from attention_jax.checkpoint.rules import Rule
from attention_jax.checkpoint.settings import ACTIVATIONS, Settings
from attention_jax.models import TransformerConfig
from attention_jax.positions import Learned

WITHOUT_WEIGHTS = (r"embeddings\.position_ids", r"embeddings\.token_type_ids")


def read_settings(
    settings: Settings, tensors: Tensors, *, head: str, pooler: str, activation: str
) -> dict[str, Any]:
    """Returns the shared settings; the tensors tell whether there are a pooler and a head.

    Args:
      settings: All settings.
      tensors: All tensors.
      head: Where the head's tensors are.
      pooler: Where the pooler's are.
      activation: The activation where none is given.
    """
    settings.require(
        add_cross_attention=False,
        is_decoder=False,
        is_encoder_decoder=False,
        position_embedding_type="absolute",
        pruned_heads={},
    )
    has_head = settings.head(f"{head}.bias", f"{head}.bias" in tensors)
    return common.sizes(settings) | {
        "causal": False,
        "position": Learned(settings.size("max_position_embeddings")),
        "residual": "post",
        "norm_epsilon": settings.real("layer_norm_eps", 1e-12),
        "activation": settings.choose("hidden_act", ACTIVATIONS, activation),
        "token_types": settings.size("type_vocab_size"),
        "embedding_norm": True,
        "head": "masked" if has_head else "none",
        "tied": settings.take("tie_word_embeddings", True),
        "pooler": f"{pooler}.weight" in tensors,
    }


def embeddings() -> list[Rule]:
    """Returns the rules of the embeddings of BERT and ALBERT."""
    rules = [
        Rule(f"embeddings.{source}.weight", f"{target}/embedding")
        for source, target in (
            ("word_embeddings", "embedding"),
            ("token_type_embeddings", "token_types"),
        )
    ]
    positions = Rule("embeddings.position_embeddings.weight", "positions/embedding")
    return [*rules, positions, *common.norm("embeddings.LayerNorm", "embedding_norm")]


def head(source: str, transform: str, tied: bool) -> list[Rule]:
    """Returns the rules of the head of BERT and ALBERT; `transform` is its first part's name."""
    return [
        *common.pair(f"{transform}dense", "head_transform"),
        *common.norm(f"{transform}LayerNorm", "head_norm"),
        # An untied decoder has a bias of its own.
        Rule(f"{source}.bias" if tied else f"{source}.decoder.bias", "head/bias"),
        *common.pair(f"{source}.decoder", "head", bias=None),
    ]


def tied_head(source: str) -> common.Equal:
    """Returns what the tied head of BERT and ALBERT repeats: its matrix, and its bias."""

    def equal(config: TransformerConfig) -> Mapping[str, str]:
        if not config.tied:
            return {}
        embedding = "embeddings.word_embeddings.weight"
        return {f"{source}.decoder.weight": embedding, f"{source}.decoder.bias": f"{source}.bias"}

    return equal
