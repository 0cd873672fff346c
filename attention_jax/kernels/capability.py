"""What each implementation of attention can do, and why one cannot honour a request."""

import dataclasses
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from attention_jax import checks
from attention_jax.kernels.blocks import widest_row_bytes
from attention_jax.kernels.pattern import Pattern, pattern
from attention_jax.kernels.target import compute_capability, device_kind
from attention_jax.masks import Mask
from attention_jax.masks.mask import parts
from attention_jax.request import Request

Implementation = Literal["dense", "blockwise", "splash", "cudnn"]


class Refusal(NamedTuple):
    """Why a request cannot be honoured: the last four arguments of `checks.refuse`."""

    argument: str
    expected: str
    got: str
    remedy: str


@dataclasses.dataclass(frozen=True)
class Capability:
    """What an implementation can do.

    Attributes:
      implementation: Its name in `attend`.
      platforms: Where it runs, empty for everywhere.
      dtypes: Of queries, keys and values.
      masks: Kinds of masks, which combine; "any" also holds for boolean arrays and own masks.
      arguments: Those of `attend` that it takes beyond query, key, value, mask and a known scale.
      widths: Of a head: K of queries and keys, V of values.
      heads: H of queries, G of keys, N of values.
      memory: Growth of the memory for the scores.
      derivatives: Which ones it has.
      devices: How it is spread over several devices.
    """

    implementation: Implementation
    platforms: tuple[str, ...]
    dtypes: tuple[str, ...]
    masks: tuple[str, ...]
    arguments: tuple[str, ...]
    widths: str
    heads: str
    memory: str
    derivatives: str
    devices: str


_FLOATS = ("float16", "bfloat16", "float32", "float64")
_GIVEN = (
    "bias",
    "position",
    "softcap",
    "dropout_rate",
    "precision",
    "scale (array)",
    "query_positions",
)
_ANY = "any that divide H"

CAPABILITIES = (
    Capability(
        implementation="dense",
        platforms=(),
        dtypes=_FLOATS,
        masks=("any",),
        arguments=(*_GIVEN, "return_weights"),
        widths="any",
        heads=_ANY,
        memory="T * S",
        derivatives="all",
        devices="by the compiler",
    ),
    Capability(
        implementation="blockwise",
        platforms=(),
        dtypes=_FLOATS,
        masks=("any",),
        arguments=_GIVEN,
        widths="any",
        heads=_ANY,
        memory="T + S",
        derivatives="first, reverse mode",
        devices="by the compiler",
    ),
    Capability(
        implementation="splash",
        platforms=("tpu",),
        dtypes=("bfloat16", "float32"),
        masks=("causal", "sliding_window", "padding", "segments"),
        arguments=("softcap", "scale (array)"),
        widths="K and V up to 6144 bytes (8192 on v6e)",
        heads="one of G and N divides the other",
        memory="T + S",
        derivatives="first, reverse mode",
        devices="in jax.shard_map with check_vma=False",
    ),
    Capability(
        implementation="cudnn",
        platforms=("gpu",),
        dtypes=("bfloat16", "float16"),
        masks=("causal", "sliding_window", "padding"),
        arguments=(),
        widths="K = V, a multiple of 8, up to 256 (128 before Hopper)",
        heads="G = N",
        memory="T + S",
        derivatives="first, reverse mode",
        devices="by the compiler",
    ),
)
"""The table that `capabilities` prints and `refusal` asks."""


def capabilities() -> str:
    """Returns the table of what each implementation can do, in Markdown.

    Example:
      >>> print(capabilities())
      | implementation | dense | blockwise | splash | cudnn |
      |---|---|---|---|---|
      | platforms | any | any | tpu | gpu |
      ...
    """
    lines = ["|---|---|---|---|---|"]
    for field in dataclasses.fields(Capability):
        cells = [getattr(known, field.name) for known in CAPABILITIES]
        none = "any" if field.name == "platforms" else "none"
        cells = [x if isinstance(x, str) else ", ".join(x) or none for x in cells]
        lines.append(f"| {field.name} | {' | '.join(cells)} |")
    lines[:2] = reversed(lines[:2])
    return "\n".join(lines)


def refusal(implementation: str, request: Request, platform: str) -> Refusal | None:
    """Returns why `implementation` cannot honour `request` on `platform`, or None if it can.

    Args:
      implementation: Its name in `attend`.
      request: The checked arguments of `attend`.
      platform: "cpu", "gpu" or "tpu".

    Returns:
      The first reason that was found. Nothing is ever left out of a request instead.
    """
    known = next(known for known in CAPABILITIES if known.implementation == implementation)
    name = repr(implementation)
    other = "dense" if request.return_weights else "blockwise"
    remedy = f"pass implementation='auto' or {other!r}"
    if known.platforms and platform not in known.platforms:
        expected = f"a {' or '.join(known.platforms).upper()} with {name}"
        return Refusal("implementation", expected, platform.upper(), remedy)
    found = pattern(request.mask)
    for argument, asked in _asked(request, found).items():
        if asked is not None and argument not in known.arguments:
            return Refusal(argument.split()[0], f"the default with {name}", asked, remedy)
    dtype = request.query.dtype
    if dtype.name not in known.dtypes:
        return Refusal("query", f"{' or '.join(known.dtypes)} with {name}", dtype.name, remedy)
    unknown = [kind for kind in found.names if kind not in known.masks]
    if unknown and "any" not in known.masks:
        expected = f"masks of the kinds {', '.join(known.masks)} with {name}"
        return Refusal("mask", expected, ", ".join(unknown), remedy)
    limit = None
    if implementation == "blockwise":
        limit, remedy = _blockwise(request), "pass implementation='dense'"
    elif implementation == "splash":
        limit = _splash(request, found)
    elif implementation == "cudnn":
        limit = _cudnn(request, found, compute_capability())
    return None if limit is None else Refusal(*limit, remedy)


