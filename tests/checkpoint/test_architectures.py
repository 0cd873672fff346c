"""Tables and settings of each architecture, on tiny models that transformers wrote."""

import dataclasses
import functools
import json
import pathlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import attention_jax as aj
from attention_jax import checkpoint, models

DATA = pathlib.Path(__file__).parent / "data"
TINY = sorted(path.name for path in DATA.glob("tiny_*"))


@functools.partial(jax.jit, static_argnums=0)
def _run(model, params, tokens, lengths):
    return model.apply(
        {"params": params},
        tokens,
        mask=aj.padding(lengths),
        sow_weights=True,
        mutable=["intermediates"],
    )


def outputs(config, params, stored):
    """Returns logits and the weights of layer 1 of the tokens that are there."""
    tokens, lengths = stored["tokens"], jnp.asarray(stored["lengths"])
    logits, state = _run(models.Transformer(config), params, tokens, lengths)
    sown = [
        weights
        for block in sorted(state["intermediates"])
        for weights in state["intermediates"][block]["attention"]["attention_weights"]
    ]
    there = np.arange(tokens.shape[1])[None] < stored["lengths"][:, None]
    return np.asarray(logits) * there[..., None], np.asarray(sown[1]) * there[:, None, :, None]


@pytest.mark.parametrize("name", TINY)
def test_logits_and_weights_are_those_of_transformers(name):
    stored = np.load(DATA / name / "reference.npz")
    with jax.enable_x64(True):
        config, params = checkpoint.load(DATA / name, dtype=jnp.float64)
        logits, weights = outputs(config, params, stored)
    np.testing.assert_allclose(logits, stored["logits"], atol=2e-6)
    np.testing.assert_allclose(weights, stored["weights"], atol=1e-6)
    config, params = checkpoint.load(DATA / name)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(params)} == {"float32"}
    logits, _ = outputs(config, params, stored)
    np.testing.assert_allclose(logits, stored["logits"], atol=1e-5)


@pytest.mark.parametrize("name", ["tiny_gpt2", "tiny_bert", "tiny_albert", "tiny_gpt2_inner"])
def test_models_without_rotation_are_merged_whole(name):
    stored = np.load(DATA / name / "reference.npz")
    with jax.enable_x64(True):
        config, params = checkpoint.load(DATA / name, dtype=jnp.float64)
        separate, _ = outputs(config, params, stored)
        merged_config, merged_params, report = models.merge(config, params)
        merged, _ = outputs(merged_config, merged_params, stored)
        again, _ = outputs(*models.factor(merged_config, merged_params)[:2], stored)
    assert len(report.converted) == config.groups
    assert np.any(merged != separate)
    np.testing.assert_allclose(merged, separate, atol=1e-11)
    np.testing.assert_allclose(again, separate, atol=1e-11)


def edited(tmp_path, name, settings=None, tensors=None):
    """Returns a copy of a tiny checkpoint with other settings (None deletes) and tensors."""
    folder = tmp_path / "model"
    shutil.copytree(DATA / name, folder)
    config = json.loads((folder / "config.json").read_text()) | (settings or {})
    config = {key: value for key, value in config.items() if value != "DELETE"}
    (folder / "config.json").write_text(json.dumps(config))
    if tensors is not None:
        held = load_file(folder / "model.safetensors")
        changed = {key: held.get(key) if value is ... else value for key, value in tensors.items()}
        held = {key: x for key, x in (held | changed).items() if x is not None}
        save_file(held, folder / "model.safetensors")
    return folder


