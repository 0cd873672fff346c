"""Heat maps over layers and heads, spectra, and curves of truncation."""

import math
import types

import matplotlib.backends.backend_agg
import matplotlib.figure
import numpy as np

from attention_jax.inspect.inspection import Inspection

Figure = matplotlib.figure.Figure
NAMES = types.MappingProxyType(
    {
        "rank": "numerical rank",
        "stable_rank": "stable rank",
        "effective_rank": "effective rank",
        "symmetry": "symmetry",
        "norm": "Frobenius norm",
        "rank_at_error": "rank at 1% error",
    }
)
MATRICES = types.MappingProxyType({"qk": "W_qk", "ov": "W_ov"})
# Measured and bound of a curve, its color and its label.
_CURVES = (
    ("qk_output", "#1f6fb4", "W_qk cut"),
    ("ov_output", "#d9601a", "W_ov cut"),
)
_COLUMNS = 6
_LEAST = 1e-7


def heat_maps(found: Inspection) -> Figure:
    """One map per matrix and measure, layers down and heads across."""
    layers, heads = found.qk.rank.shape
    rows = len(NAMES)
    height = max(1.9, 0.16 * layers + 1.0)
    figure = _new(9.0, height * rows)
    axes = figure.subplots(rows, 2, squeeze=False)
    for column, (side, matrix) in enumerate(MATRICES.items()):
        measures = getattr(found, side).measures
        for row, (name, label) in enumerate(NAMES.items()):
            axis = axes[row, column]
            limits = {"vmin": -1, "vmax": 1, "cmap": "RdBu_r"} if name == "symmetry" else {}
            image = axis.imshow(measures[name], aspect="auto", **limits)
            figure.colorbar(image, ax=axis)
            axis.set_title(f"{matrix}: {label}", fontsize=10)
            axis.set_xlabel("head")
            axis.set_ylabel("layer")
            axis.set_xticks(range(0, heads, max(1, heads // 12)))
            axis.set_yticks(range(0, layers, max(1, layers // 8)))
    return figure


def spectra(found: Inspection) -> Figure:
    """Singular values of every head relative to its greatest, one color per layer."""
    figure = _new(9.0, 3.6)
    axes = figure.subplots(1, 2, sharey=True)
    colors = matplotlib.colormaps["viridis"]
    count = len(found.layers)
    for axis, (side, matrix) in zip(axes, MATRICES.items(), strict=True):
        values = getattr(found, side).singular_values
        greatest = np.where(values[..., :1] == 0, 1.0, values[..., :1])
        for layer, heads in enumerate(values / greatest):
            color = colors(layer / max(1, count - 1))
            axis.plot(np.arange(1, values.shape[-1] + 1), heads.T, color=color, linewidth=0.6)
        axis.set_yscale("log")
        axis.set_ylim(_LEAST, 1.5)
        axis.set_title(f"{matrix} of every head", fontsize=10)
        axis.set_xlabel("number of the singular value")
        axis.grid(alpha=0.25)
    axes[0].set_ylabel("singular value / greatest")
    scale = matplotlib.cm.ScalarMappable(matplotlib.colors.Normalize(0, max(1, count - 1)), colors)
    figure.colorbar(scale, ax=axes, label="layer")
    return figure


def truncation(found: Inspection, layer: int) -> Figure:
    """Error of each head's output by kept rank: measured, and the bound beside."""
    heads = found.ov.rank.shape[1]
    columns = min(_COLUMNS, heads)
    rows = math.ceil(heads / columns)
    figure = _new(max(5.0, 1.9 * columns), 1.7 * rows + 0.6)
    axes = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    for head, axis in enumerate(axes.flat):
        if head >= heads:
            axis.set_axis_off()
            continue
        for name, color, label in _CURVES:
            if name in found.curves:
                for suffix, line in (("", "-"), ("_bound", ":")):
                    errors = found.curves[name + suffix][layer, :, head]
                    shown = np.where(errors > _LEAST, errors, np.nan)
                    named = f"{label}, {'bound' if suffix else 'measured'}"
                    axis.plot(found.ranks, shown, line, color=color, linewidth=1.1, label=named)
        axis.set_yscale("log")
        axis.set_title(f"head {head}", fontsize=8)
        axis.tick_params(labelsize=7)
        axis.grid(alpha=0.25)
    figure.supxlabel("kept rank", fontsize=9)
    figure.supylabel("relative error of the output", fontsize=9)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), fontsize=8)
    return figure


def _new(width: float, height: float) -> Figure:
    figure = matplotlib.figure.Figure(figsize=(width, height), layout="constrained", dpi=90)
    matplotlib.backends.backend_agg.FigureCanvasAgg(figure)
    return figure
