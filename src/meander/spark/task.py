"""What runs in a Python process of an executor: one worker of one stage, one attempt.

    take the lock -> check place and token -> bring the base to the version before -> run the operator over it
    -> write delta, snapshot, output and side rows under names of this attempt -> report

Nothing written here counts until a manifest names it. A fault is reported, not raised: a Spark job fails only when a
process was lost.
"""

from __future__ import annotations

import fcntl
import json
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from meander.checkpoint import files, statefile
from meander.checkpoint.entries import FileRef, Json, Kind, SnapshotRef
from meander.checkpoint.files import Attempt
from meander.checkpoint.location import Location
from meander.errors import Damaged, MeanderError, NoSpace, WrongPlace
from meander.operators.custom import SIDE
from meander.operators.failing import failing_bin
from meander.operators.operator import Now, Stage
from meander.spark import here
from meander.spark.bring import bring_forward, copy_ahead
from meander.spark.incoming import Incoming, taken_apart
from meander.spark.messages import Control, Fault, Report, Token, numbers, packed, unpacked
from meander.spark.outgoing import Outgoing
from meander.state.holding import Holding
from meander.state.spec import BIN
from meander.state.table import Table
from meander.types import WorkerId

LOCK_WAIT_S = 60.0
INLINE_STATE_BYTES = 8192
"""State files up to this size travel in the report and live in the manifest: one file less to write and to read."""


class Stale(MeanderError):
    """A later attempt has begun."""


class UserError(MeanderError):
    """The user's function raised."""

    def __init__(self, trace: str, bin_: int | None) -> None:
        super().__init__(trace.strip().rsplit("\n", 1)[-1])
        self.trace, self.bin = trace, bin_