REFUSED_SETTINGS = [
    # architecture, settings, error, what the message names
    ("tiny_llama", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, NotImplementedError,
     "rope_scaling rope_type: .*'yarn'"),
    ("tiny_llama", {"rope_scaling": {"type": "linear", "factor": 2.0}}, NotImplementedError,
     "rope_scaling type: .*'linear'"),
    ("tiny_llama", {"rope_parameters": {"rope_theta": 5.0, "mystery": 1}}, NotImplementedError,
     "rope_parameters: .*mystery=1"),
    ("tiny_llama", {"rope_theta": 7.0}, ValueError,
     "rope_theta: expected one value.*got 7.0 and 500.0"),
    ("tiny_llama", {"logit_scale": 0.1, "query_pre_attn": 3}, NotImplementedError,
     "logit_scale=0.1, query_pre_attn=3"),
    ("tiny_llama", {"hidden_act": "xielu"}, NotImplementedError, "hidden_act: .*'xielu'"),
    ("tiny_llama", {"model_type": "mamba"}, NotImplementedError, "model_type: .*'mamba'"),
    ("tiny_llama", {"model_type": "DELETE"}, NotImplementedError, "model_type: .*None"),
    ("tiny_llama", {"hidden_size": "DELETE"}, ValueError, "hidden_size: expected a value"),
    ("tiny_llama", {"num_key_value_heads": 4}, ValueError, "num_kv_heads: .*divisor .*6.*got 4"),
    ("tiny_llama", {"quantization_config": {"bits": 4}}, NotImplementedError,
     "quantization_config"),
    ("tiny_gpt2", {"scale_attn_by_inverse_layer_idx": True}, NotImplementedError,
     "scale_attn_by_inverse_layer_idx: expected False"),
    ("tiny_gpt2", {"add_cross_attention": True}, NotImplementedError, "add_cross_attention"),
    ("tiny_bert", {"position_embedding_type": "relative_key"}, NotImplementedError,
     "position_embedding_type: expected 'absolute'"),
    ("tiny_bert", {"is_decoder": True}, NotImplementedError, "is_decoder: expected False"),
    ("tiny_bert", {"pruned_heads": {"0": [1]}}, NotImplementedError, "pruned_heads"),
    ("tiny_albert", {"inner_group_num": 2}, NotImplementedError, "inner_group_num: expected 1"),
    ("tiny_albert", {"num_hidden_groups": 3}, ValueError, "layer_groups: .*divisor"),
    ("tiny_neox", {"rotary_pct": 0.25}, ValueError,
     "rotary_pct: expected one value.*got 0.25 and 0.5"),
    ("tiny_llama", {"partial_rotary_factor": 0.5}, NotImplementedError,
     "partial_rotary_factor: expected 1.0"),
    ("tiny_llama", {"rope_theta": True}, TypeError, "rope_theta: expected a real"),
    ("tiny_llama", {"rope_parameters": 3}, NotImplementedError, "rope_parameters: .*table"),
    ("tiny_llama", {"hidden_act": ["silu"]}, NotImplementedError, "hidden_act"),
    ("tiny_llama", {"model_type": ["llama"]}, NotImplementedError, "model_type"),
    ("tiny_llama", {"rope_interleaved": True}, NotImplementedError, "rope_interleaved"),
    ("tiny_llama", {"rms_norm_eps": -1.0}, ValueError, "norm_epsilon: expected at least 0"),
    ("tiny_gpt2", {"n_embd": None}, TypeError, "n_embd: expected an integer"),
    ("tiny_gpt2", {"layer_norm_epsilon": float("nan")}, ValueError, "norm_epsilon: .*finite"),
    ("tiny_gpt2", {"tie_word_embeddings": False}, ValueError,
     "lm_head.weight, because config.json architectures is GPT2LMHeadModel"),
    ("tiny_neox", {"use_parallel_residual": "yes"}, NotImplementedError, "use_parallel_residual"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "settings", "error", "match"), REFUSED_SETTINGS)
def test_settings_that_would_change_the_function_are_refused_by_name(
    tmp_path, name, settings, error, match
):
    with pytest.raises(error, match=match):
        checkpoint.load(edited(tmp_path, name, settings))


def test_a_harmless_setting_can_be_allowed(tmp_path):
    folder = edited(tmp_path, "tiny_llama", {"my_note": "hello"})
    with pytest.raises(NotImplementedError, match="my_note='hello'.*allow_settings"):
        checkpoint.load(folder)
    config, _ = checkpoint.load(folder, allow_settings=["my_note"])
    assert config == checkpoint.load(DATA / "tiny_llama")[0]


