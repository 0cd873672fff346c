"""Tables from foreign tensors to parameters, and what is left over on either side."""

import dataclasses
import fnmatch
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from attention_jax import checks
from attention_jax.checkpoint.files import Tensors
from attention_jax.checkpoint.layouts import SAME, Layout


@dataclasses.dataclass(frozen=True)
class Rule:
    """One row of a table.

    Attributes:
      source: Foreign name, with `{i}` for the number of the layer.
      target: Path of the parameter, likewise.
      layout: How the array is laid out.
    """

    source: str
    target: str
    layout: Layout = SAME


@dataclasses.dataclass(frozen=True)
class Difference:
    """What does not fit between a checkpoint and a model.

    Attributes:
      missing: Parameters of the model that no tensor gives, with the foreign name they lack.
      unused: Tensors that no rule reads.
      misshapen: Tensors of another shape than the model's settings ask for, or not of floats.
      contradicting: Tensors that should equal another one and do not.
    """

    missing: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    misshapen: tuple[str, ...] = ()
    contradicting: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Returns the lists that are not empty."""
        lists = dataclasses.asdict(self)
        return "; ".join(
            f"{len(entries)} {name}: {', '.join(entries)}"
            for name, entries in lists.items()
            if entries
        )


def numbered(rules: Sequence[Rule], layers: int) -> list[Rule]:
    """Returns the rules with `{i}` written out for each layer."""
    return [
        dataclasses.replace(
            rule,
            source=rule.source.replace("{i}", str(index)),
            target=rule.target.replace("{i}", str(index)),
        )
        for rule in rules
        for index in (range(layers) if "{i}" in rule.target else (0,))
    ]


def assemble(
    rules: Sequence[Rule],
    tensors: Tensors,
    shapes: Mapping[str, tuple[int, ...]],
    *,
    equal: Mapping[str, str],
    without_weights: Sequence[str],
    allow_unused: Sequence[str] = (),
    dtype: DTypeLike | None = None,
) -> dict[str, Any]:
    """Returns the parameters that the rules read from `tensors`.

    Args:
      rules: The table, written out.
      tensors: Foreign arrays by foreign name.
      shapes: Shapes of all parameters of the model, by path.
      equal: Tensors that repeat another one, and that one.
      without_weights: Regular expressions of tensors that are no weights.
      allow_unused: Patterns (`*` for any text) of tensors that may be left out.
      dtype: Of the parameters; by default as stored.

    Raises:
      ValueError: Something is missing, unused, misshapen or contradicting; the message lists all.
    """
    # Of several names of one parameter, the first that the file has.
    by_target: dict[str, Rule] = {}
    for rule in sorted(rules, key=lambda rule: rule.source not in tensors):
        by_target.setdefault(rule.target, rule)
    missing, misshapen = [], []
    for path, shape in shapes.items():
        if path not in by_target or by_target[path].source not in tensors:
            source = by_target[path].source if path in by_target else "no tensor"
            missing.append(f"{path} (from {source})")
            continue
        rule = by_target[path]
        expected, found = rule.layout.shape(shape), tensors.shape(rule.source)
        if found != expected:
            misshapen.append(f"{rule.source} {found}, expected {expected}")
        elif not jnp.issubdtype(tensors.dtype(rule.source), jnp.floating):
            misshapen.append(f"{rule.source} of {tensors.dtype(rule.source)}, expected floats")
    used = {by_target[path].source for path in shapes if path in by_target}
    unused = [
        name
        for name in tensors
        if name not in used | set(equal)
        and not any(re.fullmatch(pattern, name) for pattern in without_weights)
        and not any(fnmatch.fnmatchcase(name, pattern) for pattern in allow_unused)
    ]
    contradicting = [
        f"{name} and {other}"
        for name, other in equal.items()
        if name in tensors and other in tensors
        if not np.array_equal(tensors[name], tensors[other])
    ]
    difference = Difference(*map(tuple, (missing, unused, misshapen, contradicting)))
    if difference != Difference():
        raise checks.refuse(
            ValueError,
            "tensors",
            "exactly those that the settings ask for",
            str(difference),
            "check the settings beside the weights; tensors that you do not need can be named in "
            "allow_unused=['name', 'start.*']",
        )
    params: dict[str, Any] = {}
    for path, shape in shapes.items():
        rule = by_target[path]
        *folders, name = path.split("/")
        place = params
        for folder in folders:
            place = place.setdefault(folder, {})
        place[name] = jnp.asarray(rule.layout.read(tensors[rule.source], shape), dtype)
    return params
