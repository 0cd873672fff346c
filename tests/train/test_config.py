"""Settings: checks, strict overrides, JSON both ways, and every file in configs/."""

import dataclasses
import json
import pathlib

import hypothesis
import hypothesis.strategies as st
import jax
import pytest

from train import config as config_lib
from train import config_files, overrides, start, study

CONFIGS = sorted((pathlib.Path(__file__).parents[2] / "configs").glob("*.py"))
BASE = config_lib.Config()
BOOLEANS = [name for name, kind in overrides.field_kinds(BASE).items() if kind is bool]


def value_of(config, name):
    section, _, field = name.rpartition(".")
    return getattr(getattr(config, section), field)


def saved_value(config, name):
    section, _, field = name.rpartition(".")
    return json.loads(config_files.to_json(config))[section][field]


def changed_json(name, value):
    section, _, field = name.rpartition(".")
    data = json.loads(config_files.to_json(BASE))
    data[section][field] = value
    return json.dumps(data)


def test_c47_every_boolean_option_is_tested():
    assert BOOLEANS == ["model.use_bias", "model.normalize_qk"]


@pytest.mark.parametrize("name", BOOLEANS)
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("False", False),
        ("false", False),
        ("0", False),
        ("no", False),
        ("True", True),
        ("true", True),
        ("1", True),
        ("yes", True),
    ],
)
def test_c47_flag_false_is_false_by_override(name, text, value):
    changed = overrides.apply(BASE, [f"{name}={text}"])
    assert value_of(changed, name) is value
    assert saved_value(changed, name) is value


@pytest.mark.parametrize("name", BOOLEANS)
@pytest.mark.parametrize("text", ["maybe", "", "None", "FALSE", "2"])
def test_c47_flag_maybe_is_refused_by_override(name, text):
    with pytest.raises(ValueError, match=rf"{name}: expected one of True.*got '{text}'"):
        overrides.apply(BASE, [f"{name}={text}"])


@pytest.mark.parametrize("name", BOOLEANS)
@pytest.mark.parametrize("value", [False, True])
def test_c47_flag_false_is_false_in_json(name, value):
    config = config_files.from_json(changed_json(name, value))
    assert value_of(config, name) is value
    assert saved_value(config, name) is value


@pytest.mark.parametrize("name", BOOLEANS)
@pytest.mark.parametrize("value", ["False", "false", "0", "no", "True", "maybe", 0, 1, None])
def test_c47_flag_of_another_kind_is_refused_in_json(name, value):
    with pytest.raises(TypeError, match=rf"{name}: expected bool, got {value!r}"):
        config_files.from_json(changed_json(name, value))


def test_overrides_change_only_what_they_name():
    changed = overrides.apply(
        BASE,
        [
            "optimizer.learning_rate=1e-2",
            "optimizer.clip_norm=None",
            "model.head_dim=24",
            "study.seeds=3,5,8",
            "study.forms=merged",
            "data.held_out=",
            "name=other",
        ],
    )
    assert changed.optimizer == dataclasses.replace(
        BASE.optimizer, learning_rate=1e-2, clip_norm=None
    )
    assert changed.model == dataclasses.replace(BASE.model, head_dim=24)
    assert changed.study == config_lib.StudyConfig(forms=("merged",), seeds=(3, 5, 8))
    assert changed.data.held_out == ()
    assert changed.name == "other"
    assert changed.run == BASE.run


