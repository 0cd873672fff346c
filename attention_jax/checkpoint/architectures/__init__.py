"""The architectures that can be imported, by the name that their settings give."""

from attention_jax.checkpoint.architecture import Architecture
from attention_jax.checkpoint.architectures import albert, bert, gpt2, llama, llama_gguf, neox

PUBLISHED: dict[str, Architecture] = {
    "albert": albert.ARCHITECTURE,
    "bert": bert.ARCHITECTURE,
    "gpt2": gpt2.ARCHITECTURE,
    "gpt_neox": neox.ARCHITECTURE,
    "llama": llama.ARCHITECTURE,
}
"""By `model_type` of config.json."""

GGUF: dict[str, Architecture] = {"llama": llama_gguf.ARCHITECTURE}
"""By `general.architecture` of a GGUF file."""
