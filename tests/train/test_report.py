"""The report from files alone: numbers known by hand, and no JAX."""

import dataclasses
import html
import io
import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import rich.console

from train import config as config_lib
from train import config_files, figures, metrics, report, results, statistics, study, verdict

ROOT = pathlib.Path(__file__).parents[2]
LOSSES = {
    "separate": (2.0, 2.1, 2.3),
    "merged": (2.01, 2.08, 2.31),
    "raw": (2.5, 2.7, 2.75),
}
CONFIG = config_lib.Config(name="made", model=config_lib.ModelConfig(num_layers=2))


def ranks(scale):
    return {
        f"block_{layer}": {"rank": [16, 16], "stable_rank": [scale, 2 * scale]}
        | {"effective_rank": [3 * scale, 5 * scale]}
        for layer in range(2)
    }


def spectra(form):
    if form == "raw":
        return {}
    values = (np.arange(16, 0, -1) / 4).tolist()
    return {
        name: {**block, "singular_values": [values, values]} for name, block in ranks(1.0).items()
    }


def write_run(runs, form, seed, loss, config=CONFIG):
    settings = study.run_config(config, form, seed)
    directory = study.run_directory(runs, settings)
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(config_files.to_json(settings))
    for step in (0, 500, 1000):
        value = loss + (1000 - step) / 1000
        record = {"kind": "train", "step": step, "loss": value, "seconds": step / 100}
        if step:
            metrics.append(directory / "metrics.jsonl", record)
        found = ranks(1.0 + step / 1000) if form != "raw" else {}
        record = {"kind": "eval", "step": step, "nats_per_byte": value, "ranks": found}
        metrics.append(directory / "metrics.jsonl", record)
    result = {
        "form": form,
        "seed": seed,
        "held_out_nats_per_byte": loss,
        "parameters": {"separate": 1000, "merged": 1500, "raw": 600}[form],
        "attention_parameters": {"separate": 400, "merged": 900, "raw": 0}[form],
        "train_flops": 1.5e12,
        "cache_bytes_per_token": 512,
        "seconds": 10.0 + seed,
        "tokens_per_s": 2000.0,
        "spectra": spectra(form),
    }
    (directory / "result.json").write_text(json.dumps(result))
    return directory


@pytest.fixture
def runs(tmp_path):
    for form, losses in LOSSES.items():
        for seed, loss in enumerate(losses):
            write_run(tmp_path, form, seed, loss)
    return tmp_path / "made"


def test_intervals_by_hand():
    # t(0.975, 2) = 4.302653; sd of 1, 2, 4 is sqrt(7 / 3).
    found = statistics.interval([1, 2, 4])
    assert found.mean == pytest.approx(7 / 3)
    assert found.half_width == pytest.approx(4.302653 * np.sqrt(7 / 9), rel=1e-6)
    assert (found.low + found.high) / 2 == pytest.approx(found.mean)
    alone = statistics.interval([1.5])
    assert alone.text(2) == "1.50" and np.isnan(alone.half_width)
    with pytest.raises(ValueError, match=r"values: expected at least one"):
        statistics.interval([])


def test_differences_are_paired_by_seed():
    found = statistics.paired_difference({3: 2.0, 1: 1.0, 9: 5.0}, {1: 0.5, 3: 1.0, 4: 0.0})
    assert found == statistics.interval([0.5, 1.0])
    assert statistics.paired_difference({1: 0.0}, {2: 0.0}) is None


def test_the_tables_hold_the_computed_numbers(runs):
    experiment = results.read(runs)
    rows = {row[0]: row[1:] for row in report.loss_table(experiment)}
    # 2.0, 2.1, 2.3: mean 2.133333, sd .152753; differences .01, -.02, .01: mean 0, sd .017321.
    assert rows["separate"] == ["2.1333 ± 0.3795", "", "3"]
    assert rows["merged"] == ["2.1333 ± 0.3899", "+0.0000 ± 0.0430", "3"]
    assert rows["raw"][1] == "+0.5167 ± 0.1897"
    costs = {row[0]: row[1:] for row in report.cost_table(experiment)}
    assert costs["merged"] == ["1,500", "900", "1.5e+12", "512", "11.0", "2,000"]
    rank_rows = report.rank_table(experiment)
    assert ["separate", "block 1", "16.0", "1.5", "4.0"] in rank_rows
    assert ["raw (W = I)", "block 0", "64.0", "64.0", "64.0"] in rank_rows


def test_the_paragraph_follows_from_the_numbers(runs):
    text = verdict.paragraph(results.read(runs))
    assert "not resolved with 3 seeds; one larger than about 0.0430 would have been" in text
    assert "Raw minus separate is +0.5167 ± 0.1897" in text
    assert "The interval excludes 0: raw is worse at these settings" in text
    assert "merged has 1.50 times the parameters" in text
    assert "separate (2.133) beats the 1, 2-gram and does not beat the 3, 4, 5, 6-gram" in text
    assert "ends at 4.0 (separate) and 4.0 (merged) of at most 64" in text
    assert "W = I" in text


def test_a_clear_gain_is_called_one(tmp_path):
    for seed, loss in enumerate((2.0, 2.1, 2.3)):
        write_run(tmp_path, "separate", seed, loss)
        write_run(tmp_path, "merged", seed, loss - 0.1 - 0.001 * seed)
    text = verdict.paragraph(results.read(tmp_path / "made"))
    assert "The interval excludes 0: merged is better at these settings" in text


