"""Rows of tables that several architectures share."""

from collections.abc import Callable, Mapping

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
    """Returns the rules of a norm's gain and bias."""
    rules = [Rule(f"{source}.weight", f"{target}/scale")]
    return [*rules, Rule(f"{source}.bias", f"{target}/bias")] if bias else rules


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


def masked_head(source: str, transform: str) -> list[Rule]:
    """Returns the rules of the head of BERT and ALBERT; `transform` is its first part's name."""
    return [
        *pair(f"{transform}dense", "head_transform"),
        *norm(f"{transform}LayerNorm", "head_norm"),
        Rule(f"{source}.bias", "head/bias"),
        *pair(f"{source}.decoder", "head", bias=None),
    ]


def tied_head(source: str, embedding: str, bias: str | None = None) -> Equal:
    """Returns what the matrix of a tied head repeats, and its bias where it is stored twice."""

    def equal(config: TransformerConfig) -> Mapping[str, str]:
        repeated = {f"{source}.weight": f"{embedding}.weight"} if config.tied else {}
        return repeated if bias is None else {**repeated, f"{source}.bias": bias}

    return equal
