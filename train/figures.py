"""The report's figures: loss curves, paired differences, spectra and ranks."""

import pathlib
import types
import typing

import matplotlib.axes
import matplotlib.backends.backend_agg
import matplotlib.figure
import numpy as np

from train import ngrams, results, statistics

COLORS = types.MappingProxyType({"separate": "#1f6fb4", "merged": "#d9601a", "raw": "#5b8a3a"})
STYLES = types.MappingProxyType({"separate": "-", "merged": (0, (4, 1.5)), "raw": "-."})
RANKS = types.MappingProxyType({"stable_rank": "stable rank", "effective_rank": "effective rank"})


def _figure(
    columns: int, rows: int = 1, width: float = 4.6, height: float = 3.4
) -> tuple[matplotlib.figure.Figure, np.ndarray]:
    figure = matplotlib.figure.Figure(
        figsize=(max(width * columns, 5.5), height * rows), layout="constrained"
    )
    matplotlib.backends.backend_agg.FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25, linewidth=0.6)
    return figure, axes


def _band(
    axis: matplotlib.axes.Axes, x: np.ndarray, values: np.ndarray, form: str, marker: str = ""
) -> None:
    """The mean over the first axis, with a band from the least to the greatest."""
    axis.plot(
        x,
        values.mean(0),
        color=COLORS[form],
        linestyle=STYLES[form],
        label=form,
        marker=marker,
        markersize=3,
    )
    axis.fill_between(x, values.min(0), values.max(0), color=COLORS[form], alpha=0.2, linewidth=0)


def loss_curves(experiment: results.Experiment, shows_ngrams: bool) -> matplotlib.figure.Figure:
    """Training and held-out loss over steps, with n-gram baselines."""
    figure, axes = _figure(2)
    for form in experiment.forms:
        _band(axes[0, 0], *experiment.curve(form, "train", "loss"), form)
        steps, values = experiment.curve(form, "eval", "nats_per_byte")
        _band(axes[0, 1], steps, values, form, marker="o")
    axes[0, 0].set_title("training loss")
    axes[0, 1].set_title("held-out loss")
    for axis in axes[0]:
        low = min(line.get_ydata().min() for line in axis.get_lines())
        # The first steps fall from 5.5: shown in full they would flatten all the rest.
        axis.set_ylim(low - 0.15, max(3.4, low + 1.0))
        axis.set_xlabel("step")
        axis.set_ylabel("nats per byte")
        axis.set_xlim(left=0)
    if shows_ngrams:
        bottom, top = axes[0, 1].get_ylim()
        for order, nats in ngrams.REFERENCE.items():
            if bottom < nats < top and order < 6:
                axes[0, 1].axhline(nats, color="#888888", linestyle=":", linewidth=0.9, zorder=0)
                axes[0, 1].annotate(
                    f"{order}-gram",
                    (1, nats),
                    xycoords=("axes fraction", "data"),
                    xytext=(3, 0),
                    textcoords="offset points",
                    va="center",
                    fontsize=8,
                    color="#666666",
                )
    axes[0, 0].legend(frameon=False)
    return figure


def differences(experiment: results.Experiment) -> matplotlib.figure.Figure | None:
    """Held-out loss minus the separate form's, seed by seed, with the interval of its mean."""
    forms = [form for form in experiment.forms if form != "separate"]
    if "separate" not in experiment.forms or not forms:
        return None
    figure, axes = _figure(len(forms), height=3.0)
    baseline = experiment.values("separate", "held_out_nats_per_byte")
    for axis, form in zip(axes[0], forms, strict=True):
        values = experiment.values(form, "held_out_nats_per_byte")
        seeds = sorted(values.keys() & baseline.keys())
        each = [values[seed] - baseline[seed] for seed in seeds]
        axis.axhline(0, color="#444444", linewidth=0.9)
        axis.plot(range(len(seeds)), each, "o", color=COLORS[form])
        mean = statistics.paired_difference(values, baseline)
        if mean is not None:
            half = 0.0 if np.isnan(mean.half_width) else mean.half_width
            place = len(seeds) + 0.3
            axis.errorbar([place], [mean.mean], [half], fmt="D", capsize=5, color="#222222")
            axis.set_xlim(-0.6, place + 0.6)
            axis.set_xticks([*range(len(seeds)), place])
            axis.set_xticklabels([*(f"seed {seed}" for seed in seeds), "mean, 95%"])
        axis.set_title(f"{form} − separate")
        axis.set_ylabel("nats per byte (below 0: better)")
    return figure


