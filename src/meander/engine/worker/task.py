"""What runs in a Python process of an executor: one worker of one operator, one attempt.

    take the lock -> check place and token -> catch up with the version before -> run the operator over it
    -> write delta, snapshot, output and side rows under names of this attempt -> report

Nothing written here counts until a manifest names it. A fault is reported, not raised: a Spark job fails only when a
process was lost.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from meander.engine.worker.bin_numbers import BinNumbers
from meander.engine.worker.catch_up import Converters, catch_up, copy_ahead
from meander.engine.worker.links import Link
from meander.engine.worker.messages import Control, Fault, Json, TaskReport, Token
from meander.engine.worker.operate import Operation, StrangeState, UserError
from meander.engine.worker.process import Host, spark_host
from meander.engine.worker.rows import Incoming, Outgoing, sort_out, table_of
from meander.errors import Damaged, MeanderError, NoSpace, WrongPlace
from meander.operators.custom import SIDE
from meander.operators.operator import BinnedOperator, Now
from meander.state.holding import Holding
from meander.state.spec import BIN
from meander.state.table import Table
from meander.store import files, statefile
from meander.store.convert import ConversionFailed
from meander.store.entries import FileRef, Kind, SnapshotRef
from meander.store.files import Attempt
from meander.store.location import Location
from meander.types import WorkerId

LOCK_WAIT_S = 60.0
TOKEN_BYTES = 128
"""What a token takes in the lock's file: always the same, so that one write replaces it."""
INLINE_STATE_BYTES = 8192
"""State files up to this size travel in the report and live in the manifest: one file less to write and to read."""


class Stale(MeanderError):
    """A later attempt has begun."""


