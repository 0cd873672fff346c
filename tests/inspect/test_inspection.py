"""The numbers of an inspection, and the command around them."""

import json
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

import attention_jax as aj
from attention_jax import checkpoint
from attention_jax.inspect import command, inspect, side
from tests.checkpoint import packages

DATA = pathlib.Path(__file__).parents[1] / "checkpoint" / "data"


def test_measures_are_those_of_the_formed_matrices():
    found = inspect(DATA / "tiny_gpt2")
    _, params = checkpoint.load(DATA / "tiny_gpt2")
    for layer in range(2):
        attention = params[f"block_{layer}"]["attention"]
        kernels = {name: np.asarray(attention[name]["kernel"], "f8") for name in attention}
        for measured, matrices in (
            (found.qk, np.einsum("dhk,ehk->hde", kernels["query"], kernels["key"])),
            (found.ov, np.einsum("ehk,hko->heo", kernels["value"], kernels["out"])),
        ):
            values = np.linalg.svd(matrices, compute_uv=False)
            squares = values**2
            np.testing.assert_allclose(measured.singular_values[layer], values[:, :4], rtol=1e-4)
            np.testing.assert_allclose(measured.norm[layer], np.sqrt(squares.sum(1)), rtol=1e-5)
            np.testing.assert_allclose(measured.nuclear_norm[layer], values.sum(1), rtol=1e-5)
            transposed = np.sum(matrices * matrices.swapaxes(1, 2), (1, 2)) / squares.sum(1)
            np.testing.assert_allclose(measured.symmetry[layer], transposed, atol=1e-5)
            assert measured.rank[layer].tolist() == [4, 4, 4]
    assert found.cache.separate_bytes == 2 * 2 * 12 * 4
    assert found.cache.merged_bytes == 2 * 12 * 4
    assert "only with more than 1.5 key/value heads, and this model has 3" in found.cache.verdict


def test_the_rank_at_one_percent():
    circuit = aj.circuits.Circuit(np.diag([1.0, 0.5, 0.02, 0.005]).astype("f4")[None])
    measured = side.describe([circuit, aj.circuits.Circuit(np.zeros((1, 4, 4), "f4"))])
    # Cut after two the rest is .0206 / 1.118 = 1.8%, after three .45%.
    assert measured.rank_at_error.tolist() == [[3], [0]]


def test_every_head_of_minilm_has_a_curve_below_its_bound():
    found = inspect(packages.folder("minilm"))
    assert found.sample.source == "64 tokens of the beginning of A Tale of Two Cities"
    assert found.ranks[-1] == 32 and len(found.ranks) == 11
    for name in ("qk_scores", "qk_output", "ov_output"):
        measured, bound = found.curves[name], found.curves[f"{name}_bound"]
        assert measured.shape == bound.shape == (6, 11, 12)
        assert np.all(measured <= bound * (1 + 1e-4) + 1e-6)
        # From nearly everything lost to nothing, and less with each rank.
        assert measured[:, 0].min() > 0.05 and np.all(measured[:, -1] == 0)
        assert np.mean(np.diff(measured, axis=1) <= 1e-6) > 0.9
    # One more check by hand: head 3 of layer 2 with its W_ov cut to rank 8.
    assert 0 < found.curves["ov_output"][2, found.ranks.index(8), 3] < 1


@pytest.mark.slow
def test_rotary_models_have_curves_of_w_ov_alone():
    found = inspect(DATA / "tiny_llama")
    assert set(found.curves) == {"ov_output", "ov_output_bound"}
    assert found.qk_mean_norm.shape == (2, 6) and np.all(found.qk_mean_norm < 1)
    assert "keys and inputs (W_qk cannot be merged)" in found.cache.verdict
    # Two groups of width 4: 8 keys and 12 inputs for each token and layer, against 16.
    assert (found.cache.separate_bytes, found.cache.merged_bytes) == (2 * 16 * 4, 2 * 20 * 4)


def run(capsys, *arguments):
    code = command.main([str(argument) for argument in arguments])
    return code, *capsys.readouterr()


def test_the_command_writes_figures_and_one_page(tmp_path, capsys):
    code, out, _ = run(capsys, DATA / "tiny_albert", "--out", tmp_path)
    assert code == 0
    assert "truncation is measured on random tokens" in out.lower()
    assert "4 layers that share 2 blocks of parameters" in out
    # A row for each head of each block, and one for each block.
    rows = [line.split() for line in out.splitlines() if line.strip()]
    assert [row[:2] for row in rows if row[0] in "01"] == [[a, b] for a in "01" for b in "012"]
    assert [row[0] for row in rows if row[0].startswith("block_")] == ["block_0", "block_1"]
    names = {path.name for path in tmp_path.iterdir()}
    pictures = {"heat_maps.png", "spectra.png", "truncation_0.png", "truncation_1.png"}
    assert names == pictures | {"inspection.json", "report.html"}
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in pictures)
    page = (tmp_path / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 4 and "http" not in page
    assert "width=device-width" in page and "Numbers of layer 1" in page


def test_json_is_all_that_is_printed(tmp_path):
    command_line = ["-m", "attention_jax.inspect", DATA / "tiny_gpt2", "--json", "--out", tmp_path]
    result = subprocess.run(
        [sys.executable, *map(str, command_line)], capture_output=True, text=True, check=True
    )
    found = json.loads(result.stdout)
    assert found == json.loads((tmp_path / "inspection.json").read_text())
    assert np.shape(found["qk"]["rank"]) == (2, 3) and found["config"]["width"] == 12


@pytest.mark.parametrize(
    ("name", "damage", "match"),
    [
        ("model.safetensors", lambda data: data[:-50], "model.safetensors"),
        ("model.safetensors", lambda data: b"\xff" * 64, "model.safetensors"),
        ("config.json", lambda data: data[:30], "config.json"),
        ("config.json", lambda data: data.replace(b"gpt2", b"mamba"), "model_type: .*'mamba'"),
    ],
)
def test_what_cannot_be_read_gives_one_line_and_exit_code_1(tmp_path, capsys, name, damage, match):
    folder = tmp_path / "model"
    folder.mkdir()
    for file in ("config.json", "model.safetensors"):
        data = (DATA / "tiny_gpt2" / file).read_bytes()
        (folder / file).write_bytes(damage(data) if file == name else data)
    code, out, error = run(capsys, folder, "--out", tmp_path / "out")
    assert (code, out) == (1, "")
    lines = error.strip().splitlines()
    assert lines[-1].startswith("error: ") and "Remedy: " in lines[-1]
    assert re.search(match, lines[-1]), lines[-1]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["no/such/folder"], "no/such/folder"),
        ([str(DATA / "versions.json")], "versions.json"),
        ([str(DATA / "tiny_gpt2"), "--text", "hello"], "tokenizer.json"),
    ],
)
def test_paths_and_texts_that_do_not_fit(tmp_path, capsys, arguments, match):
    code, _, error = run(capsys, *arguments, "--out", tmp_path / "out")
    assert code == 1 and match in error


def test_a_package_that_is_missing_is_named(tmp_path):
    block = "import sys; sys.modules['matplotlib'] = None; sys.argv = ['inspect', 'nothing']\n"
    code = block + "from attention_jax.inspect.__main__ import main; sys.exit(main())"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 1
    assert result.stderr.startswith("error: packages: ") and "matplotlib" in result.stderr
    assert 'pip install "attention-jax[inspect]"' in result.stderr