def test_all_misfits_of_tensors_are_listed_at_once(tmp_path):
    tensors = {
        "transformer.h.0.ln_1.bias": None,
        "transformer.h.1.attn.c_attn.weight": np.zeros((36, 12), np.float32),
        "transformer.h.0.attn.q_norm.weight": np.ones(4, np.float32),
    }
    folder = edited(tmp_path, "tiny_gpt2", tensors=tensors)
    with pytest.raises(ValueError, match="tensors: expected exactly") as caught:
        checkpoint.load(folder)
    message = str(caught.value)
    assert "1 missing: block_0/norm_attention/bias (from h.0.ln_1.bias)" in message
    assert "1 unused: h.0.attn.q_norm.weight" in message
    assert "h.1.attn.c_attn.weight (36, 12), expected (12, 36)" in message


def test_tensors_can_be_left_out_by_name_only(tmp_path):
    tensors = {"score.weight": np.zeros((2, 12), np.float32)}
    folder = edited(tmp_path, "tiny_gpt2", tensors=tensors)
    with pytest.raises(ValueError, match="1 unused: score.weight.*allow_unused"):
        checkpoint.load(folder)
    with pytest.raises(ValueError, match="1 unused: score.weight"):
        checkpoint.load(folder, allow_unused=["scores.*"])
    _, params = checkpoint.load(folder, allow_unused=["score.*"])
    _, expected = checkpoint.load(DATA / "tiny_gpt2")
    jax.tree.map(np.testing.assert_array_equal, params, expected)


@pytest.mark.parametrize("name", ["lm_head.weight", "transformer.h.0.attn.bias", "h.0.ln_1.bias"])
def test_repeated_tensors_and_stored_masks(tmp_path, name):
    held = load_file(DATA / "tiny_gpt2" / "model.safetensors")
    repeated = {
        "lm_head.weight": held["transformer.wte.weight"],
        "transformer.h.0.attn.bias": np.tri(16, dtype=np.bool_)[None, None],
        "h.0.ln_1.bias": held["transformer.h.0.ln_1.bias"],
    }
    folder = edited(tmp_path, "tiny_gpt2", tensors={name: repeated[name]})
    if name.startswith("h."):
        with pytest.raises(ValueError, match="tensors: expected each once.*h.0.ln_1.bias"):
            checkpoint.load(folder)
        return
    checkpoint.load(folder)
    if name == "lm_head.weight":
        shutil.rmtree(folder)
        folder = edited(tmp_path, "tiny_gpt2", tensors={name: repeated[name] + 1})
        with pytest.raises(ValueError, match="1 contradicting: lm_head.weight and wte.weight"):
            checkpoint.load(folder)


def test_gpt2_kernels_are_read_input_first():
    """Case C-49, with the matrices of the case in a GPT-2 layer's place."""
    shapes = {"query": (2, 1, 2), "key": (2, 1, 2), "value": (2, 1, 2), "out": (1, 2, 2)}
    fused = np.array([[-1.75, -0.5, 0.75, 2, -1, 0.25], [1.5, -1.5, -0.25, 1, -2, -0.75]])
    bias = np.array([-0.75, 0, 0.75, -1.25, -0.5, 0.25])
    c_proj, out_bias = np.array([[1, 0.5], [-0.25, 2]]), np.array([0.5, -0.5])
    x = jnp.array([[[1.0, 2.0], [3.0, -1.0]]])
    from attention_jax.checkpoint import layouts

    def layer(out_layout):
        params = {}
        for part, name in enumerate(("query", "key", "value")):
            kernel, bias_of = layouts.conv_fused(part)
            assert kernel.shape(shapes[name]) == (2, 6)
            params[name] = {
                "kernel": kernel.read(fused, shapes[name]),
                "bias": bias_of.read(bias, (1, 2)),
            }
        params["out"] = {"kernel": out_layout.read(c_proj, shapes["out"]), "bias": out_bias}
        return aj.SeparateAttention(num_heads=1).apply({"params": params}, x)[0]

    right = [[-4.229349, -4.071167], [-4.749978, -5.249951]]
    np.testing.assert_allclose(layer(layouts.CONV_HEADS_OUT), right, atol=2e-6)
    wrong = [[-4.655169, -0.417700], [-5.499965, -1.124970]]
    np.testing.assert_allclose(layer(layouts.HEADS_OUT), wrong, atol=2e-6)


