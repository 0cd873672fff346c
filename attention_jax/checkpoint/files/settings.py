"""Settings in JSON files."""

import json
import pathlib
from typing import Any

from attention_jax.checkpoint.files import refusals


def read(path: pathlib.Path) -> dict[str, Any]:
    """Reads a JSON object; raises ValueError where the file holds none."""
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise refusals.damaged(path, "a JSON file", error) from error
    if not isinstance(settings, dict):
        raise refusals.damaged(path, "a JSON object", type(settings).__name__)
    return settings