@dataclass(frozen=True)
class OperatorTask:
    """What every worker of one operator is sent: the operator, its links, and the schema of the rows of each.

    `last` says that its output goes to the sink, or into a file for those that read it.
    """

    operator: BinnedOperator
    links: tuple[Link, ...]
    schemas: tuple[pa.Schema, ...]
    last: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Do the part of the one worker whose rows and control message Spark hands over in one row; before others."""
        (pair,) = [batch for batch in batches if batch.num_rows]
        chunks = handed_over(pair.column(0), len(self.links))
        outgoing, reports = self.run(Control.from_bytes(pair.column(1)[0].as_py()), self._reader(chunks), spark_host())
        yield from outgoing.batches(reports)

    def finish(self, _: int, messages: Iterator[bytes]) -> Iterator[bytes]:
        """Do the part of one worker as the last operator of a job.

        The first message is the control message, then come the Arrow chunks of each link, an empty message between two.
        """
        control = Control.from_bytes(next(messages))
        chunks: list[list[pa.Buffer]] = [[]]
        for message in messages:
            if message:
                chunks[-1].append(pa.py_buffer(message))
            else:
                chunks.append([])
        outgoing, reports = self.run(control, self._reader(chunks), spark_host())
        yield from outgoing.messages(reports)

    def _reader(self, chunks: Sequence[Sequence[pa.Buffer]]) -> Callable[[], list[pa.Table]]:
        return lambda: list(map(table_of, chunks, self.schemas))

    def run(self, control: Control, read: Callable[[], list[pa.Table]], host: Host) -> tuple[Outgoing, list[str]]:
        """Do one worker's part; a fault is reported, not raised. Gives its rows and the reports, its own last."""
        outgoing = Outgoing(self.operator, control, self.last)
        started = time.perf_counter()
        reports: list[str] = []
        try:
            if control.place != host.identity:
                raise WrongPlace(f"worker {control.worker} is meant for {control.place}, this is {host.identity}")
            incoming = sort_out(read(), self.operator, self.links)
            reports = incoming.reports
            if control.rehearsal:
                report = TaskReport(control.token, control.operator, control.worker, host.identity)
            else:
                report = self.attempt(control, incoming, outgoing, host, started)
        except Exception as problem:
            outgoing.clear()
            fault = fault_of(problem)
            report = TaskReport(control.token, control.operator, control.worker, host.identity, fault=fault)
        return outgoing, [*reports, report.to_text()]

    def attempt(
        self, control: Control, incoming: Incoming, outgoing: Outgoing, host: Host, started: float
    ) -> TaskReport:
        """Run the operator over the state of the version before, and write what it changed."""
        spent: dict[str, float] = {}
        watch = Stopwatch(spent, started)
        watch.lap("take")
        root = host.home(control.directory) / f"s{control.operator}-w{control.worker}"
        root.mkdir(0o700, exist_ok=True)
        owned = control.owned
        with sole(root, control.token):
            holding = Holding.open(root / "state", self.operator.tables, control.bins)
            location = checkpoint_at(control.checkpoint, control.fsync)
            converters = self.operator.converters
            todo = catch_up(holding, control, location, converters)
            watch.lap("catch_up")
            keys = self.operator.key.encode(incoming.key_columns)
            bins = keys.bins(control.bins)
            misrouted = int(np.count_nonzero(~owned[bins]))
            now = Now(control.token.version, control.frontier, control.previous)
            wave, waves = control.wave
            # Copies of bins that move are held too, and their timers are their owner's to fire.
            turn = owned & (np.arange(control.bins) % waves == wave)

            def begin() -> dict[str, Table]:
                tables = holding.begin()
                for table in tables.values():
                    table.restrict(turn)
                return tables

            operated = Operation(self.operator, begin, now, control.bins, control.errors).run(incoming, keys)
            answer, tables, dead = operated.output, operated.tables, operated.dead
            watch.lap("operate")
            deltas = {name: table.delta() for name, table in tables.items()}
            _refuse_strangers(self.operator, deltas, owned)
            watch.lap("delta")
            written = AttemptFiles(control, location)
            delta = written.delta(deltas)
            snapshot = written.snapshot(holding)
            side = written.side(dead=dead, late=answer.late)
            watch.lap("write")
            outgoing.add(answer.rows, root)
            watch.lap("output")
            copied, trouble = _copied(holding, todo.copy, control, location, converters)
            watch.lap("copy")
            mine, count = owned.nonzero()[0], control.bins
            return TaskReport(
                control.token, control.operator, control.worker, host.identity,
                rows=incoming.count, new_rows=incoming.new_rows, bytes=incoming.rows.nbytes,
                emitted=0 if answer.rows is None else answer.rows.num_rows,
                misrouted=misrouted,
                late=0 if answer.late is None else answer.late.num_rows,
                dead=dead.num_rows, errors=operated.errors,
                newest=answer.newest_by_input or (() if answer.newest is None else (answer.newest,)),
                delta=delta, snapshot=snapshot, side=side, output=outgoing.path,
                held=holding.held, copied=copied, trouble=trouble,
                loads=BinNumbers.count(bins, count),
                stored=tuple(BinNumbers.at(count, mine, holding.rows(name, mine)) for name in self.operator.stores),
                queued=_by_input(self.operator, incoming.rows, bins, count),
                state_rows=BinNumbers.at(count, mine, holding.rows(bin_ids=mine)),
                state_bytes=BinNumbers.at(count, mine, holding.bytes(mine)),
                spent_ms=watch.done(),
            )  # fmt: skip


def handed_over(column: pa.Array, links: int) -> list[list[pa.Buffer]]:
    """The chunks of each link: the lists of several are pairs of pairs, the first ones innermost."""
    lists = []
    for _ in range(links - 1):
        lists.append(column.field(1)[0].values)
        column = column.field(0)
    return [[chunk.as_buffer() for chunk in chunks] for chunks in (column[0].values, *reversed(lists))]


@lru_cache(maxsize=8)
def checkpoint_at(uri: str, fsync: bool) -> Location:
    """The checkpoint that a control message names."""
    return Location.of(uri, fsync=fsync)


class Stopwatch:
    """Where the milliseconds of a task go."""

    def __init__(self, spent: dict[str, float], started: float) -> None:
        self.spent, self.started, self.last = spent, started, started

    def lap(self, name: str) -> None:
        """Book the time since the last lap under this name."""
        now = time.perf_counter()
        self.spent[name] = round((now - self.last) * 1000, 3)
        self.last = now

    def done(self) -> dict[str, float]:
        """All laps, and the whole as "busy"."""
        return {**self.spent, "busy": round((self.last - self.started) * 1000, 3)}


