"""GPT-2: Radford et al. (2019); kernels are stored input first, W_q, W_k, W_v side by side."""

from attention_jax.checkpoint.architecture import Architecture
from attention_jax.checkpoint.architectures import common
from attention_jax.checkpoint.files import Tensors
from attention_jax.checkpoint.layouts import CONV_DENSE, CONV_HEADS_OUT, SAME, conv_fused
from attention_jax.checkpoint.rules import Rule
from attention_jax.checkpoint.settings import ACTIVATIONS, Settings
from attention_jax.models import TransformerConfig
from attention_jax.positions import Learned


def read_settings(settings: Settings, tensors: Tensors) -> TransformerConfig:
    """Returns the settings."""
    settings.require(
        add_cross_attention=False,
        is_encoder_decoder=False,
        pruned_heads={},
        scale_attn_by_inverse_layer_idx=False,
    )
    width = settings.size("n_embd")
    inner = settings.take("n_inner", None)
    tied = settings.take("tie_word_embeddings", True)
    has_head = settings.head("lm_head.weight", "lm_head.weight" in tensors, tied)
    return TransformerConfig(
        vocab_size=settings.size("vocab_size"),
        width=width,
        num_layers=settings.size("n_layer"),
        num_heads=settings.size("n_head"),
        mlp_width=4 * width if inner is None else inner,
        position=Learned(settings.size("n_positions")),
        norm_epsilon=settings.real("layer_norm_epsilon", 1e-5),
        activation=settings.choose("activation_function", ACTIVATIONS, "gelu_new"),
        scale=settings.choose("scale_attn_weights", {True: None, False: 1.0}, True),
        head="linear" if has_head else "none",
        tied=tied,
    )


def rules(config: TransformerConfig) -> list[Rule]:
    """Returns the table."""
    layer, block = "h.{i}", "block_{i}"
    attention = [
        rule
        for part, name in enumerate(("query", "key", "value"))
        for rule in common.pair(
            f"{layer}.attn.c_attn", f"{block}/attention/{name}", *conv_fused(part)
        )
    ]
    return [
        Rule("wte.weight", "embedding/embedding"),
        Rule("wpe.weight", "positions/embedding"),
        *attention,
        *common.pair(f"{layer}.attn.c_proj", f"{block}/attention/out", CONV_HEADS_OUT, SAME),
        *common.norm(f"{layer}.ln_1", f"{block}/norm_attention"),
        *common.norm(f"{layer}.ln_2", f"{block}/norm_mlp"),
        *common.pair(f"{layer}.mlp.c_fc", f"{block}/mlp_in", CONV_DENSE),
        *common.pair(f"{layer}.mlp.c_proj", f"{block}/mlp_out", CONV_DENSE),
        *common.norm("ln_f", "final_norm"),
        *common.pair("lm_head", "head", bias=None),
    ]


ARCHITECTURE = Architecture(
    read_settings,
    rules,
    prefix="transformer.",
    equal=common.tied_head(["lm_head.weight"], "wte.weight"),
    without_weights=[r"h\.\d+\.attn\.(bias|masked_bias)"],
)
