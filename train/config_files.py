"""Configs as files: `configs/x.py` with get_config(), and exact JSON both ways."""

import dataclasses
import importlib.util
import json
import pathlib
import typing

from train import config as config_lib
from train import overrides


def to_json(settings: config_lib.Config) -> str:
    """The config as indented JSON; `from_json` gives it back exactly."""
    return json.dumps(dataclasses.asdict(settings), indent=2)


def _build(cls: type, data: object, prefix: str) -> typing.Any:
    if not isinstance(data, dict):
        where = f"{prefix.rstrip('.')}: " if prefix else ""
        raise TypeError(f"{where}expected a JSON object, got {data!r}; save it with to_json")
    fields = {field.name: field for field in dataclasses.fields(cls)}
    for name in data:
        if name not in fields:
            raise ValueError(overrides.unknown_name(prefix + name, [prefix + n for n in fields]))
    missing = [prefix + name for name in fields if name not in data]
    if missing:
        raise ValueError(f"expected {', '.join(missing)}, got none; save it with to_json")
    values: dict[str, object] = {}
    for name, value in data.items():
        kind = fields[name].type
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            value = _build(kind, value, f"{prefix}{name}.")
        elif typing.get_origin(kind) is tuple and isinstance(value, list):
            value = tuple(value)
        values[name] = value
    return cls(**values)


def from_json(text: str | bytes, name: str = "config") -> config_lib.Config:
    """Rebuilds a config from `to_json`'s text; unknown, missing or wrongly typed fields raise.

    Args:
      text: what `to_json` gave.
      name: how messages call it.

    Returns:
      The config.

    Raises:
      ValueError: no JSON, unknown or missing fields, or refused values.
      TypeError: a value of another kind than its field's.
    """
    try:
        data = json.loads(text)
    except ValueError as error:
        raise ValueError(
            f"{name}: expected JSON, got text that stops being it ({error}); save it with "
            "to_json, or delete a run's config.json: the run writes it again"
        ) from None
    try:
        return _build(config_lib.Config, data, "")
    except (ValueError, TypeError) as error:
        raise type(error)(f"{name}: {error}") from None


def load(path: str | pathlib.Path) -> config_lib.Config:
    """Loads a config from a Python file with get_config() or from saved JSON.

    Args:
      path: a `.py` or `.json` file.

    Returns:
      The config.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: another suffix, no get_config() in the file, or bad JSON content.
      TypeError: get_config() returned something else than a Config.
    """
    path = pathlib.Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"config {path}: expected a file, got none; check the path")
    if path.suffix == ".json":
        return from_json(path.read_bytes(), f"config {path}")
    if path.suffix != ".py":
        raise ValueError(f"config {path}: expected .py or .json, got {path.suffix!r}; rename it")
    spec = importlib.util.spec_from_file_location(f"config_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ValueError(f"config {path}: expected a Python file, got another kind; rewrite it")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, "get_config"):
        raise ValueError(f"config {path}: expected a function get_config(), got none; define it")
    settings = module.get_config()
    if not isinstance(settings, config_lib.Config):
        kind = type(settings).__name__
        raise TypeError(
            f"config {path}: expected get_config() to return a Config, got {kind}; "
            "build it with config.Config(...)"
        )
    return settings


def differences(stored: config_lib.Config, wanted: config_lib.Config) -> list[str]:
    """Dotted names whose values differ, with both values; the study's lists may grow."""
    lines = []
    for name in overrides.field_kinds(wanted):
        old, new = stored, wanted
        for part in name.split("."):
            old, new = getattr(old, part), getattr(new, part)
        if old != new and not name.startswith("study."):
            lines.append(f"{name}: stored {old!r}, wanted {new!r}")
    return lines
