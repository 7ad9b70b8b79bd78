"""When to lighten a straggler, and when more or fewer workers are wanted: Ls-Stream's controller, and its future work.

Samples of batches in, a verdict with its reason out. The figures themselves are in `window`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from meander.control.window import MEASURED, Gamma, LoadWindow, Sample
from meander.errors import InvalidOption
from meander.measure.load import check_gamma
from meander.options import positive, whole
from meander.pictures import many
from meander.types import BinId, WorkerId

SLACK = 0.1
"""Fewer workers must suffice for this share more of work than there is."""

QUIETER = 0.8
"""Workers that came because fewer were not enough stay until there is only this share of the work of then."""

RETRY = 8
"""What balancing did not mend is tried again after so many rests: it may have become another case meanwhile."""


@dataclass(frozen=True)
class StragglerRules:
    """By which rules stragglers are lightened.

    Args:
        alpha: the load imbalance degree LI that is left alone; if not given min(1.0, (workers - 1) / 2).
        aim: the LI that a plan is to reach once there has to be one, at most alpha; if not given 0.2. The paper stops
            just below alpha, where the straggler may still have twice the mean and is soon one again.
        window: so many batches make a decision.
        gamma: weight of memory against computing; see `measure.Resources`. With "measured" it is the one with which
            load comes closest to the workers' busy time; LI is lower then, and so should alpha be.
        rest: so many batches are left alone after a verdict to act and after a migration; if not given one window, so
            that the next verdict is about new figures only.
        least: the fewest workers it may go down to; if not given it never goes down.
        most: the most workers it may go up to; if not given it never goes up.
        utilisation: the share of the time workers are to be busy when their number changes, above 0 and at most 1.
    """

    alpha: float | None = None
    aim: float = 0.2
    window: int = 8
    gamma: Gamma = None
    rest: int | None = None
    least: int | None = None
    most: int | None = None
    utilisation: float = 0.8

    def __post_init__(self) -> None:
        if self.alpha is not None:
            positive("alpha", self.alpha)
        positive("aim", self.aim)
        if isinstance(self.gamma, str) and self.gamma != MEASURED:
            raise InvalidOption(f"gamma is {self.gamma!r}; it is a number from 0 to 1, or {MEASURED!r}")
        if self.gamma is not None and not isinstance(self.gamma, str):
            check_gamma(self.gamma)
        whole("window", self.window, 1)
        whole("rest", self.rest_batches, 1)
        least = 1 if self.least is None else whole("least", self.least, 1)
        if self.most is not None and whole("most", self.most, 1) < least:
            raise InvalidOption(f"most is {self.most}; it must be at least {least}, which is the least")
        if positive("utilisation", self.utilisation) > 1:
            raise InvalidOption(f"utilisation is {self.utilisation}; it is a share of the time and at most 1")
        if self.most is not None and self.most > 1:
            self.limit(self.most)

    def limit(self, workers: int) -> float:
        """Return the alpha for so many workers; refuses one that cannot fire. One worker has nothing to balance: 0."""
        if workers <= 1:
            return 0.0
        if self.alpha is None:
            return min(1.0, (workers - 1) / 2)
        if self.alpha >= workers - 1:
            raise InvalidOption(
                f"alpha is {self.alpha:g} and would never fire: LI is at most {workers - 1} among {workers} workers; "
                f"give an alpha below {workers - 1}, or none for {min(1.0, (workers - 1) / 2):g}"
            )
        return self.alpha

    def target(self, workers: int) -> float:
        """Return the LI to plan for among so many workers."""
        return min(self.aim, self.limit(workers)) if workers > 1 else self.aim

    @property
    def rest_batches(self) -> int:
        """How many batches are left alone."""
        return self.window if self.rest is None else self.rest

    @property
    def fewest(self) -> int:
        """The fewest workers among whom alpha can fire."""
        return 1 if self.alpha is None else math.floor(self.alpha) + 2


@dataclass(frozen=True, eq=False)
class Verdict:
    """What to do now, and why.

    Attributes:
        action: "stay", "balance" (plan from `view` and move) or "rescale" (to `workers`).
        reason: in one sentence, with the figures.
        imbalance: load imbalance degree LI.
        workers: how many are wanted.
        view: what it was decided on; None before the first batch.
    """

    action: Literal["stay", "balance", "rescale"]
    reason: str
    imbalance: float
    workers: int
    view: LoadWindow | None


class Straggler:
    """Decides, batch after batch, whether there is a straggler that should hand over bins.

    Note every batch, ask for a verdict as often as you like, and say with `balanced` what came of a "balance".
    Balancing is not enough where LI is still above alpha after it, or where there was nothing to move. Then more
    workers are wanted if that can help: not where one bin alone makes the straggler, for the mean would only become
    smaller.

    >>> straggler = Straggler(StragglerRules(window=1))
    >>> straggler.note(Sample(7, 1.0, ([9, 9, 9],), ([60, 30, 10],), [60, 30, 10], {0: 0.6, 1: 0.1}, owner=[0, 0, 1]))
    >>> straggler.decide([0, 1], moving=False).reason
    'LI 0.80 is above alpha 0.5: worker 0 has 180% of the mean load, worker 1 has 20%'
    """

    def __init__(self, rules: StragglerRules | None = None) -> None:
        self.rules = rules or StragglerRules()
        self._samples: deque[Sample] = deque(maxlen=self.rules.window)
        self._rest_from: int | None = None
        self._workers = 0
        self._is_balancing = False
        self._nothing_to_move = False
        self._tried: dict[tuple[WorkerId, BinId], int] = {}
        self._floor = (0, 0.0)

    def note(self, sample: Sample) -> None:
        """Take what was counted in a batch. One that is not newer than the last changes nothing."""
        if self._samples:
            last = self._samples[-1]
            if sample.batch <= last.batch:
                return
            if (len(sample.stored), len(sample.rows)) != (len(last.stored), len(last.rows)):
                raise InvalidOption(
                    f"batch {sample.batch} has {len(sample.stored)} sides and {len(sample.rows)} bins, the one before "
                    f"had {len(last.stored)} and {len(last.rows)}; begin anew with another query"
                )
        self._samples.append(sample)

    def balanced(self, any_bin: bool) -> None:
        """Take what came of the last "balance", when it is done: whether there was anything to move."""
        self._nothing_to_move = not any_bin
        self._begin_rest()

    def decide(self, workers: Sequence[int], moving: bool) -> Verdict:
        """Return what to do now.

        Args:
            workers: who is there, with or without bins.
            moving: a migration is under way.

        Raises:
            InvalidOption: alpha cannot fire among so many workers. Only if that is so from the beginning; where their
                number has changed since, it is a reason to stay.
        """
        if moving:
            self._begin_rest()
        if not self._samples:
            return Verdict("stay", "no batch has ended yet", 0.0, len(workers), None)
        view = LoadWindow.of(self._samples, workers, self.rules.gamma)
        count = len(view.workers)
        try:
            alpha = self.rules.limit(count)
        except InvalidOption as refusal:
            if not self._workers:
                raise
            return _Case(view, self.rules.alpha or 0.0).stay(str(refusal))
        if count != self._workers:
            self._workers = count
            self._forget()
        case = _Case(view, alpha)
        if len(self._samples) < self.rules.window:
            return case.stay(
                f"only {len(self._samples)} of the {many(self.rules.window, 'batch', 'batches')} of a window were seen"
            )
        if moving:
            return case.stay("a migration is under way")
        rested, rest = self._rested(), self.rules.rest_batches
        if rested is not None and rested < rest:
            return case.stay(f"{rested} of {many(rest, 'batch', 'batches')} of rest are over")
        verdict = self._judge(case)
        if verdict.action != "stay":
            self._begin_rest()
        return verdict

    def _judge(self, case: _Case) -> Verdict:
        if not case.is_out:
            self._forget()
            return self._by_work(case, check_sojourn=True) or case.stay()
        if not self._is_balancing:
            return self._balance(case)
        wanted = self._upwards(case, case.count + 1)
        if wanted > case.count and not case.is_alone(wanted, self.rules.limit(wanted)):
            return self._rescale(case, wanted, f"balancing was not enough, so {_wanted(wanted)}")
        since = self._tried.get((case.view.straggler, case.view.heaviest))
        is_known = since is not None and self._samples[-1].batch - since < RETRY * self.rules.rest_batches
        is_alone = case.is_alone(case.count, case.alpha)
        if is_known and (is_alone or self._nothing_to_move):
            why = case.tell_bin() if is_alone else "there was nothing to move"
            return self._by_work(case, check_sojourn=False) or case.stay(why)
        return self._balance(case)

    def _balance(self, case: _Case) -> Verdict:
        self._is_balancing, self._nothing_to_move = True, False
        self._tried[case.view.straggler, case.view.heaviest] = self._samples[-1].batch
        return Verdict("balance", case.figures, case.view.imbalance, case.count, case.view)

    def _by_work(self, case: _Case, check_sojourn: bool) -> Verdict | None:
        """Another number of workers for the work there is, or None (DS2)."""
        needed = case.view.busy_per_s / self.rules.utilisation
        busy = f"the workers are busy {case.view.busy_per_s / case.count:.0%} of the time"
        slow = [w for w, s in case.view.sojourn_s.items() if s == math.inf] if check_sojourn else []
        if needed > case.count or slow:
            wanted = self._upwards(case, max(case.count + 1, math.ceil(needed)))
            why = busy if needed > case.count else f"rows come to worker {slow[0]} as fast as it serves them"
            if wanted > case.count:
                return self._rescale(case, wanted, f"{why}, so {_wanted(wanted)}")
            return case.stay(f"{why}, and most is {self.rules.most}") if self.rules.most is not None else None
        wanted = max(math.ceil(needed * (1 + SLACK)), self.rules.least or case.count, self.rules.fewest)
        floor, busy_then = self._floor
        if case.view.busy_per_s >= QUIETER * busy_then:
            wanted = max(wanted, floor)
        if wanted < case.count:
            return self._rescale(case, wanted, f"{busy}, so {many(wanted, 'worker')} would do")
        return None

    def _upwards(self, case: _Case, wanted: int) -> int:
        """So many workers, or as many as there may be; never a new number among which alpha cannot fire."""
        most = max(self.rules.most or 0, case.count)
        return min(max(wanted, self.rules.fewest), most)

    def _rescale(self, case: _Case, wanted: int, why: str) -> Verdict:
        # Without the floor, fewer workers that are hardly busy would be wanted again at the next verdict, for ever.
        self._floor = (wanted, case.view.busy_per_s) if wanted > case.count else (0, 0.0)
        self._forget()
        return Verdict("rescale", f"{case.figures}; {why}", case.view.imbalance, wanted, case.view)

    def _forget(self) -> None:
        self._is_balancing = self._nothing_to_move = False
        self._tried.clear()

    def _begin_rest(self) -> None:
        if self._samples:
            self._rest_from = self._samples[-1].batch

    def _rested(self) -> int | None:
        return None if self._rest_from is None else self._samples[-1].batch - self._rest_from


class _Case:
    """A view and the alpha that goes with it, in words."""

    def __init__(self, view: LoadWindow, alpha: float) -> None:
        self.view, self.alpha, self.count = view, alpha, len(view.workers)
        self.is_out = self.count > 1 and view.imbalance > alpha

    @property
    def figures(self) -> str:
        """LI, alpha, and the two workers that are farthest from the mean."""
        view = self.view
        if self.count == 1:
            return f"there is nothing to balance: worker {view.straggler} is the only one, LI 0, alpha 0"
        high, low = (view.of_mean(view.loads[w]) for w in (view.straggler, view.idlest))
        return (
            f"LI {view.imbalance:.2f} is {'above' if self.is_out else 'within'} alpha {self.alpha:g}: "
            f"worker {view.straggler} has {high:.0%} of the mean load, worker {view.idlest} has {low:.0%}"
        )

    def is_alone(self, workers: int, alpha: float) -> bool:
        """Whether the straggler's heaviest bin alone would be above alpha among so many workers."""
        return self.view.of_mean(float(self.view.load[self.view.heaviest]), workers) > 1 + alpha

    def tell_bin(self) -> str:
        """Which bin it is that alone makes the straggler."""
        bin_ = self.view.heaviest
        return f"bin {bin_} alone has {self.view.of_mean(float(self.view.load[bin_])):.0%} and cannot be divided"

    def stay(self, why: str | None = None) -> Verdict:
        """Return the verdict to leave everything as it is."""
        reason = self.figures if why is None else f"{self.figures}; {why}"
        return Verdict("stay", reason, self.view.imbalance, self.count, self.view)


def _wanted(workers: int) -> str:
    return f"{many(workers, 'worker')} {'is' if workers == 1 else 'are'} wanted"
