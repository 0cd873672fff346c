"""Strict dotted overrides: `optimizer.learning_rate=1e-3 model.use_bias=False`."""

import collections.abc
import dataclasses
import difflib
import typing

from train import config as config_lib

TRUE = ("True", "true", "1", "yes")
FALSE = ("False", "false", "0", "no")
# Names that share a section are alike by that alone, so a hint needs more likeness.
CLOSE = 0.85


def field_kinds(settings: object, prefix: str = "") -> dict[str, object]:
    """Every dotted name that can be set, with its annotation."""
    kinds: dict[str, object] = {}
    for field in dataclasses.fields(typing.cast(typing.Any, settings)):
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            kinds |= field_kinds(value, f"{prefix}{field.name}.")
        else:
            kinds[prefix + field.name] = field.type
    return kinds


def parse(name: str, text: str, kind: object, expected: str = "") -> object:
    """The value that `text` spells for a field of this kind, or a ValueError naming the field."""
    options = typing.get_args(kind)
    if typing.get_origin(kind) is tuple:
        return tuple(parse(name, item.strip(), options[0]) for item in text.split(",") if item)
    if typing.get_origin(kind) is typing.Literal:
        return text
    if options:
        if text == "None":
            return None
        inner = next(option for option in options if option is not type(None))
        return parse(name, text, inner, config_lib.kind_name(kind))
    if kind is bool:
        if text in TRUE + FALSE:
            return text in TRUE
        raise ValueError(
            f"{name}: expected one of {', '.join(TRUE + FALSE)}, got {text!r}; write one of these"
        )
    if kind is str:
        return text
    try:
        return typing.cast(type, kind)(text)
    except ValueError:
        expected = expected or config_lib.kind_name(kind)
        remedy = f"write {name}=VALUE with a value of that kind"
        raise ValueError(f"{name}: expected {expected}, got {text!r}; {remedy}") from None


def replace(settings: typing.Any, values: collections.abc.Mapping[str, object]) -> typing.Any:
    """A copy with dotted names replaced, each dataclass checked once with all its new values."""
    groups: dict[str, dict[str, object]] = {}
    direct: dict[str, object] = {}
    for name, value in values.items():
        head, _, rest = name.partition(".")
        if rest:
            groups.setdefault(head, {})[rest] = value
        else:
            direct[head] = value
    for head, inner in groups.items():
        direct[head] = replace(getattr(settings, head), inner)
    return dataclasses.replace(settings, **direct)


def unknown_name(name: str, known: collections.abc.Iterable[str]) -> str:
    """The message for a name that is no setting: close candidates first, then all names."""
    names = sorted(known)
    leaf = {known_name.rpartition(".")[2]: known_name for known_name in names}
    last = name.rpartition(".")[2]
    close = difflib.get_close_matches(name, names, n=3, cutoff=CLOSE)
    close += [leaf[match] for match in difflib.get_close_matches(last, leaf, n=2, cutoff=CLOSE)]
    hint = f"did you mean {' or '.join(dict.fromkeys(close))}? " if close else ""
    valid = f"valid names: {', '.join(names)}"
    return f"{name}: expected a setting's name, got an unknown one; {hint}{valid}"


def apply(
    settings: config_lib.Config, arguments: collections.abc.Sequence[str]
) -> config_lib.Config:
    """Returns the config with `name=value` arguments applied.

    Args:
      settings: the config to start from.
      arguments: texts `dotted.name=value`; tuples are comma separated, None only where optional.

    Returns:
      A new, checked config.

    Raises:
      ValueError: unknown or repeated name, no `=`, or a value of another kind than the field's.
    """
    kinds = field_kinds(settings)
    values: dict[str, object] = {}
    for argument in arguments:
        name, equals, text = argument.partition("=")
        if not equals:
            raise ValueError(
                f"override: expected name=value, got {argument!r}; write a name, = and a value"
            )
        if name not in kinds:
            raise ValueError(unknown_name(name, kinds))
        if name in values:
            raise ValueError(f"{name}: expected one value, got two; keep one of them")
        values[name] = parse(name, text, kinds[name])
    return replace(settings, values)
