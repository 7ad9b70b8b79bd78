"""Running a version until an attempt at it succeeds as a whole: every worker of every operator has reported once."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from meander.engine.driver.commit import EventTime
from meander.engine.driver.conversion import StateConversion
from meander.engine.driver.copy_pace import CopyPace
from meander.engine.driver.graph import Graph
from meander.engine.driver.placement import Placement
from meander.engine.driver.ports import Job, JobInput, JobLost, JobResult, Jobs, OperatorOutput, OutputLost, Rows
from meander.engine.driver.settings import Settings
from meander.engine.driver.shares import Shares
from meander.engine.driver.version import Version, stale_bins
from meander.engine.worker.messages import TaskReport, Token
from meander.errors import MeanderError, QueryFailed
from meander.logs import logger
from meander.migration.coordinator import Coordinator
from meander.migration.orders import Share
from meander.migration.steps import COPY_BYTES
from meander.operators.operator import BinnedOperator
from meander.pictures import many
from meander.store.design import Design
from meander.store.manifest import Log
from meander.types import WorkerId

RETRIED = ("place", "reload", "stale")
"""Faults of a worker that another attempt can mend."""


class Stopped(MeanderError):
    """The query is being stopped; the batch is left to the next start."""


class Attempts:
    """The attempts of one run of a query."""

    def __init__(
        self,
        operators: Sequence[BinnedOperator] | Graph,
        jobs: Jobs,
        placement: Placement,
        coordinator: Coordinator,
        event_time: EventTime,
        log: Log,
        settings: Settings,
        conversion: StateConversion | None = None,
    ) -> None:
        self.graph = Graph.of(operators)
        self.operators = self.graph.operators
        self.jobs, self.placement, self.coordinator = jobs, placement, coordinator
        self.event_time, self.log, self.settings = event_time, log, settings
        design = Design.first(self.graph.fingerprints)
        self.conversion = conversion or StateConversion(
            design, log, coordinator.events, settings.copy_bytes or COPY_BYTES
        )
        self.pace = CopyPace()
        self._shares = Shares()
        self.stopping = False
        self.errors = 0
        """For how many rows functions have raised since the query was started, in versions that are committed."""
        self._count = 0
        self._largest_bytes: int | None = None

    def run(self, rows: Rows, version: int, batch: int) -> JobResult:
        """Try until an attempt succeeds; never again after the user's own exception, never after a stop."""
        problem = "no attempt was made"
        for _ in range(self.settings.attempts):
            if self.stopping:
                raise Stopped("the query is being stopped")
            try:
                self.settle()
                result = self._try(rows, self._open(version, batch))
            except JobLost as loss:
                problem = f"a process was lost: {loss}"
                logger.warning("version %d, attempt %d: %s; trying again", version, self._count, problem)
                self.forget_lost()
                continue
            problem = self._mend(result.reports, version, batch) or problem
            if self._is_whole(result, version):
                self._check_errors(result.reports, version)
                self._largest_bytes = max(report.bytes for report in result.reports)
                return result
        raise QueryFailed(
            f"version {version} was tried {many(self.settings.attempts, 'time')}; the last time {problem}"
        )

    def stop(self) -> None:
        """Begin no further attempt."""
        self.stopping = True

    def settle(self) -> None:
        """Give every worker a place; bins of workers for which none comes back go to the others."""
        owners = set(self.coordinator.record.workers)
        within_s = self.settings.executors_within_s
        lost = set(self.placement.settle(self.coordinator.participants, within_s, owners))
        if not lost:
            return
        if (self.log.index.version < 0 and lost & owners) or lost >= owners:
            raise QueryFailed(
                f"{len(owners)} workers need as many cores, and the executors had {self.placement.cores} within "
                f"{self.settings.executors_within_s:g} s; start with fewer workers or give Spark more executors"
            )
        logger.warning("workers %s have no executor any more; the others take over their bins", sorted(lost))
        self.coordinator.repair(lost)

    def forget_lost(self) -> None:
        """Executors are gone: forget their places, and look at the size of the next batch again."""
        self._largest_bytes = None
        self.placement.forget_lost()

    def output(self, result: JobResult, operator: int) -> OperatorOutput:
        """What an operator has emitted, and where it is."""
        files = [
            (report.output, self.placement.places[WorkerId(report.worker)])
            for report in result.reports
            if report.operator == operator and report.output
        ]
        return OperatorOutput(operator, result.inline, tuple(files))

    def _open(self, version: int, batch: int) -> Version:
        coordinator = self.coordinator
        moves = {(move.operator, move.bin) for move in coordinator.next_moves}
        coordinator.open(version, batch, stale_bins(self.log, moves), self.pace.bytes)
        return Version(
            version, tuple(coordinator.participants), coordinator.record.now, coordinator.orders,
            tuple(self.event_time.frontiers), tuple(self.event_time.seen), self._copy_ms(),
            self.log, self.placement, self.settings, self.conversion,
            coordinator.record.state_bytes if self.conversion.is_open else (), self._errors_left, self.jobs.form,
            self._shares,
        )  # fmt: skip

    def _copy_ms(self) -> dict[Share, float]:
        """For how long each worker may copy that is to."""
        given = self.coordinator.protocol.budget.copy_ms
        return {
            share: self.pace.allowed_ms(share) if given is None else given for share in self.coordinator.orders.copied
        }

    @property
    def _errors_left(self) -> int | None:
        return max(0, self.settings.errors - self.errors) if self.settings.on_error == "dead_letter" else None

    def _try(self, rows: Rows, version: Version) -> JobResult:
        """One attempt: one job, unless a worker's rows are too many to hand over at once, or several read an output.

        An operator whose rows are too many is run alone, in several waves of bins. Those that read what was emitted in
        such a job, or in one for several readers, come in a further job over that output.
        """
        results: list[JobResult] = []
        waiting = set(range(len(self.operators)))
        outputs: dict[int, Rows] = {}
        pieces: dict[int, Rows] = {}
        while True:
            operators, part = self._next_job(JobInput(rows, outputs, pieces), version, waiting, pieces)
            waiting -= set(operators)
            if not waiting or any(report.fault for report in part.reports):
                return _joined([*results, part])
            outputs[operators[-1]] = self._read(self.output(part, operators[-1]))
            results.append(replace(part, inline=()))

    def _next_job(
        self, input: JobInput, version: Version, waiting: Collection[int], pieces: dict[int, Rows]
    ) -> tuple[Sequence[int], JobResult]:
        """Run those of the operators that wait that can be one job, or one of them alone in waves."""
        for at in sorted(waiting):
            if at in pieces or not self.graph.is_ready(at, input.outputs):
                continue
            waves = self._waves(input, version, at)
            if len(waves) > 1:
                try:
                    return (at,), self._in_waves(input, waves, version, at)
                finally:
                    self.jobs.free(waves)
            pieces.update((at, each) for each in waves)
        operators = self.graph.job(waiting)
        return operators, self._run(input, version, operators, (0, 1))

    def _in_waves(self, input: JobInput, waves: Sequence[Rows], version: Version, operator: int) -> JobResult:
        inputs = [replace(input, pieces={operator: wave}) for wave in waves]
        return _joined([self._run(each, version, (operator,), (at, len(waves))) for at, each in enumerate(inputs)])

    def _waves(self, input: JobInput, version: Version, operator: int) -> Sequence[Rows]:
        """The rows of an operator as they can be handed over; none where nobody has to look at them.

        To look costs a job: only the first batch, one after larger ones, and one that was lost are looked at.
        """
        limit = self.settings.hand_over_bytes
        if self._largest_bytes is not None and self._largest_bytes * 8 <= limit:
            return []
        return self.jobs.waves(input, version.routing(operator), limit)

    def _read(self, output: OperatorOutput) -> Rows:
        try:
            return self.jobs.read(output)
        except OutputLost as loss:
            raise JobLost(str(loss)) from loss

    def _run(self, input: JobInput, version: Version, operators: Sequence[int], wave: tuple[int, int]) -> JobResult:
        self._count += 1  # waves are attempts of their own: their files must not share names
        epoch = self.log.epoch
        assert epoch is not None
        token = Token(epoch, version.number, self._count)
        job = Job(
            f"meander-{self.placement.run}-{epoch}-{version.number}-{self._count}",
            tuple(version.routing(operator) for operator in operators),
            tuple(version.controls(operator, token, wave) for operator in operators),
            version.places,
            version.fits,
        )
        return self.jobs.run(input, job)

    def _mend(self, reports: Sequence[TaskReport], version: int, batch: int) -> str | None:
        """What went wrong in an attempt, None if nothing; raises where another attempt would not help."""
        problem = None
        for report in reports:
            fault = report.fault
            if fault is None:
                continue
            if fault.kind not in RETRIED:
                where = f" in bin {fault.bin}" if fault.bin is not None else ""
                name = self.operators[report.operator].name
                way_out = self._way_out(fault.kind, batch)
                raise QueryFailed(
                    f"{name} (operator {report.operator}, worker {report.worker}){where} failed in version {version}: "
                    f"{fault.message}{way_out}\n{fault.trace}".rstrip()
                )
            problem = f"worker {report.worker}: {fault.message}"
            logger.warning("version %d, attempt %d: %s; trying again", version, self._count, problem)
            worker = WorkerId(report.worker)
            self.placement.holdings.doubt(report.operator, worker)
            if fault.kind == "place":
                self.placement.misplaced(worker)
        return problem

    def _way_out(self, kind: str, batch: int) -> str:
        """What to do about a function that raises, as the end of a sentence."""
        if kind == "errors":
            return f"; functions have now raised for more rows since the start than errors={self.settings.errors}"
        if kind != "user":
            return ""
        if self.settings.on_error == "dead_letter":
            return "; it does not raise for any key alone, so that none can be set aside: correct the function"
        last = self.log.last
        is_whole = last is None or batch > last.batch  # a version without rows has nothing to skip
        skipping = f" or skip_batch={batch}" if is_whole else ""
        return f"; correct the function, or start with on_error='dead_letter'{skipping}"

    def _check_errors(self, reports: Sequence[TaskReport], version: int) -> None:
        """Raise where functions have raised too often, all workers taken together."""
        count = self.errors + sum(report.errors for report in reports)
        if count > self.settings.errors:
            raise QueryFailed(
                f"with version {version} functions have raised for {many(count, 'row')} since the start, more than "
                f"errors={self.settings.errors}; correct the function, or start again, where the count begins anew"
            )

    def _is_whole(self, result: JobResult, version: int) -> bool:
        """Whether every worker of every operator has reported exactly once, for this attempt and each of its waves."""
        if any(report.fault for report in result.reports):
            return False
        seen = {(report.operator, report.token, report.worker) for report in result.reports}
        parts = {(report.operator, report.token) for report in result.reports}
        participants = self.coordinator.participants
        wanted = {(operator, token, worker) for operator, token in parts for worker in participants}
        once = len(seen) == len(result.reports)
        operators = {operator for operator, _ in parts}
        versions = {token.version for _, token in parts}
        return once and seen == wanted and versions == {version} and len(operators) == len(self.operators)


def _joined(results: Sequence[JobResult]) -> JobResult:
    """The results of the jobs of one attempt as one."""
    return JobResult(
        tuple(report for each in results for report in each.reports),
        tuple(table for each in results for table in each.inline),
        sum(each.planned_s for each in results),
    )
