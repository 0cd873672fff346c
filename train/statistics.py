"""Means with 95% t-intervals, paired by seed."""

import collections.abc
import typing

import numpy as np
import scipy.stats


class Interval(typing.NamedTuple):
    """A mean with the half width of its 95% interval; NaN where one number tells no spread."""

    mean: float
    half_width: float
    size: int

    @property
    def low(self) -> float:
        """Lower end."""
        return self.mean - self.half_width

    @property
    def high(self) -> float:
        """Upper end."""
        return self.mean + self.half_width

    def text(self, digits: int = 4, sign: bool = False) -> str:
        """Such as `2.0410 ± 0.0123`."""
        # Adding 0.0 makes -0.0 of a tiny negative mean positive.
        mean = f"{round(self.mean, digits) + 0.0:{'+' if sign else ''}.{digits}f}"
        return mean if np.isnan(self.half_width) else f"{mean} ± {self.half_width:.{digits}f}"


def interval(values: collections.abc.Sequence[float]) -> Interval:
    """The mean of values with its 95% t-interval."""
    if not len(values):
        raise ValueError("values: expected at least one, got none; finish a run first")
    array = np.asarray(values, float)
    count = len(array)
    if count == 1:
        return Interval(float(array[0]), float("nan"), 1)
    error = array.std(ddof=1) / np.sqrt(count)
    half_width = float(scipy.stats.t.ppf(0.975, count - 1) * error)
    return Interval(float(array.mean()), half_width, count)


def paired_difference(
    values: collections.abc.Mapping[int, float], baseline: collections.abc.Mapping[int, float]
) -> Interval | None:
    """The interval of values minus baseline over the seeds that both have; None without any."""
    seeds = sorted(values.keys() & baseline.keys())
    return interval([values[seed] - baseline[seed] for seed in seeds]) if seeds else None