@pytest.mark.parametrize("head_dim", [6, None])
@pytest.mark.parametrize("nested", [False, True])
def test_explicit_head_width_and_rotary_base(tmp_path, head_dim, nested):
    """Case C-51: widths and frequencies as the settings say, not as they usually are."""
    width = 6 if head_dim else 4
    rope = {"rope_theta": 1e6}
    config = {
        "model_type": "llama", "vocab_size": 5, "hidden_size": 8, "intermediate_size": 3,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
        "head_dim": head_dim, "tie_word_embeddings": True, "rope_scaling": None,
        **({"rope_parameters": {**rope, "rope_type": "default"}} if nested else rope),
    }  # fmt: skip
    rng = np.random.default_rng(0)
    shapes = {
        "embed_tokens": (5, 8), "norm": (8,), "layers.0.input_layernorm": (8,),
        "layers.0.post_attention_layernorm": (8,), "layers.0.self_attn.q_proj": (2 * width, 8),
        "layers.0.self_attn.k_proj": (width, 8), "layers.0.self_attn.v_proj": (width, 8),
        "layers.0.self_attn.o_proj": (8, 2 * width), "layers.0.mlp.up_proj": (3, 8),
        "layers.0.mlp.gate_proj": (3, 8), "layers.0.mlp.down_proj": (8, 3),
    }  # fmt: skip
    tensors = {f"model.{k}.weight": rng.normal(size=v).astype("f4") for k, v in shapes.items()}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(tensors, tmp_path / "model.safetensors")
    loaded, params = checkpoint.load(tmp_path)
    attention = params["block_0"]["attention"]
    assert attention["query"]["kernel"].shape == (8, 2, width)
    assert attention["key"]["kernel"].shape == (8, 1, width)
    assert loaded.position == aj.Rotary(theta=1e6)
    half = width // 2
    frequencies = 1e6 ** (-np.arange(half) / half)
    np.testing.assert_allclose(frequencies[:3], [1, 0.01, 0.0001] if head_dim else [1, 0.001])
    # The layer's scores from the matrices themselves, with scale 1 / sqrt(6) = 0.408248.
    x = rng.normal(size=(2, 8)).astype("f4")
    _, state = aj.SeparateAttention(
        num_heads=2, head_dim=loaded.head_dim, num_kv_heads=1, use_bias=False,
        position=loaded.position,
    ).apply({"params": attention}, x, sow_weights=True, mutable=["intermediates"])  # fmt: skip
    q = (x @ tensors["model.layers.0.self_attn.q_proj.weight"].T).reshape(2, 2, width)
    k = (x @ tensors["model.layers.0.self_attn.k_proj.weight"].T).reshape(2, width)
    position = np.arange(2)[:, None] * frequencies
    turn = np.exp(1j * position)
    as_complex = lambda z: z[..., :half] + 1j * z[..., half:]  # noqa: E731
    turned_q, turned_k = as_complex(q) * turn[:, None], as_complex(k) * turn
    scores = np.einsum("thf,sf->hts", turned_q, turned_k.conj()).real / np.sqrt(width)
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    found = state["intermediates"]["attention_weights"][0]
    np.testing.assert_allclose(found, weights, atol=2e-6)
    # A projection's bias, or a norm of queries, is not silently left out.
    for name in ("layers.0.self_attn.q_proj.bias", "layers.0.self_attn.q_norm.weight"):
        extra = {f"model.{name}": np.ones(2 * width, "f4")}
        save_file(tensors | extra, tmp_path / "model.safetensors")
        with pytest.raises(ValueError, match=f"1 unused: {name}"):
            checkpoint.load(tmp_path)
    save_file(
        {k: v for k, v in tensors.items() if "k_proj" not in k}, tmp_path / "model.safetensors"
    )
    with pytest.raises(ValueError, match="1 missing: block_0/attention/key/kernel .*k_proj.weight"):
        checkpoint.load(tmp_path)


