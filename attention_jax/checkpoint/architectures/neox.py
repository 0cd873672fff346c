"""GPT-NeoX: Black et al., arXiv 2204.06745; one fused matrix, in which each head has its three."""

from attention_jax.checkpoint.architecture import Architecture
from attention_jax.checkpoint.architectures import common
from attention_jax.checkpoint.files import Tensors
from attention_jax.checkpoint.layouts import HEADS_OUT, SAME, fused_per_head
from attention_jax.checkpoint.rules import Rule
from attention_jax.checkpoint.settings import ACTIVATIONS, Settings
from attention_jax.models import TransformerConfig

# The second is what newer versions of transformers call it in memory.
_HEADS = ("embed_out.weight", "lm_head.weight")


def read_settings(settings: Settings, tensors: Tensors) -> TransformerConfig:
    """Returns the settings."""
    settings.require(is_encoder_decoder=False, pruned_heads={})
    # Always causal, whatever it says.
    settings.take("is_decoder", None)
    tied = settings.take("tie_word_embeddings", False)
    has_head = settings.head("embed_out.weight", any(name in tensors for name in _HEADS), tied)
    parallel = settings.choose("use_parallel_residual", {True: "parallel", False: "pre"}, True)
    # The length it was trained on; angles do not depend on it.
    settings.take("max_position_embeddings", None)
    return TransformerConfig(
        **common.sizes(settings),
        position=settings.rotary(
            theta=10000.0,
            fraction=0.25,
            theta_names=("rotary_emb_base", "rope_theta"),
            fraction_names=("rotary_pct", "partial_rotary_factor"),
        ),
        residual=parallel,
        norm_epsilon=settings.real("layer_norm_eps", 1e-5),
        activation=settings.choose("hidden_act", ACTIVATIONS, "gelu"),
        attention_bias=settings.take("attention_bias", True),
        head="linear" if has_head else "none",
        tied=tied,
    )


def rules(config: TransformerConfig) -> list[Rule]:
    """Returns the table."""
    layer, block = "layers.{i}", "block_{i}"
    attention = []
    for part, name in enumerate(("query", "key", "value")):
        kernel, bias = fused_per_head(part)
        source, target = f"{layer}.attention.query_key_value", f"{block}/attention/{name}"
        attention += common.pair(source, target, kernel, bias)
    return [
        Rule("embed_in.weight", "embedding/embedding"),
        *attention,
        *common.pair(f"{layer}.attention.dense", f"{block}/attention/out", HEADS_OUT, SAME),
        *common.norm(f"{layer}.input_layernorm", f"{block}/norm_attention"),
        *common.norm(f"{layer}.post_attention_layernorm", f"{block}/norm_mlp"),
        *common.pair(f"{layer}.mlp.dense_h_to_4h", f"{block}/mlp_in"),
        *common.pair(f"{layer}.mlp.dense_4h_to_h", f"{block}/mlp_out"),
        *common.norm("final_layer_norm", "final_norm"),
        *common.pair("embed_out", "head", bias=None),
        *common.pair("lm_head", "head", bias=None),
    ]


ARCHITECTURE = Architecture(
    read_settings,
    rules,
    prefix="gpt_neox.",
    equal=common.tied_head(_HEADS, "embed_in.weight"),
    without_weights=[
        r"layers\.\d+\.attention\.(bias|masked_bias)",
        r"layers\.\d+\.attention\.rotary_emb\.inv_freq",
        r"rotary_emb\.inv_freq",
    ],
)