def _layers(experiment: results.Experiment) -> list[str]:
    layers: dict[str, None] = {}
    for form in experiment.forms:
        for result in experiment.results[form].values():
            layers |= dict.fromkeys(result["spectra"])
    return list(layers)


def spectra(experiment: results.Experiment) -> matplotlib.figure.Figure | None:
    """Final singular values of W_qk by layer: mean over heads and seeds, least to greatest."""
    layers = _layers(experiment)
    if not layers:
        return None
    figure, axes = _figure(len(layers))
    model = experiment.config.model
    head_dim = model.head_dim or model.width // model.num_heads
    for axis, layer in zip(axes[0], layers, strict=True):
        for form in experiment.forms:
            found = [run["spectra"].get(layer) for run in experiment.results[form].values()]
            heads = [values for run in found if run for values in run["singular_values"]]
            if heads:
                array = np.array(heads)
                # Below this lies round-off: zeros of a product of rank head_dim.
                array = np.where(array > 1e-6 * array[:, :1], array, np.nan)[:, : model.width]
                shown = ~np.isnan(array).all(0)
                _band(axis, np.arange(1, array.shape[1] + 1)[shown], array[:, shown], form)
            if form == "raw":
                axis.axhline(1, color=COLORS["raw"], linestyle=STYLES["raw"], label="raw (W = I)")
        axis.axvline(head_dim, color="#888888", linestyle=":", linewidth=0.9, zorder=0)
        axis.annotate(
            f"head width {head_dim}",
            (head_dim, 1),
            xycoords=("data", "axes fraction"),
            xytext=(3, -9),
            textcoords="offset points",
            fontsize=8,
            color="#666666",
        )
        axis.set_yscale("log")
        axis.set_title(f"{layer.replace('_', ' ')}: singular values of W_qk")
        axis.set_xlabel("index")
        axis.set_ylabel("singular value")
    axes[0, 0].legend(frameon=False)
    return figure


def _rank_curve(
    experiment: results.Experiment, form: str, layer: str, kind: str
) -> tuple[np.ndarray, np.ndarray] | None:
    steps: list[int] = []
    values: list[typing.Any] = []
    for number, (_, records) in enumerate(sorted(experiment.records[form].items())):
        found = [r for r in records if r["kind"] == "eval" and layer in r["ranks"]]
        if not found:
            return None
        if number == 0:
            steps = [record["step"] for record in found]
        if [record["step"] for record in found] == steps:
            values.append([np.mean(record["ranks"][layer][kind]) for record in found])
    return np.array(steps), np.array(values)


def ranks(experiment: results.Experiment) -> matplotlib.figure.Figure | None:
    """Stable and effective rank of W_qk over training, mean over heads."""
    layers = _layers(experiment)
    if not layers:
        return None
    figure, axes = _figure(len(layers), len(RANKS), height=2.9)
    for row, (kind, label) in zip(axes, RANKS.items(), strict=True):
        for axis, layer in zip(row, layers, strict=True):
            for form in experiment.forms:
                curve = _rank_curve(experiment, form, layer, kind)
                if curve is not None:
                    _band(axis, *curve, form, marker="o")
            axis.set_title(f"{layer.replace('_', ' ')}: {label} of W_qk")
            axis.set_xlabel("step")
            axis.set_ylabel(label)
            axis.set_ylim(bottom=0)
            axis.set_xlim(left=0)
    axes[0, 0].legend(frameon=False)
    return figure


def save(
    experiment: results.Experiment, directory: pathlib.Path, shows_ngrams: bool
) -> dict[str, pathlib.Path]:
    """Draws every figure that the runs have numbers for; returns PNG files by caption."""
    directory.mkdir(parents=True, exist_ok=True)
    drawn = {
        "Loss over training: mean over seeds, band from the best to the worst seed": (
            "loss",
            loss_curves(experiment, shows_ngrams),
        ),
        "Held-out loss minus the separate form's with the same seed": (
            "difference",
            differences(experiment),
        ),
        "Final spectrum of W_qk: mean over heads and seeds, band from least to greatest": (
            "spectrum",
            spectra(experiment),
        ),
        "Rank of W_qk over training: mean over heads, band over seeds": (
            "rank",
            ranks(experiment),
        ),
    }
    files = {}
    for caption, (name, figure) in drawn.items():
        if figure is not None:
            files[caption] = directory / f"{name}.png"
            figure.savefig(files[caption], dpi=150)
    return files