def check(implementation: str, request: Request, platform: str) -> None:
    """Raises NotImplementedError if `refusal` has a reason."""
    refused = refusal(implementation, request, platform)
    if refused is not None:
        raise checks.refuse(NotImplementedError, *refused)


def _asked(request: Request, found: Pattern) -> dict[str, str | None]:
    """Returns of each argument what differs from its default, or None."""
    default = (None, "default", jax.lax.Precision.DEFAULT)
    both = (request.precision,) if not isinstance(request.precision, tuple) else request.precision
    # Positions that nothing looks at make no difference.
    moved = not request.aligned and found.positional
    return {
        "return_weights": "True" if request.return_weights else None,
        "bias": None if request.bias is None else f"shape {request.bias.shape}",
        "position": None if request.position is None else repr(request.position),
        "softcap": None if request.softcap is None else str(request.softcap),
        "dropout_rate": None if request.dropout_key is None else str(request.dropout_rate),
        "precision": None if all(p in default for p in both) else str(request.precision),
        "scale (array)": "an array" if isinstance(request.scale, jax.Array) else None,
        "query_positions": "other ones" if moved else None,
    }


def _blockwise(request: Request) -> tuple[str, str, str] | None:
    own = [
        type(part).__name__
        for part in (() if request.mask is None else parts(request.mask))
        if type(part)._rows is Mask._rows and jax.tree.leaves(part)
    ]
    if own:
        return "mask", "own masks without arrays, or with _rows, with 'blockwise'", ", ".join(own)
    positions = request.query_positions, request.key_positions
    floating = any(jnp.issubdtype(x.dtype, jnp.floating) for x in positions)
    if floating and request.position is not None:
        # They could have derivatives, through what the encoding adds.
        return "query_positions", "integers beside a position encoding with 'blockwise'", "floats"
    return None


def _splash(request: Request, found: Pattern) -> tuple[str, str, str] | None:
    query, key, value = request.query, request.key, request.value
    widest = max(query.shape[-1], value.shape[-1]) * query.dtype.itemsize
    most = widest_row_bytes(device_kind())
    if widest > most:
        return "query", f"rows of at most {most} bytes with 'splash'", f"{widest} bytes"
    groups, values = key.shape[-2], value.shape[-2]
    if groups % values and values % groups:
        return "value", "numbers of key and value heads that divide", f"{groups} and {values}"
    if len(found.segments) > 1:
        return "mask", "one segments mask with 'splash'", f"{len(found.segments)}"
    for segments in found.segments:
        for ids in (segments.query_ids, segments.key_ids):
            if jnp.iinfo(ids.dtype).max > jnp.iinfo(jnp.int32).max:
                return "mask", "segments of int32 ids with 'splash'", f"{ids.dtype} ids"
    if jax.config.read("jax_enable_x64"):
        return "implementation", "JAX without x64 enabled with 'splash'", "jax_enable_x64=True"
    if any(jax.typeof(x).manual_axis_type.varying for x in (query, key, value)):
        return (
            "implementation",
            "jax.shard_map with check_vma=False around 'splash'",
            "check_vma=True",
        )
    return None


def _cudnn(
    request: Request, found: Pattern, capability: tuple[int, ...] | None
) -> tuple[str, str, str] | None:
    query, key, value = request.query, request.key, request.value
    width = query.shape[-1]
    if capability is None or capability < (8,):
        got = "an unknown one" if capability is None else ".".join(map(str, capability))
        return "implementation", "compute capability 8.0 or more with 'cudnn'", got
    most = 256 if capability >= (9,) else 128
    if width % 8 or width > most:
        return "query", f"a width that is a multiple of 8, at most {most}, with 'cudnn'", f"{width}"
    if key.shape[-2:] != value.shape[-2:]:
        expected = f"heads and width of the key, {key.shape[-2:]}, with 'cudnn'"
        return "value", expected, f"{value.shape[-2:]}"
    lengths = query.shape[-3], key.shape[-3]
    if found.causal and lengths[0] != lengths[1]:
        # Its triangle begins in the upper left corner.
        return "mask", "equal lengths T and S under causal() with 'cudnn'", f"{lengths}"
    if found.window is not None and not found.causal:
        return "mask", "sliding_window only with causal() with 'cudnn'", "a window of both sides"
    if found.window is not None and found.lengths:
        # Rows from which all real keys are too far would be undefined.
        return "mask", "either padding or sliding_window with 'cudnn'", "both"
    if not request.scale > 0:
        return "scale", "a positive number with 'cudnn'", f"{request.scale}"
    return None
