"""JSON lines: torn and damaged lines are said, never skipped."""

import pytest

from train import metrics

RECORDS = [{"kind": "train", "step": step, "loss": 1 / step} for step in (10, 20, 30)]


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "metrics.jsonl"
    for record in RECORDS:
        metrics.append(path, record)
    return path


def test_records_come_back(path):
    assert metrics.read(path) == RECORDS


def test_truncation_drops_later_steps_and_counts_them(path):
    assert metrics.truncate(path, 20) == 1
    assert metrics.read(path) == RECORDS[:2]
    assert metrics.truncate(path, 20) == 0


@pytest.mark.parametrize("torn", ['{"kind": "train", "st', '{"kind": "train", "step": 12}'])
def test_a_torn_last_line_is_refused_until_truncated(path, torn):
    with path.open("a") as file:
        file.write(torn)
    with pytest.raises(ValueError, match=r"on line 4"):
        metrics.read(path)
    assert metrics.truncate(path, 30) == 1
    assert metrics.read(path) == RECORDS


def test_a_damaged_line_inside_is_refused(path):
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(lines[0] + "{]\n" + lines[2])
    with pytest.raises(ValueError, match=r"on line 2"):
        metrics.read(path)
    with pytest.raises(ValueError, match=r"on line 2"):
        metrics.truncate(path, 20)


@pytest.mark.parametrize(
    "line", ['{"step": 20}', '{"kind": "train"}', '{"kind": "train", "step": "20"}', "[20]"]
)
def test_a_line_without_kind_or_step_is_refused(path, line):
    lines = path.read_text().splitlines(keepends=True)
    line += "\n"
    path.write_text(lines[0] + line + lines[2])
    for call in (metrics.read, lambda path: metrics.truncate(path, 20)):
        with pytest.raises(ValueError) as refused:
            call(path)
        message = f"metrics {path}: expected a JSON object with kind and step and a newline"
        assert str(refused.value).startswith(f"{message} on line 2, got {line!r}; ")


def test_the_newest_record_of_a_kind(path):
    assert metrics.last(metrics.read(path), "train", path) == RECORDS[-1]
    with pytest.raises(ValueError, match=rf"metrics {path}: expected .* 'eval', got 3 records"):
        metrics.last(metrics.read(path), "eval", path)
    path.write_text("")
    with pytest.raises(ValueError, match=rf"metrics {path}: expected .* got 0 records.*; delete"):
        metrics.last(metrics.read(path), "train", path)


def test_missing_files(tmp_path):
    assert metrics.truncate(tmp_path / "none.jsonl", 0) == 0
    with pytest.raises(FileNotFoundError, match=r"metrics .*none.jsonl"):
        metrics.read(tmp_path / "none.jsonl")


def test_what_json_lacks_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"Out of range float"):
        metrics.append(tmp_path / "metrics.jsonl", {"step": 1, "loss": float("nan")})