def test_overrides_of_one_section_are_checked_together():
    # 6 heads do not divide the default width 64; both settings together are valid.
    changed = overrides.apply(BASE, ["model.num_heads=6", "model.width=66"])
    assert (changed.model.num_heads, changed.model.width) == (6, 66)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("optimizer.learningrate=1", r"did you mean optimizer.learning_rate.*valid names: data\."),
        ("learning_rate=1", r"did you mean optimizer.learning_rate"),
        ("model=1", r"expected a setting's name"),
        ("optimizer.steps", r"override: expected name=value, got 'optimizer.steps'; "),
        ("optimizer.steps=3.5", r"optimizer.steps: expected int, got '3.5'"),
        ("optimizer.steps=None", r"optimizer.steps: expected int, got 'None'"),
        ("optimizer.learning_rate=fast", r"optimizer.learning_rate: expected float, got 'fast'"),
        ("model.head_dim=wide", r"model.head_dim: expected int or None, got 'wide'"),
        ("study.seeds=0,x", r"study.seeds: expected int, got 'x'"),
        ("study.seeds=", r"study.seeds: expected a non-empty tuple"),
        ("study.seeds=1,1", r"study.seeds: expected .* without repeats"),
        ("model.form=joint", r"model.form: expected one of separate, merged, raw, got 'joint'"),
        ("study.forms=joint", r"study.forms: expected one of separate"),
        ("model.num_heads=5", r"model.num_heads: expected a divisor of width 64"),
        ("model.num_kv_heads=3", r"model.num_kv_heads: expected a divisor"),
        ("model.dropout_rate=1", r"model.dropout_rate: expected a number in \[0, 1\)"),
        ("optimizer.warmup_steps=1000", r"optimizer.warmup_steps: expected less than steps 1000"),
        ("optimizer.learning_rate=nan", r"optimizer.learning_rate: expected a finite number"),
        ("run.eval_every=30", r"run.eval_every: expected a multiple of run.log_every 20"),
        ("name=../up", r"name: expected letters"),
    ],
)
def test_bad_overrides_are_refused(argument, message):
    with pytest.raises(ValueError, match=message):
        overrides.apply(BASE, [argument])


def test_a_setting_given_twice_is_refused():
    with pytest.raises(ValueError, match=r"run.seed: expected one value, got two"):
        overrides.apply(BASE, ["run.seed=1", "run.seed=2"])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: config_lib.ModelConfig(use_bias="False"), r"model.use_bias: expected bool"),
        (lambda: config_lib.ModelConfig(width=64.0), r"model.width: expected int, got 64.0"),
        (lambda: config_lib.ModelConfig(num_layers=True), r"model.num_layers: expected int"),
        (lambda: config_lib.OptimizerConfig(eps="0"), r"optimizer.eps: expected float"),
        (lambda: config_lib.StudyConfig(seeds=[1]), r"study.seeds: expected comma separated int"),
        (lambda: config_lib.Config(model=None), r"model: expected ModelConfig, got None"),
    ],
)
def test_wrong_kinds_are_refused(build, message):
    with pytest.raises(TypeError, match=message):
        build()


@pytest.mark.parametrize("setting", [{"position": "rotary"}, {"normalize_qk": True}])
def test_what_merged_weights_cannot_hold_is_refused_by_name(setting):
    config_lib.ModelConfig(form="separate", **setting)
    with pytest.raises(ValueError, match=f"model.{next(iter(setting))}: expected"):
        config_lib.ModelConfig(form="merged", **setting)


@hypothesis.given(
    rate=st.floats(0, 10),
    clip=st.none() | st.floats(1e-3, 10),
    seeds=st.lists(st.integers(0, 99), min_size=1, max_size=5, unique=True),
    bias=st.booleans(),
    form=st.sampled_from(config_lib.FORMS),
)
def test_json_gives_the_same_config_back(rate, clip, seeds, bias, form):
    config = config_lib.Config(
        model=config_lib.ModelConfig(form=form, use_bias=bias),
        optimizer=config_lib.OptimizerConfig(learning_rate=rate, clip_norm=clip),
        study=config_lib.StudyConfig(seeds=tuple(seeds)),
    )
    assert config_files.from_json(config_files.to_json(config)) == config


