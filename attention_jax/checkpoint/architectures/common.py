"""Rows of tables that several architectures share."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attention_jax.checkpoint.layouts import DENSE, FLAT, HEADS_IN, HEADS_OUT, SAME, Layout
from attention_jax.checkpoint.rules import Rule
from attention_jax.checkpoint.settings import Settings
from attention_jax.models import TransformerConfig

Equal = Callable[[TransformerConfig], Mapping[str, str]]


def sizes(settings: Settings) -> dict[str, Any]:
    """Returns the sizes that most architectures name alike."""
    names = {
        "vocab_size": "vocab_size",
        "width": "hidden_size",
        "num_layers": "num_hidden_layers",
        "num_heads": "num_attention_heads",
        "mlp_width": "intermediate_size",
    }
    return {ours: settings.size(foreign) for ours, foreign in names.items()}


def pair(
    source: str, target: str, kernel: Layout = DENSE, bias: Layout | None = SAME
) -> list[Rule]:
    """Returns the rules of `weight` and, with a layout, `bias` of one layer."""
    rules = [Rule(f"{source}.weight", f"{target}/kernel", kernel)]
    return rules if bias is None else [*rules, Rule(f"{source}.bias", f"{target}/bias", bias)]


def norm(source: str, target: str) -> list[Rule]:
    """Returns the rules of a norm's gain and bias, which early files call gamma and beta."""
    names = [("weight", "scale"), ("gamma", "scale"), ("bias", "bias"), ("beta", "bias")]
    return [Rule(f"{source}.{foreign}", f"{target}/{name}") for foreign, name in names]


def projections(query: str, key: str, value: str, out: str) -> list[Rule]:
    """Returns the rules of the four projections of one attention layer in block `{i}`."""
    attention = "block_{i}/attention"
    rules = pair(out, f"{attention}/out", HEADS_OUT)
    for source, name in ((query, "query"), (key, "key"), (value, "value")):
        rules += pair(source, f"{attention}/{name}", HEADS_IN, FLAT)
    return rules


def tied_head(sources: Sequence[str], embedding: str) -> Equal:
    """Returns what the matrix of a tied head repeats, under any of its names."""

    def equal(config: TransformerConfig) -> Mapping[str, str]:
        return dict.fromkeys(sources, embedding) if config.tied else {}

    return equal