@dataclass(frozen=True)
class Work:
    """What every task of one stage is sent: its operator and the schema of the rows it takes."""

    stage: Stage
    takes: pa.Schema
    last: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Do the work of the one worker whose rows and control message these are."""
        (handed,) = [batch for batch in batches if batch.num_rows]
        control = Control.from_bytes(handed.column(1)[0].as_py())
        outgoing = Outgoing(self.stage, control, self.last)
        started = time.perf_counter()
        reports: list[str] = []
        try:
            if control.place != here.here():
                raise WrongPlace(f"worker {control.worker} is meant for {control.place}, this is {here.here()}")
            incoming = taken_apart(handed.column(0)[0].values, self.takes, self.stage)
            reports = incoming.reports
            if control.rehearsal:
                report = Report(control.token, control.stage, control.worker, here.here())
            else:
                report = self.attempt(control, incoming, outgoing, started)
        except Exception as problem:
            outgoing.clear()
            fault = fault_of(problem)
            report = Report(control.token, control.stage, control.worker, here.here(), fault=fault)
        yield from outgoing.batches([*reports, report.to_text()])

    def attempt(self, control: Control, incoming: Incoming, outgoing: Outgoing, started: float) -> Report:
        """Run the operator over the state of the version before, and write what it changed."""
        spent: dict[str, float] = {}
        watch = Stopwatch(spent, started)
        watch.lap("take")
        root = here.home(control.directory) / f"s{control.stage}-w{control.worker}"
        root.mkdir(parents=True, exist_ok=True)
        owned = unpacked(control.owned, control.bins)
        with sole(root, control.at):
            holding = Holding.open(root / "state", self.stage.tables, control.bins)
            location = Location.of(control.checkpoint, fsync=control.fsync)
            todo = bring_forward(holding, control, location)
            watch.lap("bring")
            keys = self.stage.key.encode(incoming.key_columns)
            bins = keys.bins(control.bins)
            misrouted = int(np.count_nonzero(~owned[bins]))
            now = Now(control.at.version, control.frontier, control.previous)
            wave, waves = control.wave
            # Copies of bins that move are held too, and their timers are their owner's to fire.
            turn = owned & (np.arange(control.bins) % waves == wave)

            def begin() -> dict[str, Table]:
                tables = holding.begin()
                for table in tables.values():
                    table.restrict(turn)
                return tables

            tables = begin()
            try:
                answer = self.stage.run(incoming.rows, keys, tables, now)
            except Exception:
                trace = traceback.format_exc()
                found = failing_bin(self.stage, incoming.rows, keys, begin, now, control.bins)
                raise UserError(trace, found) from None
            watch.lap("operate")
            deltas = {name: table.delta() for name, table in tables.items()}
            _refuse_strangers(self.stage, deltas, owned)
            watch.lap("delta")
            written = Writing(control, location)
            delta = written.delta(deltas)
            snapshot = written.snapshot(holding)
            side = written.side(dead=incoming.dead, late=answer.late)
            watch.lap("write")
            outgoing.add(answer.rows, root)
            watch.lap("output")
            copied, trouble = _copied(holding, todo.copy, control, location)
            watch.lap("copy")
            return Report(
                control.token, control.stage, control.worker, here.here(),
                rows=incoming.rows.num_rows, bytes=incoming.rows.nbytes,
                emitted=0 if answer.rows is None else answer.rows.num_rows,
                misrouted=misrouted,
                late=0 if answer.late is None else answer.late.num_rows,
                dead=0 if incoming.dead is None else incoming.dead.num_rows,
                newest=answer.newest_by_input or (() if answer.newest is None else (answer.newest,)),
                delta=delta, snapshot=snapshot, side=side, output=outgoing.path,
                held=packed(holding.held), copied=copied, trouble=trouble,
                loads=numbers(np.bincount(bins, minlength=control.bins)),
                stored=tuple(numbers(holding.rows(name) * owned) for name in self.stage.stores),
                queued=_by_input(self.stage, incoming.rows, bins, control.bins),
                state_rows=numbers(holding.rows() * owned), state_bytes=numbers(holding.bytes() * owned),
                spent_ms=watch.done(),
            )  # fmt: skip


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


class Writing:
    """The files of one attempt: small ones travel in the report, others go under a name that only this attempt has."""

    def __init__(self, control: Control, location: Location) -> None:
        self.control, self.location = control, location
        at, self.worker = control.at, WorkerId(control.worker)
        self.attempt = Attempt(at.version, control.stage, self.worker, at.epoch, at.attempt)

    def delta(self, tables: Mapping[str, pa.Table]) -> Json | None:
        """Write what the version changed; None when that is nothing."""
        if not any(table.num_rows for table in tables.values()):
            return None
        return self._state("deltas", statefile.write(tables, self.control.bins)).to_json()

    def snapshot(self, holding: Holding) -> Json | None:
        """Write the snapshot that is due, of the version before; it speaks of empty bins too."""
        if self.control.snapshot is None:
            return None
        due = np.flatnonzero(unpacked(self.control.snapshot, self.control.bins))
        made = statefile.write(holding.extract(due), self.control.bins, covers=due)
        return SnapshotRef(self._state("snapshots", made), self.attempt.version - 1).to_json()

    def _state(self, what: str, made: statefile.StateFile) -> FileRef:
        return files.store(self.location, self.attempt.path(what), made, self.worker, INLINE_STATE_BYTES)

    def side(self, **rows: pa.Table | None) -> tuple[Json, ...]:
        """Write rows that took another way, each kind to a file of its own."""
        kinds: tuple[Kind, ...] = ("dead", "late")
        refs = []
        for kind in kinds:
            found = rows[kind]
            if found is not None and found.num_rows:
                path = self.attempt.path(kind)
                refs.append(files.store_side(self.location, path, found, self.worker, kind).to_json())
        return tuple(refs)


def _copied(holding: Holding, bins: NDArray[np.int64], control: Control, location: Location) -> tuple[int, str | None]:
    """How many bins were copied ahead, and why not more; what goes wrong with it hurts the migration, not the batch."""
    try:
        return copy_ahead(holding, bins, control, location), None
    except (MeanderError, OSError) as problem:
        return 0, f"worker {control.worker} could not copy: {problem}"


def _by_input(stage: Stage, rows: pa.Table, bins: NDArray[np.int32], count: int) -> tuple[str, ...]:
    """How many rows of each input each bin has got, where there are several."""
    if not stage.stores:
        return ()
    side = rows[SIDE].to_numpy()
    return tuple(numbers(np.bincount(bins[side == at], minlength=count)) for at in range(len(stage.stores)))


def _refuse_strangers(stage: Stage, deltas: Mapping[str, pa.Table], owned: NDArray[np.bool_]) -> None:
    """Refuse state of a bin that another worker owns: an operator may only write under keys of its own rows."""
    for name, delta in deltas.items():
        bins = delta[BIN].to_numpy()
        strange = bins[~owned[bins]]
        if strange.size:
            reason = f"it wrote to table {name!r} under a key of bin {strange[0]}, which another worker owns"
            raise UserError(f"{reason}; write state only under keys of the rows and timers given", int(strange[0]))


def fault_of(problem: Exception) -> Fault:
    """How an exception is told to the driver."""
    kinds = {UserError: "user", WrongPlace: "place", Stale: "stale", NoSpace: "space", Damaged: "damaged"}
    kind = next((name for error, name in kinds.items() if isinstance(problem, error)), "other")
    kind = getattr(problem, "fault", kind)
    if isinstance(problem, UserError):
        return Fault(kind, str(problem), problem.trace, problem.bin)
    trace = "" if isinstance(problem, MeanderError) else traceback.format_exc()
    return Fault(kind, f"{type(problem).__name__}: {problem}", trace)


@contextmanager
def sole(root: Path, token: Token) -> Iterator[None]:
    """Be the only task in this worker's folder, and of no earlier attempt than any that was here.

    The lock goes with the process that holds it, however that ends. A task of an earlier attempt that still runs
    keeps it: the later one waits, because two must never touch one base.
    """
    with (root / "lock").open("a+") as lock:
        deadline = time.monotonic() + LOCK_WAIT_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise Stale(f"another task has held {root.name} for {LOCK_WAIT_S:.0f} s") from None
                time.sleep(0.005)
        lock.seek(0)
        seen = lock.read()
        if seen and Token(*json.loads(seen)) > token:
            raise Stale(f"attempt {token} of {root.name} is older than attempt {seen}, which has begun")
        lock.seek(0)
        lock.truncate()
        lock.write(json.dumps(token))
        lock.flush()
        yield