@pytest.mark.parametrize("change", [-0.1, 0.1, 0.0])
def test_two_pairs_are_no_verdict(tmp_path, change):
    for seed, loss in enumerate((2.0, 2.1)):
        write_run(tmp_path, "separate", seed, loss)
        write_run(tmp_path, "merged", seed, loss + change + 0.001 * seed)
    text = verdict.paragraph(results.read(tmp_path / "made"))
    assert "The interval rests on 2 pairs and is no verdict." in text
    for word in ("better", "worse", "resolved"):
        assert word not in text


def test_one_seed_resolves_nothing(tmp_path):
    for form in ("separate", "merged"):
        write_run(tmp_path, form, 0, LOSSES[form][0])
    assert "one seed has no interval" in verdict.paragraph(results.read(tmp_path / "made"))


def test_files_and_terminal(runs):
    output = io.StringIO()
    files = report.write(runs, rich.console.Console(file=output, width=100))
    names = [str(path.relative_to(runs)) for path in files]
    images = [f"figures/{name}.png" for name in ("loss", "difference", "spectrum", "rank")]
    assert names == ["report.html", "report.md", *images]
    for path in files[2:]:
        assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 10_000
    page = (runs / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 4
    assert "http" not in page and "<script" not in page and "<link" not in page
    printed = " ".join(output.getvalue().split())
    for text in (page, (runs / "report.md").read_text(), printed):
        assert "2.1333 ± 0.3795" in text and "not resolved with 3 seeds" in text
        assert "python -m train.ngrams" in text and "1.693" in text
        assert "this table's command" in html.unescape(text) and "independent count" in text
    assert all(str(path) in output.getvalue() for path in files)


def test_other_text_has_no_ngram_table(tmp_path):
    data = config_lib.DataConfig(corpus="other", held_out=("a",))
    config = dataclasses.replace(CONFIG, data=data)
    write_run(tmp_path, "separate", 0, 2.0, config)
    report.write(tmp_path / "made", rich.console.Console(file=io.StringIO()))
    assert "n-gram" not in (tmp_path / "made" / "report.md").read_text()


def test_unfinished_runs_are_named(runs):
    (runs / "merged-seed1" / "result.json").unlink()
    experiment = results.read(runs)
    assert experiment.unfinished == ["merged-seed1"]
    assert sorted(experiment.results["merged"]) == [0, 2]
    assert "Not finished and left out: merged-seed1." in verdict.paragraph(experiment)


def test_ngrams_are_shown_by_their_source():
    _, command, independent = report.ngram_table()
    assert command == ["this table's command", "3.318", "2.535", "2.077", "1.805", "1.693", "1.694"]
    assert independent[0].startswith("independent count")
    assert independent[1:] == ["3.312", "2.538", "2.088", "1.811", "1.690", "1.688"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"form": "mer', r"expected JSON, got text that is none"),
        ("", r"expected JSON, got text that is none"),
        ("[]", r"expected a JSON object, got \[\]"),
        ('{"form": "merged"}', r"expected seed, held_out_nats_per_byte, .*spectra, got none"),
    ],
)
def test_a_damaged_result_is_named_with_the_remedy(runs, content, message):
    path = runs / "merged-seed1" / "result.json"
    path.write_text(content)
    for call in (lambda: results.read(runs), lambda: study.finished(path.parent)):
        with pytest.raises(ValueError, match=rf"result {path}: {message}.*; delete the file"):
            call()


def test_a_result_of_another_kind_is_refused(runs):
    path = runs / "merged-seed1" / "result.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"seed": "one"}))
    with pytest.raises(ValueError, match=rf"result {path}: expected seed of kind int, got 'one'"):
        results.read_result(path)


def test_a_finished_run_without_records_is_refused(runs):
    path = runs / "raw-seed0" / "metrics.jsonl"
    path.write_text("")
    with pytest.raises(ValueError, match=rf"metrics {path}: expected a record of kind 'train'"):
        results.read(runs)


def test_rank_figures_name_their_axes(runs):
    labels = [axis.get_ylabel() for axis in figures.ranks(results.read(runs)).axes]
    assert labels == ["stable rank"] * 2 + ["effective rank"] * 2


def test_refusals(runs, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"give one of its folders: made"):
        results.read(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"runs .*none: expected folders"):
        results.read(tmp_path / "none")
    other = dataclasses.replace(CONFIG, optimizer=config_lib.OptimizerConfig(b2=0.5))
    write_run(tmp_path, "raw", 7, 2.0, other)
    with pytest.raises(ValueError, match=r"raw-seed7: .*optimizer.b2: stored 0.99, wanted 0.5"):
        results.read(runs)


def test_the_report_needs_no_jax(runs):
    blocked = ("jax", "jaxlib", "flax", "optax", "orbax", "attention_jax")
    program = f"""
import sys
for name in {blocked}:
    sys.modules[name] = None
try:
    import jax
except ImportError:
    print("blocked")
from train.__main__ import main
sys.exit(main(["report", {str(runs)!r}]))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("blocked\n")
    assert (runs / "report.html").is_file()
