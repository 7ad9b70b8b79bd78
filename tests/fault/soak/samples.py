"""Memory and descriptors of processes, and files of folders: sampled every few seconds, kept as medians of minutes."""

from __future__ import annotations

import os
import statistics
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from fault.matrix.on_drivers import JVM
from fault.soak.heap import live_heap_mib
from fault.soak.slope import Slope, seasonal_kendall
from meander.engine.worker.process import OWNER, PREFIX, is_running
from streams import below, executors, python_workers

MINUTE_S = 60
YOUNG_MINUTES = 5
"""A younger JVM has not filled its heap yet, and a younger checkpoint not what it retains."""
JVMS = ("driver's JVM", "executor")
LIMIT_PERCENT = 1.0


class Series(NamedTuple):
    """What is sampled: a measure of one incarnation of a role, such as the memory of the third driver's JVM."""

    role: str
    measure: str
    incarnation: str


class Minute(NamedTuple):
    """One minute of a series."""

    soak_s: float
    age: int
    """In minutes since the first sample of the series."""
    value: float


@dataclass
class _Open:
    began_s: float
    minute: int = 0
    values: list[float] = field(default_factory=list)


class Samples:
    """Samples by series. Only medians of whole minutes stay."""

    def __init__(self) -> None:
        self.minutes: dict[Series, list[Minute]] = defaultdict(list)
        self._open: dict[Series, _Open] = {}
        self.largest: dict[tuple[str, str], float] = {}

    def add(self, now_s: float, values: Mapping[Series, float]) -> None:
        """Take one sample of each series that there is now; the others have ended."""
        for series in self._open.keys() - values.keys():
            del self._open[series]
        for series, value in values.items():
            each = self._open.setdefault(series, _Open(now_s))
            minute = int((now_s - each.began_s) // MINUTE_S)
            if minute > each.minute:
                middle_s = each.began_s + (each.minute + 0.5) * MINUTE_S
                self.minutes[series].append(Minute(middle_s, each.minute, statistics.median(each.values)))
                each.minute, each.values = minute, []
            each.values.append(value)
            name = series.role, series.measure
            self.largest[name] = max(value, self.largest.get(name, 0.0))

    def grown_up(self, measure: str) -> list[Series]:
        """The series of a measure that go on and are a minute old."""
        return [series for series, each in self._open.items() if series.measure == measure and each.minute > 0]

    def growth(self, role: str, measure: str) -> Growth:
        """How a measure of a role grows, with the age of a process and with that of the soak."""
        mine = [minutes for series, minutes in self.minutes.items() if series[:2] == (role, measure)]
        by_age: dict[int, list[tuple[float, float]]] = defaultdict(list)
        for minutes in mine:
            for each in minutes:
                by_age[each.age].append((each.soak_s, each.value))
        return Growth(
            incarnations=len(mine),
            median=statistics.median([each.value for minutes in mine for each in minutes] or [0.0]),
            largest=self.largest[role, measure],
            by_age=seasonal_kendall([(m.soak_s, m.value) for m in each if m.age >= YOUNG_MINUTES] for each in mine),
            # A process of some age is compared with others of the same age.
            by_soak=seasonal_kendall(sorted(points) for age, points in by_age.items() if age > 0),
        )


@dataclass(frozen=True)
class Growth:
    """How one measure of one role has grown."""

    incarnations: int
    median: float
    largest: float
    by_age: Slope | None
    by_soak: Slope | None

    @property
    def verdict(self) -> str:
        """One word: grows, if that is certain; flat, if no slope is above the limit; else open: too short to tell."""
        slopes = [each for each in (self.by_age, self.by_soak) if each is not None]
        if any(each.low > LIMIT_PERCENT for each in slopes):
            return "grows"
        return "flat" if slopes and all(each.percent <= LIMIT_PERCENT for each in slopes) else "open"


def of_processes(pid: int) -> dict[Series, float]:
    """MiB and descriptors of a driver and everything below it, by role."""
    roles = {"driver's Python": [pid], "executor": executors(pid), "Python worker": python_workers(pid)}
    roles["driver's JVM"] = [each for each, (_, command) in below(pid).items() if JVM in command]
    found = {}
    for role, pids in roles.items():
        for each in pids:
            try:
                resident = int(Path(f"/proc/{each}/statm").read_text().split()[1]) * 4 / 1024
                descriptors = len(list(Path(f"/proc/{each}/fd").iterdir()))
            except (OSError, IndexError):
                continue
            found[Series(role, "MiB", str(each))] = resident
            found[Series(role, "descriptors", str(each))] = float(descriptors)
    return found


def of_heaps(samples: Samples) -> dict[Series, float]:
    """MiB of live heap of each JVM that is a minute old; it collects its garbage for that."""
    found = {}
    for series in samples.grown_up("MiB"):
        if series.role in JVMS and (heap := live_heap_mib(int(series.incarnation))) is not None:
            found[Series(series.role, "live heap MiB", series.incarnation)] = heap
    return found


def worker_folders(local: Path) -> dict[Path, str]:
    """The folders of workers below the executors' folder, each with the executor it belongs to, where that lives.

    Those of an executor that was killed go with the next one in its place, or when the application ends.
    """
    found = {}
    for mark in local.glob(f"**/{PREFIX}*/{OWNER}"):
        with suppress(OSError):
            found[mark.parent] = mark.read_text()
    return {folder: owner for folder, owner in found.items() if is_running(owner)}


def files_below(folder: Path) -> int:
    """How many files are in a folder and those below it, while others may remove some."""
    return sum(len(names) for _, _, names in os.walk(folder))
