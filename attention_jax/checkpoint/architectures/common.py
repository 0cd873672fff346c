"""Rows of tables that several architectures share."""

from collections.abc import Callable, Mapping, Sequence

from attention_jax.checkpoint.layouts import DENSE, FLAT, HEADS_IN, HEADS_OUT, SAME, Layout
from attention_jax.checkpoint.rules import Rule
from attention_jax.models import TransformerConfig

Equal = Callable[[TransformerConfig], Mapping[str, str]]


def pair(
    source: str, target: str, kernel: Layout = DENSE, bias: Layout | None = SAME
) -> list[Rule]:
    """Returns the rules of `weight` and, with a layout, `bias` of one layer."""
    rules = [Rule(f"{source}.weight", f"{target}/kernel", kernel)]
    return rules if bias is None else [*rules, Rule(f"{source}.bias", f"{target}/bias", bias)]


def norm(source: str, target: str, bias: bool = True) -> list[Rule]:
    """Returns the rules of a norm's gain and bias, which early files call gamma and beta."""
    names = [("weight", "scale"), ("gamma", "scale")]
    names += [("bias", "bias"), ("beta", "bias")] if bias else []
    return [Rule(f"{source}.{foreign}", f"{target}/{name}") for foreign, name in names]


def projections(query: str, key: str, value: str, out: str, bias: bool = True) -> list[Rule]:
    """Returns the rules of the four projections of one attention layer in block `{i}`."""
    attention = "block_{i}/attention"
    rules = pair(out, f"{attention}/out", HEADS_OUT, SAME if bias else None)
    for source, name in ((query, "query"), (key, "key"), (value, "value")):
        rules += pair(source, f"{attention}/{name}", HEADS_IN, FLAT if bias else None)
    return rules


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
    return [*rules, positions, *norm("embeddings.LayerNorm", "embedding_norm")]


def masked_head(source: str, transform: str, tied: bool) -> list[Rule]:
    """Returns the rules of the head of BERT and ALBERT; `transform` is its first part's name."""
    return [
        *pair(f"{transform}dense", "head_transform"),
        *norm(f"{transform}LayerNorm", "head_norm"),
        # An untied decoder has a bias of its own.
        Rule(f"{source}.bias" if tied else f"{source}.decoder.bias", "head/bias"),
        *pair(f"{source}.decoder", "head", bias=None),
    ]


def tied_head(sources: Sequence[str], embedding: str) -> Equal:
    """Returns what the matrix of a tied head repeats, under any of its names."""

    def equal(config: TransformerConfig) -> Mapping[str, str]:
        return dict.fromkeys(sources, embedding) if config.tied else {}

    return equal


def tied_masked_head(source: str) -> Equal:
    """Returns what the tied head of BERT and ALBERT repeats: its matrix, and its bias."""

    def equal(config: TransformerConfig) -> Mapping[str, str]:
        if not config.tied:
            return {}
        embedding = "embeddings.word_embeddings.weight"
        return {f"{source}.decoder.weight": embedding, f"{source}.decoder.bias": f"{source}.bias"}

    return equal