def test_fused_heads_of_neox_are_per_head(tmp_path):
    """Read as three blocks side by side, as GPT-2 has them, the model is another one."""
    folder = DATA / "tiny_neox"
    _, params = checkpoint.load(folder)
    fused = load_file(folder / "model.safetensors")[
        "gpt_neox.layers.0.attention.query_key_value.weight"
    ]
    query = np.asarray(params["block_0"]["attention"]["query"]["kernel"])
    for head in range(3):
        np.testing.assert_array_equal(query[:, head], fused[12 * head : 12 * head + 4].T)
    assert np.any(query[:, 1] != fused[4:8].T)


def test_a_head_of_its_own_is_told_by_the_tensors(tmp_path):
    tensors = {"embed_out.weight": None}
    with pytest.raises(ValueError, match="embed_out.weight, because .*GPTNeoXForCausalLM"):
        checkpoint.load(edited(tmp_path, "tiny_neox", tensors=tensors))
    shutil.rmtree(tmp_path / "model")
    folder = edited(tmp_path, "tiny_neox", {"architectures": ["GPTNeoXModel"]}, tensors)
    config, params = checkpoint.load(folder)
    assert config.head == "none" and "head" not in params
    with_head, _ = checkpoint.load(DATA / "tiny_neox")
    assert dataclasses.replace(config, head="linear") == with_head


def test_other_names_of_the_same_tensor(tmp_path):
    """Early files call a norm's gain and bias gamma and beta; a head may be named as in memory."""
    held = load_file(DATA / "tiny_neox" / "model.safetensors")
    norm = "gpt_neox.layers.0.input_layernorm"
    tensors = {
        "lm_head.weight": held["embed_out.weight"], "embed_out.weight": None,
        f"{norm}.gamma": held[f"{norm}.weight"], f"{norm}.weight": None,
        f"{norm}.beta": held[f"{norm}.bias"], f"{norm}.bias": None,
    }  # fmt: skip
    _, params = checkpoint.load(edited(tmp_path, "tiny_neox", tensors=tensors))
    _, expected = checkpoint.load(DATA / "tiny_neox")
    jax.tree.map(np.testing.assert_array_equal, params, expected)
    both = tensors | {"embed_out.weight": held["embed_out.weight"]}
    shutil.rmtree(tmp_path / "model")
    with pytest.raises(ValueError, match="1 unused: lm_head.weight"):
        checkpoint.load(edited(tmp_path, "tiny_neox", tensors=both))


def test_an_untied_masked_head_has_a_bias_of_its_own(tmp_path):
    held = load_file(DATA / "tiny_albert" / "model.safetensors")
    rng = np.random.default_rng(0)
    own = {
        "predictions.decoder.weight": rng.normal(size=(23, 6)).astype("f4"),
        "predictions.decoder.bias": rng.normal(size=23).astype("f4"),
    }
    folder = edited(tmp_path, "tiny_albert", {"tie_word_embeddings": False}, own)
    config, params = checkpoint.load(folder, allow_unused=["predictions.bias"])
    assert not config.tied
    np.testing.assert_array_equal(params["head"]["bias"], own["predictions.decoder.bias"])
    assert np.any(params["head"]["bias"] != held["predictions.bias"])
    np.testing.assert_array_equal(params["head"]["kernel"], own["predictions.decoder.weight"].T)


def test_arguments_that_would_lose_weights_are_refused(tmp_path):
    folder = DATA / "tiny_gpt2"
    for dtype in (jnp.int8, "int32", bool, "nonsense", 3):
        with pytest.raises(TypeError, match="dtype: expected a floating dtype"):
            checkpoint.load(folder, dtype=dtype)
    # A string is a sequence of letters, and "*" allows everything.
    for name in ("allow_unused", "allow_settings"):
        with pytest.raises(TypeError, match=f"{name}: expected a list of names"):
            checkpoint.load(folder, **{name: "score.*"})
    whole = {"transformer.ln_f.weight": np.ones(12, np.int64)}
    with pytest.raises(ValueError, match="ln_f.weight of int64, expected floats"):
        checkpoint.load(edited(tmp_path, "tiny_gpt2", tensors=whole))
