"""The papers' default setting, and replays in it: whose migrations, which bins, and outlooks made only once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter
from typing import NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from meander.errors import InvalidOption
from meander.outlook import Outlook, Series, files, read_series
from meander.outlook.practice import Effort
from meander.outlook.series import migrations
from meander.outlook.transitions import Transitions
from meander.progress import Tell, nobody
from meander_lab.replay import Bins, Replay, replay
from meander_lab.replay.bins import DRIFT

Floats = NDArray[np.float64]
PreCompute = Callable[[Floats, Floats, Transitions, float, float], Outlook]
"""From load, state, transitions, tau and gamma to an outlook."""

Case = TypeVar("Case")

DRIFTS = (0.0, DRIFT)
"""Loads that stay and loads that drift."""

IGNORE_TAU = ("even", "consistent_hash")
WARM_UP = 10


@dataclass(frozen=True)
class Setting:
    """What experiments have in common, and over what they vary it; by default as in the papers.

    Attributes:
        bins: how many there are.
        lo: the fewest workers.
        hi: the most workers.
        tau: the load cap.
        gamma: how much the next migration counts against this one.
        migrations: how many are replayed at most.
        seeds: over how many rings of consistent hashing the mean is taken.
        redist_seeds: over how many of `redist`, which takes ten times as long.
        seed: which bins.
        effort: how much is practised for an outlook.
        taus, sizes, gammas: what tau, bins and gamma are varied over.
    """

    bins: int = 64
    lo: int = 8
    hi: int = 16
    tau: float = 1.2
    gamma: float = 0.8
    migrations: int = 100
    seeds: int = 100
    redist_seeds: int = 10
    seed: int = 1
    effort: Effort = field(default_factory=Effort)
    taus: tuple[float, ...] = (0.2, 0.4, 0.8, 1.2)
    sizes: tuple[int, ...] = (32, 64, 128, 256, 512)
    gammas: tuple[float, ...] = (0.0, 0.2, 0.4, 0.6, 0.8, 0.95)

    @classmethod
    def quick(cls) -> Self:
        """To see whether all works, in about two minutes: its figures mean little."""
        return cls(
            migrations=30,
            redist_seeds=2,
            effort=Effort(rounds=2, tasks=4, steps=500, rehearsals=4, length=50),
            taus=(0.4, 1.2),
            sizes=(32, 64, 256),
            gammas=(0.0, 0.8),
        )

    @property
    def two_taus(self) -> tuple[float, ...]:
        """The default tau and a tighter one: at the default there may be next to nothing to move at all."""
        return tuple(dict.fromkeys([0.4, self.tau]))


@dataclass(frozen=True)
class History:
    """The worker counts of a series: those to learn from as transitions, those after them to replay.

    Attributes:
        name: of the series.
        counts: one after the other, no two neighbours equal.
        transitions: of the first month.
        notes: what was decided on the way.
    """

    name: str
    counts: tuple[int, ...]
    transitions: Transitions
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, name: str, series: Series, setting: Setting) -> History:
        """Turn amounts over time into worker counts.

        Raises:
            InvalidOption: there is no migration after the first month.
        """
        learned, judged = series.hourly().workers(setting.lo, setting.hi).learn_and_judge()
        counts = migrations(judged.values).tolist()[: setting.migrations + 1]
        if len(counts) < 2:
            raise InvalidOption(
                f"{name} asks for {counts[0]} workers all the time after its first month; give a longer series"
            )
        notes = tuple(dict.fromkeys([*learned.notes, *judged.notes]))
        return cls(name, tuple(counts), Transitions.of(learned.values, setting.lo, setting.hi), notes)

    @classmethod
    def read(cls, path: str | Path, setting: Setting) -> History:
        """Read a series from CSV or Parquet."""
        return cls.of(Path(path).stem, read_series(path), setting)


class TimedOutlook(NamedTuple):
    """An outlook, and how many seconds it took to make, now or when it was made."""

    outlook: Outlook
    seconds: float


class Outlooks:
    """Outlooks in a folder: each is made once, with the time it takes, and read from then on.

    One is made again when its inputs, the effort or the code in `planning.ahead` have changed.

    Args:
        folder: where they are kept.
        make: makes one; by default `me.pmc` on a Spark session, which is started when the first one is needed.
        effort: how much is practised; for `me.pmc`.
        tell: told how far it is; for `me.pmc`.
    """

    def __init__(
        self,
        folder: str | Path,
        make: PreCompute | None = None,
        effort: Effort | None = None,
        tell: Tell = nobody,
    ) -> None:
        self.folder = Path(folder)
        self.effort = effort or Effort()
        self._make, self._tell = make, tell
        self._how = f"{'given' if make else json.dumps(asdict(self.effort), sort_keys=True)}, by code {_code()}"
        self._read: dict[str, TimedOutlook] = {}

    def of(self, load: Floats, state: Floats, transitions: Transitions, tau: float, gamma: float) -> TimedOutlook:
        """Return the outlook of these inputs."""
        words = repr((transitions.fingerprint(), tau, gamma, self._how)).encode()
        key = hashlib.sha256(load.tobytes() + state.tobytes() + words).hexdigest()
        name = f"{load.size}-bins-tau-{tau:g}-gamma-{gamma:g}-{key[:12]}"
        if name not in self._read:
            self._read[name] = self._kept(name) or self._fresh(name, load, state, transitions, tau, gamma)
        return self._read[name]

    def _kept(self, name: str) -> TimedOutlook | None:
        try:
            facts = json.loads((self.folder / f"{name}.json").read_bytes())
        except FileNotFoundError:
            return None
        return TimedOutlook(files.read(self.folder / name), facts["seconds"])

    def _fresh(
        self, name: str, load: Floats, state: Floats, transitions: Transitions, tau: float, gamma: float
    ) -> TimedOutlook:
        self._make = self._make or on_spark(self.effort, self._tell)
        started = perf_counter()
        outlook = self._make(load, state, transitions, tau, gamma)
        seconds = perf_counter() - started
        files.write(outlook, self.folder / name)
        # The outlook counts as kept when this is there, so it comes last.
        files.put(self.folder / f"{name}.json", json.dumps({"seconds": seconds, "how": self._how}).encode())
        return TimedOutlook(outlook, seconds)


def _code() -> str:
    """A checksum of what outlooks are made by, so that one that was made otherwise is not taken for one of today."""
    sources = sorted(Path(files.__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]


def on_spark(effort: Effort, tell: Tell) -> PreCompute:
    """Start Spark and return a function that learns outlooks on it."""
    import meander
    from meander.outlook.pmc import pmc

    spark = meander.session()

    def make(load: Floats, state: Floats, transitions: Transitions, tau: float, gamma: float) -> Outlook:
        return pmc(spark, load, state, transitions, tau, gamma, exactly=False, effort=effort, tell=tell)

    return make


@dataclass
class Lab:
    """All that an experiment needs: a setting, histories, outlooks, and whom to tell how far it is."""

    setting: Setting
    histories: Sequence[History]
    outlooks: Outlooks
    tell: Tell = nobody
    _remembered: dict[tuple[object, ...], Replay] = field(default_factory=dict)
    _warm: set[str] = field(default_factory=set)

    def each(self, cases: Sequence[Case]) -> Iterator[Case]:
        """The cases, one after the other, telling how many are done."""
        for done, case in enumerate(cases):
            self.tell(done, len(cases), "cases")
            yield case
        self.tell(len(cases), len(cases), "cases")

    def bins(self, drift: float) -> Bins:
        """The setting's bins, staying or drifting."""
        return Bins.synthetic(self.setting.bins, drift=drift, seed=self.setting.seed)

    def outlook(
        self, history: History, tau: float, gamma: float | None = None, bins: Bins | None = None
    ) -> TimedOutlook:
        """What migrations to come will cost, as seen when the replay begins; whether bins drift does not matter."""
        load, state = (bins or self.bins(0.0)).at(0)
        return self.outlooks.of(load, state, history.transitions, tau, self.setting.gamma if gamma is None else gamma)

    def replayed(
        self, history: History, planner: str, tau: float, drift: float, *, gamma: float | None = None,
        bins: Bins | None = None,
    ) -> Replay:  # fmt: skip
        """What a planner does over a history; `bins`, if given, are replayed instead of the setting's with this drift.

        The planner is called a few times before, so that nothing is loaded or compiled while its time is taken.
        """
        key = (history, planner, drift)
        if bins is None and planner in IGNORE_TAU and key in self._remembered:
            return self._remembered[key]
        seeds = {"consistent_hash": self.setting.seeds, "redist": self.setting.redist_seeds}.get(planner, 1)
        options = {"outlook": self.outlook(history, tau, gamma, bins).outlook} if planner == "mtm" else {}
        these = self.bins(drift) if bins is None else bins
        if planner not in self._warm:
            replay(history.counts, these, planner, tau, options=options, most=WARM_UP)
            self._warm.add(planner)
        result = replay(
            history.counts, these, planner, tau, options=options, most=self.setting.migrations, seeds=seeds
        )  # fmt: skip
        if bins is None and planner in IGNORE_TAU:
            self._remembered[key] = result
        return result


class Merged(Bins):
    """Bins of which each is so many neighbours of finer ones, also while these drift."""

    def __init__(self, fine: Bins, by: int) -> None:
        load, state = (_summed(each, by) for each in fine.at(0))
        super().__init__(load, state, fine.drift, fine.seed)
        self._fine, self._by = fine, by

    def at(self, k: int) -> tuple[Floats, Floats]:
        """Return load and state of each bin at the k-th migration."""
        load, state = self._fine.at(k)
        return _summed(load, self._by), _summed(state, self._by)


def of_size(bins: int, finest: int, drift: float, seed: int) -> Bins:
    """Return so many bins, cut from the same keys whatever their number: `finest` ones, merged."""
    if finest % bins:
        raise InvalidOption(f"{finest} bins cannot be merged into {bins}; let each number divide the largest")
    return Merged(Bins.synthetic(finest, drift=drift, seed=seed), finest // bins)


def _summed(values: Floats, by: int) -> Floats:
    return np.asarray(values.reshape(-1, by).sum(axis=1))
