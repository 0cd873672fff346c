"""Stopping and resuming in a new process equals never stopping, bit by bit."""

import json
import pathlib
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest

from train import checkpoints, config_files, loop, metrics, overrides, parallel, results, study
from train import config as config_lib

ROOT = pathlib.Path(__file__).parents[2]
TEXT = "Now is the winter of our discontent made glorious summer by this sun of York.\n" * 9


def config(text, **changes):
    base = config_lib.Config(
        name="resume",
        model=config_lib.ModelConfig(
            num_layers=1, width=8, num_heads=2, context=8, dropout_rate=0.1
        ),
        data=config_lib.DataConfig(corpus=str(text), held_out=(), batch_size=4),
        optimizer=config_lib.OptimizerConfig(
            learning_rate=1.0, steps=10, warmup_steps=2, final_fraction=0.0
        ),
        run=config_lib.RunConfig(log_every=1, eval_every=5, checkpoint_every=5),
    )
    return overrides.replace(base, changes)


def run(settings, directory):
    said = []
    result = loop.run(
        settings,
        directory,
        program=parallel.Program(settings),
        texts=loop.load_texts(settings.data),
        say=said.append,
    )
    return result, said


def final_leaves(directory, settings):
    with checkpoints.Checkpoints(directory / "checkpoints") as saved:
        state = saved.restore(10, parallel.Program(settings).abstract_state())
    return jax.tree.leaves(jax.device_get(state))


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("resume")
    text = folder / "text.txt"
    text.write_text(TEXT)
    settings = config(text)
    directory = study.run_directory(folder / "whole", settings)
    result, said = run(settings, directory)
    return folder, settings, directory, result, said


def interrupt(directory, copy):
    """What a run leaves that was stopped just after step 7, while writing a line."""
    shutil.copytree(directory, copy)
    (copy / "result.json").unlink()
    shutil.rmtree(copy / "checkpoints" / "10")
    lines = (copy / "metrics.jsonl").read_text().splitlines(keepends=True)
    kept = [line for line in lines if json.loads(line)["step"] <= 7]
    (copy / "metrics.jsonl").write_text("".join(kept) + '{"kind": "tr')


def comparable(directory):
    records = metrics.read(directory / "metrics.jsonl")
    return [{name: r[name] for name in r if name != "seconds"} for r in records]


def test_resuming_in_a_new_process_is_bit_identical(uninterrupted):
    folder, settings, directory, result, _ = uninterrupted
    runs = folder / "resumed"
    copy = study.run_directory(runs, settings)
    interrupt(directory, copy)
    saved = folder / "config.json"
    saved.write_text(config_files.to_json(settings))
    done = subprocess.run(
        [sys.executable, "-m", "train", "run", str(saved), "--runs", str(runs)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "resuming at step 5 of 10" in done.stdout
    # Steps 6 and 7 and the torn line.
    assert "dropped 3 lines" in done.stdout
    leaves = [final_leaves(path, settings) for path in (directory, copy)]
    for whole, resumed in zip(*leaves, strict=True):
        np.testing.assert_array_equal(whole, resumed)
    assert comparable(directory) == comparable(copy)
    again = json.loads((copy / "result.json").read_text())
    assert again["held_out_nats_per_byte"] == result["held_out_nats_per_byte"]


def test_resuming_after_the_last_save_repeats_nothing(uninterrupted):
    folder, settings, directory, result, _ = uninterrupted
    copy = folder / "saved"
    shutil.copytree(directory, copy)
    (copy / "result.json").unlink()
    again, said = run(settings, copy)
    assert said[0] == "resuming at step 10 of 10"
    assert again["held_out_nats_per_byte"] == result["held_out_nats_per_byte"]
    assert metrics.read(copy / "metrics.jsonl") == metrics.read(directory / "metrics.jsonl")


def test_deleting_a_torn_result_continues_from_the_checkpoint(uninterrupted):
    folder, settings, directory, result, _ = uninterrupted
    runs = folder / "torn"
    copy = study.run_directory(runs, settings)
    shutil.copytree(directory, copy)
    (copy / "result.json").write_text('{"form": "sep')
    with pytest.raises(ValueError, match=r"result .*result.json: expected JSON.*; delete"):
        study.run_one(settings, runs, say=[].append)
    (copy / "result.json").unlink()
    said = []
    again = study.run_one(settings, runs, say=said.append)
    assert said[0] == "resuming at step 10 of 10"
    assert again["held_out_nats_per_byte"] == result["held_out_nats_per_byte"]
    assert results.RESULT_KINDS.keys() <= again.keys()
    assert not list(copy.glob("*.tmp"))


def test_the_rates_that_were_used(uninterrupted):
    records = metrics.read(uninterrupted[2] / "metrics.jsonl")
    rates = [record["learning_rate"] for record in records if record["kind"] == "train"]
    expected = [0, 0.5, 1, 0.961940, 0.853553, 0.691342, 0.5, 0.308658, 0.146447, 0.038060]
    np.testing.assert_allclose(rates, expected, atol=1e-6)
    assert [r["step"] for r in records if r["kind"] == "eval"] == [0, 5, 10]


def test_a_result_has_what_the_report_needs(uninterrupted):
    result = uninterrupted[3]
    assert result["steps"] == 10 and result["form"] == "separate" and result["seed"] == 0
    assert result["parameters"] > result["attention_parameters"] == 4 * (8 * 8 + 8)
    assert result["train_flops"] > 0 and result["seconds"] > 0
    assert np.shape(result["spectra"]["block_0"]["singular_values"])[0] == 2
    # Held-out bytes but the first of the one document.
    assert result["held_out_tokens"] == len(TEXT) // 10 - 1


def test_plain_lines_are_sparse(uninterrupted):
    said = uninterrupted[4]
    assert len(said) == 4
    assert said[-1].startswith("separate seed 0: step 10 of 10  loss ")
    assert "tokens/s" in said[-1] and said[-1].endswith("0 s left")


def test_another_config_is_refused_by_field(uninterrupted):
    folder, settings, directory, _, _ = uninterrupted
    other = overrides.replace(settings, {"optimizer.b2": 0.5})
    with pytest.raises(ValueError, match=r"optimizer.b2: stored 0.99, wanted 0.5"):
        run(other, directory)


def test_a_loss_that_is_not_finite_stops_with_its_step(uninterrupted):
    folder, settings, _, _, _ = uninterrupted
    changes = {"optimizer.learning_rate": 1e38, "model.form": "raw", "model.dropout_rate": 0.0}
    diverging = overrides.replace(settings, changes)
    with pytest.raises(FloatingPointError, match=r"^step [1-5]: expected a finite loss"):
        run(diverging, folder / "diverging")
    assert not (folder / "diverging" / "result.json").exists()
    assert metrics.read(folder / "diverging" / "metrics.jsonl")[0]["step"] == 0


def test_a_vocabulary_smaller_than_the_text_is_refused(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    settings = config(tmp_path / "text.txt", **{"model.vocab_size": 100})
    with pytest.raises(ValueError, match="model.vocab_size: .*largest byte 121"):
        run(settings, tmp_path / "run")