class AttemptFiles:
    """The files of one attempt: small ones travel in the report, others go under a name that only this attempt has."""

    def __init__(self, control: Control, location: Location) -> None:
        self.control, self.location = control, location
        token, self.worker = control.token, WorkerId(control.worker)
        self.attempt = Attempt(token.version, control.operator, self.worker, token.epoch, token.attempt)

    def delta(self, tables: Mapping[str, pa.Table]) -> Json | None:
        """Write what the version changed; None when that is nothing."""
        if not any(table.num_rows for table in tables.values()):
            return None
        return self._state("deltas", statefile.write(tables, self.control.bins)).to_json()

    def snapshot(self, holding: Holding) -> Json | None:
        """Write the snapshot that is due, of the version before; it speaks of empty bins too."""
        if self.control.snapshot is None:
            return None
        due = np.flatnonzero(self.control.snapshot)
        file = statefile.write(holding.extract(due), self.control.bins, covers=due)
        return SnapshotRef(self._state("snapshots", file), self.attempt.version - 1).to_json()

    def _state(self, what: str, file: statefile.StateFile) -> FileRef:
        return files.store(self.location, self.attempt.path(what), file, self.worker, INLINE_STATE_BYTES)

    def side(self, **rows: pa.Table | None) -> tuple[Json, ...]:
        """Write rows that took another way, each kind to a file of its own."""
        kinds: tuple[Kind, ...] = ("dead", "late")
        refs = []
        for kind in kinds:
            table = rows[kind]
            if table is not None and table.num_rows:
                path = self.attempt.path(kind)
                refs.append(files.store_side(self.location, path, table, self.worker, kind).to_json())
        return tuple(refs)


def _copied(
    holding: Holding, bins: NDArray[np.int64], control: Control, location: Location, converters: Converters
) -> tuple[int, str | None]:
    """How many bins were copied ahead, and why not more; what goes wrong with it hurts the migration, not the batch."""
    try:
        return copy_ahead(holding, bins, control, location, converters), None
    except (MeanderError, OSError) as problem:
        return 0, f"worker {control.worker} could not copy: {problem}"


def _by_input(operator: BinnedOperator, rows: pa.Table, bins: NDArray[np.int32], count: int) -> tuple[BinNumbers, ...]:
    """How many rows of each input each bin has got, where there are several."""
    if not operator.stores:
        return ()
    side = rows[SIDE].to_numpy()
    return tuple(BinNumbers.count(bins[side == at], count) for at in range(len(operator.stores)))


def _refuse_strangers(operator: BinnedOperator, deltas: Mapping[str, pa.Table], owned: NDArray[np.bool_]) -> None:
    """Refuse state of a bin that another worker owns: an operator may only write under keys of its own rows."""
    for name, delta in deltas.items():
        bins = delta[BIN].to_numpy()
        strange = bins[~owned[bins]]
        if strange.size:
            reason = f"it wrote to table {name!r} under a key of bin {strange[0]}, which another worker owns"
            raise StrangeState(f"{reason}; write state only under keys of the rows and timers given", int(strange[0]))


def fault_of(problem: Exception) -> Fault:
    """How an exception is told to the driver."""
    kinds = {WrongPlace: "place", Stale: "stale", NoSpace: "space", Damaged: "damaged"}
    kind = next((name for error, name in kinds.items() if isinstance(problem, error)), "other")
    kind = getattr(problem, "fault", kind)
    if isinstance(problem, UserError):
        return Fault(kind, str(problem), problem.trace, problem.bin)
    if isinstance(problem, ConversionFailed):
        return Fault("user", str(problem))
    trace = "" if isinstance(problem, MeanderError) else traceback.format_exc()
    return Fault(kind, f"{type(problem).__name__}: {problem}", trace)


@contextmanager
def sole(root: Path, token: Token) -> Iterator[None]:
    """Be the only task in this worker's folder, and of no earlier attempt than any that was here.

    The lock goes with the process that holds it, however that ends. A task of an earlier attempt that still runs
    keeps it: the later one waits, because two must never touch one base.
    """
    lock = os.open(root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + LOCK_WAIT_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise Stale(f"another task has held {root.name} for {LOCK_WAIT_S:.0f} s") from None
                time.sleep(0.005)
        seen = os.pread(lock, TOKEN_BYTES, 0)
        if seen.strip() and Token(*json.loads(seen)) > token:
            raise Stale(
                f"attempt {token} of {root.name} is older than attempt {seen.decode().strip()}, which has begun"
            )
        os.pwrite(lock, json.dumps(token).ljust(TOKEN_BYTES).encode(), 0)
        yield
    finally:
        os.close(lock)
