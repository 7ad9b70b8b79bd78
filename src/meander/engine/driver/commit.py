"""What a version did, as it is committed and as people read it; and how far event time is after it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from weakref import ref

from meander.engine.worker.bin_numbers import summed
from meander.engine.worker.messages import Json, TaskReport
from meander.migration.ledger import BinCounts, Owners
from meander.operators.operator import BinnedOperator
from meander.store.entries import Commit, FileRef, OperatorCommit, SnapshotRef
from meander.types import WorkerId

Times = Sequence[int | None]
END_OF_TIME = 253_402_300_799_999_999
"""Event time after which there is none: the last microsecond that a datetime can say."""


@dataclass(frozen=True)
class Frontier:
    """The frontier of an operator, and where it waits for the slowest of several inputs, the newest time of each."""

    frontier: int | None = None
    newest: tuple[int | None, ...] = ()

    def after(self, reports: Iterable[Times], lateness: int) -> Frontier:
        """Where time stands after workers have reported the newest time they saw of each input; it never goes back.

        >>> Frontier().after([[7, None], [9, 4]], lateness=1)
        Frontier(frontier=3, newest=(9, 4))
        >>> Frontier(frontier=3, newest=(9, 4)).after([[None, 6]], lateness=1).frontier
        5
        """
        inputs = self._inputs(reports)
        known = [time for time in inputs if time is not None]
        frontier = self.frontier
        if inputs and len(known) == len(inputs):
            latest = min(known) - lateness
            frontier = latest if frontier is None else max(frontier, latest)
        return Frontier(frontier, inputs if len(inputs) > 1 else ())

    def held(self, reports: Iterable[Times]) -> Frontier:
        """The same frontier, with what was reported noted for the version that brings the rest of the batch.

        >>> Frontier(3).held([[7], [9]]).after([[8]], lateness=1)
        Frontier(frontier=8, newest=())
        """
        return Frontier(self.frontier, self._inputs(reports))

    def _inputs(self, reports: Iterable[Times]) -> tuple[int | None, ...]:
        """The newest time of each input."""
        inputs: list[int | None] = list(self.newest)
        for times in reports:
            inputs += [None] * (len(times) - len(inputs))
            for at, time in enumerate(times):
                before = inputs[at]
                if time is not None and (before is None or time > before):
                    inputs[at] = time
        return tuple(inputs)


class EventTime:
    """The frontier of each operator now, and the one its operators last saw."""

    def __init__(self, frontiers: Times, seen: Times) -> None:
        self.frontiers, self.seen = list(frontiers), list(seen)

    @property
    def has_moved(self) -> bool:
        """Whether a frontier has moved since the operators last saw it, so that timers may be due."""
        return self.frontiers != self.seen

    def advance(self, microseconds: int) -> None:
        """Let time go on everywhere where it has begun."""
        self.frontiers = [None if each is None else each + microseconds for each in self.frontiers]

    def resume(self, frontiers: Times) -> None:
        """Go on with a version that was announced with these frontiers; those of operators that came since stay."""
        self.frontiers = [*frontiers, *self.frontiers[len(frontiers) :]]

    def end(self, operator: int) -> None:
        """Let event time be over for an operator."""
        self.frontiers[operator] = END_OF_TIME

    def commit(self, frontiers: Times) -> None:
        """The operators have seen the frontiers; these are the new ones."""
        self.seen, self.frontiers = self.frontiers, list(frontiers)


class VersionReports:
    """The reports of one whole attempt, by operator, and what they add up to."""

    def __init__(self, reports: Sequence[TaskReport], operators: int, bins: int) -> None:
        self.reports = sorted(reports, key=lambda each: (each.operator, each.worker))
        self.by_operator = [[each for each in self.reports if each.operator == at] for at in range(operators)]
        self._bins = bins

    def counts(self) -> list[BinCounts]:
        """What was counted by bin, for each operator."""
        return [
            BinCounts(
                rows=summed([each.loads for each in mine], self._bins),
                state_rows=sum(each.state_rows.total for each in mine),
                bytes_of_bins=partial(summed, [each.state_bytes for each in mine], self._bins),
            )
            for mine in self.by_operator
        ]

    @property
    def rows(self) -> int:
        """The rows that came in."""
        return self.total("new_rows")

    def total(self, name: str) -> int:
        """The sum of a number over all reports."""
        return sum(getattr(report, name) for report in self.reports)

    def troubles(self) -> list[str]:
        """Why bins could not be copied."""
        return [report.trouble for report in self.reports if report.trouble]


def operator_commits(
    reports: VersionReports,
    operators: Sequence[BinnedOperator],
    owners: Sequence[Owners],
    frontiers: Sequence[int | None],
    last: Commit | None,
    is_part: bool = False,
    layouts: Sequence[int] = (),
) -> tuple[OperatorCommit, ...]:
    """What each operator has done in a version that saw these frontiers: the next one, its owners and its files.

    After a part of a batch time stands still: the rest of its rows are judged by the same frontier. `layouts` are the
    numbers of the layouts that the operators' files have.
    """
    commits: list[OperatorCommit] = []
    for at, operator in enumerate(operators):
        mine = reports.by_operator[at]
        last_of_it = last.operators[at] if last and at < len(last.operators) else None
        layout = layouts[at] if layouts else 0
        times = [each.newest for each in mine if each.newest]
        now = Frontier(frontiers[at], last_of_it.newest if last_of_it else ())
        frontier = now.held(times) if is_part else now.after(times, operator.lateness)
        commits.append(
            OperatorCommit(
                frontier=frontier.frontier,
                seen=frontiers[at],
                newest=frontier.newest,
                owner=committed_owner(owners[at]),
                deltas=tuple(_of_layout(FileRef.from_json(each.delta), layout) for each in mine if each.delta),
                snapshots=tuple(_snapshot(report.snapshot, layout) for report in mine if report.snapshot),
                side=tuple(FileRef.from_json(side) for report in mine for side in report.side),
            )
        )
    return tuple(commits)


_OWNERS: dict[int, tuple[ref[Owners], tuple[WorkerId, ...]]] = {}


def committed_owner(owner: Owners) -> tuple[WorkerId, ...]:
    """Who owns each bin, as it is committed: the same tuple for the same array, which is not written to any more."""
    at = id(owner)
    known = _OWNERS.get(at)
    if known is None or known[0]() is not owner:
        known = _OWNERS[at] = (ref(owner, lambda _: _OWNERS.pop(at, None)), tuple(map(WorkerId, owner.tolist())))
    return known[1]


def _snapshot(fields: Json, layout: int) -> SnapshotRef:
    snapshot = SnapshotRef.from_json(fields)
    file = _of_layout(snapshot.file, layout)
    return snapshot if file is snapshot.file else replace(snapshot, file=file)


def _of_layout(file: FileRef, layout: int) -> FileRef:
    return replace(file, layout=layout) if layout != file.layout else file