def test_json_refuses_unknown_and_missing_names():
    with pytest.raises(ValueError, match=r"model.use_biass: .*did you mean model.use_bias"):
        config_files.from_json(changed_json("model.use_biass", True))
    data = json.loads(config_files.to_json(BASE))
    del data["optimizer"]["b2"]
    with pytest.raises(ValueError, match=r"expected optimizer.b2, got none"):
        config_files.from_json(json.dumps(data))
    with pytest.raises(ValueError, match=r"expected JSON"):
        config_files.from_json("{")
    with pytest.raises(TypeError, match=r"config: expected a JSON object, got \[\]"):
        config_files.from_json("[]")


def test_loading_says_what_is_wrong_with_a_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"config .*none.py: expected a file"):
        config_files.load(tmp_path / "none.py")
    empty = tmp_path / "empty.py"
    empty.write_text("")
    with pytest.raises(ValueError, match=r"get_config\(\)"):
        config_files.load(empty)
    wrong = tmp_path / "wrong.py"
    wrong.write_text("def get_config():\n    return {}\n")
    with pytest.raises(TypeError, match=r"to return a Config, got dict"):
        config_files.load(wrong)
    with pytest.raises(ValueError, match=r"expected .py or .json, got '.yaml'"):
        (tmp_path / "x.yaml").write_text("")
        config_files.load(tmp_path / "x.yaml")
    saved = tmp_path / "saved.json"
    saved.write_text(config_files.to_json(BASE))
    assert config_files.load(saved) == BASE


@pytest.mark.parametrize(
    ("content", "kind", "message"),
    [
        (b'{"name": "ma', ValueError, r"expected JSON, got text .*; .*delete"),
        (b"\xff", ValueError, r"expected JSON, got text"),
        (b"[]", TypeError, r"expected a JSON object, got \[\]; "),
        (b"{}", ValueError, r"expected name, model, .*got none; "),
        (changed_json("model.width", "x").encode(), TypeError, r"model.width: expected int"),
    ],
)
def test_a_corrupt_config_is_named_by_its_path(tmp_path, content, kind, message):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(kind, match=rf"^config {path}: {message}"):
        config_files.load(path)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("optimizer.learnin_rate", "optimizer.learning_rate"),
        ("learnin_rate", "optimizer.learning_rate"),
        ("model.softcapp", "model.softcap"),
        ("model.learning_rate", "optimizer.learning_rate"),
    ],
)
def test_the_hint_offers_only_what_is_alike(name, meant):
    message = overrides.unknown_name(name, overrides.field_kinds(BASE))
    assert message.startswith(f"{name}: expected a setting's name, got an unknown one; ")
    assert message.split("did you mean ")[1].split("?")[0] == meant


def test_nothing_alike_gives_no_hint():
    assert "did you mean" not in overrides.unknown_name("colour", overrides.field_kinds(BASE))


def test_differences_name_the_fields():
    other = overrides.apply(BASE, ["optimizer.b2=0.9", "study.seeds=7"])
    assert config_files.differences(BASE, other) == ["optimizer.b2: stored 0.99, wanted 0.9"]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_builds(path):
    config = config_files.load(path)
    assert config.name == path.stem
    for form in config.study.forms:
        settings = study.run_config(config, form, config.study.seeds[0])
        params = start.abstract_params(settings.model)
        width = settings.model.width
        assert params["embedding"]["embedding"].shape == (settings.model.vocab_size, width)
        assert sum(leaf.size for leaf in jax.tree.leaves(params)) > 0


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_says_what_it_is_for(path):
    header = path.read_text().split('"""')[1]
    for word in ("Purpose:", f"Command: python -m train configs/{path.name}", "Hardware:"):
        assert word in header
    for word in ("Measured:", "Expected:"):
        assert word in header


@pytest.mark.parametrize(
    "setting",
    [
        "optimizer.clip_norm=nan",
        "optimizer.learning_rate=inf",
        "model.softcap=nan",
        "run.seed=4294967296",
        "study.seeds=0,4294967296",
    ],
)
def test_numbers_that_would_fail_later_are_refused(setting):
    with pytest.raises(ValueError, match=setting.split("=")[0]):
        overrides.apply(config_lib.Config(), [setting])
