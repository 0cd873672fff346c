"""The numbers of an inspection as rows of text."""

import numpy as np

from attention_jax.inspect.inspection import Inspection
from attention_jax.positions import Rotary

Table = list[list[str]]

HEADING = ["layer", "head"] + [
    f"{matrix} {measure}"
    for matrix in ("QK", "OV")
    for measure in ("rank", "stable", "effective", "symmetry", "norm", "at 1%")
]


def heads(found: Inspection, layer: int) -> Table:
    """Returns a row for each head of a layer, without heading."""
    rows = []
    for head in range(found.qk.rank.shape[1]):
        row = [str(layer), str(head)]
        for side in (found.qk, found.ov):
            row += [
                str(side.rank[layer, head]),
                f"{side.stable_rank[layer, head]:.1f}",
                f"{side.effective_rank[layer, head]:.1f}",
                f"{side.symmetry[layer, head]:+.2f}",
                f"{side.norm[layer, head]:.3g}",
                str(side.rank_at_error[layer, head]),
            ]
        rows.append(row)
    return rows


def layer_means(found: Inspection) -> Table:
    """Returns a row for each layer, the mean over its heads; the first row is the heading."""
    rows = [["layer", *HEADING[2:]]]
    for layer, name in enumerate(found.layers):
        row = [name]
        for side in (found.qk, found.ov):
            for measure, layout in (
                ("rank", ".1f"),
                ("stable_rank", ".1f"),
                ("effective_rank", ".1f"),
                ("symmetry", "+.2f"),
                ("norm", ".3g"),
                ("rank_at_error", ".1f"),
            ):
                row.append(format(float(np.mean(side.measures[measure][layer])), layout))
        rows.append(row)
    return rows


def curve(found: Inspection, layer: int) -> Table:
    """Returns measured errors and bounds of a layer's heads by kept rank; heading first."""
    rows = [["head", "error of", *(f"rank {rank}" for rank in found.ranks)]]
    for head in range(found.ov.rank.shape[1]):
        for name, label in (
            ("qk_scores", "scores, W_qk cut"),
            ("qk_output", "output, W_qk cut"),
            ("ov_output", "output, W_ov cut"),
        ):
            if name in found.curves:
                for suffix, kind in (("", "measured"), ("_bound", "bound")):
                    errors = found.curves[name + suffix][layer, :, head]
                    cells = [f"{error:.1e}" for error in errors]
                    rows.append([str(head), f"{label}: {kind}", *cells])
    return rows


def facts(found: Inspection) -> list[str]:
    """Returns what holds for the whole model, a sentence each."""
    config = found.config
    shared = (
        f" that share {config.groups} block{'s' if config.groups > 1 else ''} of parameters"
        if config.groups != config.num_layers
        else ""
    )
    sentences = [
        f"{found.parameters:,} parameters; {config.num_layers} layers{shared}, {config.num_heads} "
        f"heads ({config.num_kv_heads or config.num_heads} of keys and values), width "
        f"{config.width}, position {config.position}.",
        f"A decoder of this shape keeps {found.cache.separate_bytes:,} bytes per token separate "
        f"and {found.cache.merged_bytes:,} merged: {found.cache.verdict}.",
    ]
    if isinstance(config.position, Rotary) and found.qk_mean_norm is not None:
        sentences.append(
            "With a rotary encoding W_qk changes with the offset between query and key, so no "
            "single matrix exists: its numbers are those at offset 0. The mean over offsets 0 to "
            f"63 has {found.qk_mean_norm.min():.2f} to {found.qk_mean_norm.max():.2f} of that norm."
        )
    sentences.append(f"Truncation is measured on {found.sample.source}.")
    return sentences
