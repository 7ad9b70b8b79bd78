"""Amounts over time: what arrived, or how many workers there were; and how many workers it takes (Ding section 6)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from meander.errors import InvalidOption
from meander.options import amount, positive, whole
from meander.pictures import many

HOUR_S = 3600
MONTH_DAYS = 30
WEEK_DAYS = 7
MOST_WORKERS = 1 << 15
WIDEST_RANGE = 1023
"""How far apart `lo` and `hi` may be: a matrix over them has the square of that."""


@dataclass(frozen=True, eq=False)
class Series:
    """Amounts in the order of time.

    Attributes:
        times: when each begins, in whole seconds, ascending.
        values: how much it is: finite and at least 0.
        notes: what was decided on the way here that a reader should know, in sentences.
    """

    times: NDArray[np.datetime64]
    values: NDArray[np.float64]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        times, values = np.array(self.times, dtype="datetime64[s]"), np.array(self.values, dtype=np.float64)
        if times.ndim != 1 or times.shape != values.shape or not times.size:
            raise InvalidOption(
                f"a series has a value for each time; here are {values.size} for {many(times.size, 'time')}"
            )
        if np.isnat(times).any() or (times[1:] < times[:-1]).any():
            raise InvalidOption("the times of a series must ascend; sort its rows by time first")
        if not (np.isfinite(values) & (values >= 0)).all():
            raise InvalidOption("the values of a series must be finite and at least 0; take the others out first")
        times.flags.writeable = values.flags.writeable = False
        object.__setattr__(self, "times", times)
        object.__setattr__(self, "values", values)

    def __len__(self) -> int:
        return len(self.times)

    @property
    def interval_s(self) -> float | None:
        """The time from one row to the next: the median, in seconds; None for a single row."""
        return float(np.median(np.diff(self.times).astype(np.int64))) if len(self) > 1 else None

    def hourly(self, fill: float | None = None) -> Series:
        """Return how much there is in each hour.

        Args:
            fill: how much there is in an hour without any row. By default such an hour is unknown and left out: the
                hour after the gap follows the one before it, as workers that nobody rescales stay as they are. Where
                rows are left out because nothing came, this is 0.

        A row belongs to the hour it begins in. The first hour and the last are dropped where rows are missing from
        them, judged by the interval of the series. Rows more than half an hour apart cannot be summed into hours
        fairly, unless they are whole hours apart: each is a step of its own, as it is.
        """
        step_s, apart_s = self.interval_s, np.diff(self.times).astype(np.int64)
        if step_s is None:
            return self
        if step_s > HOUR_S / 2 and (step_s != HOUR_S or (apart_s % HOUR_S).any()):
            return _noting(self, f"rows are {step_s:g} s apart, and each is one step")
        hours = self.times.astype("datetime64[h]")
        starts = np.flatnonzero(np.r_[True, hours[1:] != hours[:-1]])
        there, sums = hours[starts], np.add.reduceat(self.values, starts)
        late_s = (self.times[0] - hours[0]) / np.timedelta64(1, "s")
        early_s = (hours[-1] + 1 - self.times[-1]) / np.timedelta64(1, "s")
        whole = slice(int(late_s >= step_s), len(there) - int(early_s > step_s))
        there, sums = there[whole], sums[whole]
        if not there.size:
            raise InvalidOption(
                f"from {self.times[0]} to {self.times[-1]} the series has no whole hour; give more of it"
            )
        empty = int((there[-1] - there[0]).astype(np.int64)) + 1 - len(there)
        series = replace(self, times=there, values=sums)
        if empty and fill is not None:
            every = np.full(empty + len(there), float(amount("fill", fill)))
            every[(there - there[0]).astype(np.int64)] = sums
            series = replace(self, times=there[0] + np.arange(every.size), values=every)
            return _noting(series, f"{_hours(empty)} taken as {fill:g}")
        return _noting(series, f"{_hours(empty)} left out") if empty else series

    def workers(self, lo: int, hi: int) -> Series:
        """Return how many workers each step asks for, scaled over all of this series; see `worker_counts`."""
        return replace(self, values=worker_counts(self.values, lo, hi).astype(np.float64))

    def learn_and_judge(self, days: float = MONTH_DAYS) -> tuple[Series, Series]:
        """Return the first month, to learn from, and what comes after it, to judge what was learned.

        Args:
            days: how long the first part is.

        A series that goes on for less than a week after that is cut in half instead, by steps, and both parts note it.
        """
        first = np.timedelta64(round(positive("days", days) * 24 * HOUR_S), "s")
        if len(self) < 2:
            raise InvalidOption("a series of one step cannot be cut into a part to learn from and one to judge by")
        cut, source = int(np.searchsorted(self.times, self.times[0] + first)), self
        if self.times[-1] - self.times[0] < first + np.timedelta64(WEEK_DAYS, "D"):
            cut = len(self) // 2
            short = f"the series is shorter than {days:g} days and a week"
            source = _noting(self, f"{short}: its first half is learned from, the other judged")
        return _part(source, slice(0, cut)), _part(source, slice(cut, None))


def _part(series: Series, rows: slice) -> Series:
    return replace(series, times=series.times[rows], values=series.values[rows])


def _noting(series: Series, sentence: str) -> Series:
    return replace(series, notes=(*series.notes, sentence))


def worker_counts(hourly: ArrayLike, lo: int, hi: int) -> NDArray[np.int64]:
    """Return how many workers each hour asks for, from `lo` at the quietest to `hi` at the busiest.

    Args:
        hourly: how much arrives in each hour, in any unit.
        lo: the fewest workers.
        hi: the most workers.

    The series is clipped at its 1st and 99th percentile, so that one burst does not flatten all the rest, scaled
    linearly to [lo, hi] and rounded, halves up. A series that is always the same asks for `lo`.

    >>> worker_counts([0, 10, 20, 30, 40], 2, 4).tolist()
    [2, 2, 3, 4, 4]
    """
    check_range(lo, hi)
    amounts = np.asarray(hourly, dtype=np.float64)
    if amounts.ndim != 1 or not amounts.size or not np.isfinite(amounts).all():
        raise InvalidOption("a series of arrivals is a list of finite numbers, one for each hour, and not empty")
    least, most = np.percentile(amounts, [1, 99])
    if not most > least:
        return np.full(amounts.shape, lo, dtype=np.int64)
    share = (np.clip(amounts, least, most) - least) / (most - least)
    wanted: NDArray[np.int64] = np.floor(lo + share * (hi - lo) + 0.5).astype(np.int64)
    return wanted


def migrations(counts: ArrayLike) -> NDArray[np.int64]:
    """Return the worker counts without equal neighbours: each one but the first is a migration from the one before.

    >>> migrations([8, 8, 9, 9, 8]).tolist()
    [8, 9, 8]
    """
    values = as_counts(counts)
    changes: NDArray[np.int64] = values[np.diff(values, prepend=-1) != 0]
    return changes


def as_counts(counts: ArrayLike) -> NDArray[np.int64]:
    """Return worker counts as whole numbers; `InvalidOption` where one is no number of workers."""
    try:
        values = np.asarray(counts, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidOption("worker counts must be a list of whole numbers") from None
    strange = values[~((values >= 0) & (values <= MOST_WORKERS) & (values == np.floor(values)))]
    if values.ndim != 1 or strange.size:
        what = f"; {strange.flat[0]:g} is none" if strange.size else ""
        raise InvalidOption(f"worker counts must be a list of whole numbers{what}")
    return values.astype(np.int64)


def check_range(lo: object, hi: object) -> None:
    """Raise `InvalidOption` unless there are at least two numbers of workers from `lo` to `hi`, and not too many."""
    least = whole("lo", lo, 1, MOST_WORKERS)
    whole("hi", hi, least + 1, least + WIDEST_RANGE)


def _hours(empty: int) -> str:
    return "1 hour has no row and is" if empty == 1 else f"{many(empty, 'hour')} have no row and are"
