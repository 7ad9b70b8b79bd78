"""One query of the soak as it is seen from outside: its rows, what must come of them, and whether it came.

Batches are expected when they are fed, compared when the sink shows them, and then forgotten, with their files. What is
kept in memory is the open windows or the rows of the last minute, and the batches that the sink has not shown yet.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter, deque
from dataclasses import dataclass
from pathlib import Path

from fault.matrix.oracle import check_disk, difference, in_file, rows_of
from fault.matrix.recounts import Batch, JoinedPairs, Rows, WindowCounts
from fault.matrix.workloads import BATCH_S, BalancedJoin, Sliding
from meander.store.files import attempt_of
from meander.store.location import Location
from meander.store.manifest import Log
from meander.store.retention import sweep
from streams import Feed, side_of, state_of

AHEAD = 10
"""No more is fed while so many batches wait to be shown by the sink."""
KEPT = 40
"""So many versions of the output stay, and so many files of the input."""
RETAIN, SNAPSHOT_EVERY, SWEEP_EVERY, RETAIN_SIDE = 10, 8, 16, 100


class Windows(Sliding):
    """Sliding windows, with more keys and rows than a cell of the matrix has."""

    keys, rows = 3000, 1000


class Pairs(BalancedJoin):
    """A join that forgets rows after a minute or so."""

    CELLS = 150
    rows, lateness_s = 300, 60

    def recount(self) -> JoinedPairs:
        """One that takes batch after batch."""
        return JoinedPairs(self.WITHIN_S, keep_s=self.lateness_s + self.WITHIN_S + 3 * BATCH_S)


QUERIES: dict[str, Windows | Pairs] = {"windows": Windows(), "join": Pairs()}


@dataclass
class Due:
    """What must come of one batch still: rows, and so many late ones."""

    rows: Rows
    late: int


class Audit:
    """Feeds one query, and compares what its sink shows with a recount."""

    def __init__(self, name: str, root: Path, seed: int) -> None:
        self.name, self.root, self.workload = name, root / name, QUERIES[name]
        self.out, self.checkpoint = self.root / "out", self.root / "ck" / "q"
        self.recount = self.workload.recount()
        self.fed = self.rows = self.late = 0
        """Batches that were fed, rows that were compared, and rows that came late."""
        self.version = -1
        """The newest version that was compared."""
        self.due: deque[Due] = deque()
        self._rng = random.Random(f"{seed}/{name}")
        self.feeds = [Feed(self.root / f"in{at}", schema) for at, schema in enumerate(self.workload.inputs)]
        self._shown: dict[int, tuple[int, int]] = {}
        self._late: dict[int, int] = {}

    @property
    def is_behind(self) -> bool:
        """Whether too much waits to be shown."""
        return len(self.due) >= AHEAD

    def feed(self) -> None:
        """Feed one batch more, and forget files that were read long ago."""
        batch: Batch = self.workload.batch(self._rng, self.fed)
        before = self.recount.late
        rows = self.recount.add(batch)
        self.due.append(Due(rows, self.recount.late - before))
        for feed, side in zip(self.feeds, batch, strict=True):
            feed.add(side)
            (feed.folder / f"{self.fed - KEPT:06d}.parquet").unlink(missing_ok=True)
        self.fed += 1

    def look(self) -> int:
        """Compare the versions that have appeared, and return how many there were."""
        folders = {int(each.name[6:]): each for each in self.out.glob("batch=*")}
        fresh = sorted(folders.keys() - self._shown.keys())
        for number in fresh:
            assert number > self.version, f"{self.name}: version {number} appears after version {self.version}"
            folder = folders[number]
            assert (folder / "_SUCCESS").exists(), f"{self.name}: version {number} is not whole"
            found = sum((in_file(each, self.workload.columns) for each in folder.glob("*.parquet")), Counter())
            self._shown[number], self.version = _signature(folder), number
            if found:
                self._compare(found, number)
                self.rows += found.total()
        for number in sorted(self._shown)[:-KEPT]:
            self._check_untouched(number)
            shutil.rmtree(folders[number])
            del self._shown[number]
        return len(fresh)

    def _compare(self, found: Rows, number: int) -> None:
        if self.workload.is_by_batch:
            assert self.due, f"{self.name}: version {number} has rows that no batch explains"
            due = self.due.popleft()
            assert found == due.rows, f"{self.name}: version {number}: {difference(found, due.rows)}"
            self._late[number] = due.late
            self._late.pop(number - 2 * RETAIN_SIDE, None)
            self.late += due.late
            return
        # Spark reads the sides one by one: what a batch makes may come with several versions.
        for due in self.due:
            common = found & due.rows
            found, due.rows = found - common, due.rows - common
        assert not found, f"{self.name}: version {number} has {found.total()} rows too many: {next(iter(found))}"
        while self.due and not self.due[0].rows:
            self.due.popleft()

    def _check_untouched(self, number: int) -> None:
        now = _signature(self.out / f"batch={number}")
        assert now == self._shown[number], f"{self.name}: version {number} was written again after it was shown"

    def check_end(self) -> None:
        """Everything was shown, the state is what a recount has, and nothing is left over."""
        self.look()
        missing = sum(due.rows.total() for due in self.due)
        assert not self.due, f"{self.name}: {missing} rows of {len(self.due)} batches were never shown"
        for number in self._shown:
            self._check_untouched(number)
        self._check_state()
        self._check_late()
        check_swept(Location.of(str(self.checkpoint)))
        check_disk(self.root, self.checkpoint)

    def _check_state(self) -> None:
        for (operator, table), columns in self.workload.state.items():
            found = rows_of(state_of(self.checkpoint, operator, table), columns)
            if isinstance(self.recount, WindowCounts):
                assert found == self.recount.kept, f"{self.name}: state: {difference(found, self.recount.kept)}"
                continue
            # A join keeps what a row that is not late can match, and some seconds more.
            side = ("left", "right").index(str(table))
            needed_s = self.recount.newest - self.workload.lateness_s - self.workload.WITHIN_S
            needed, known = (self.recount.since(each, side) for each in (needed_s, needed_s - 2 * BATCH_S))
            assert needed <= found <= known, (
                f"{self.name}: state of the {table} side: {difference(found, needed)}; of older rows "
                f"{(found - known).total()} are there"
            )

    def _check_late(self) -> None:
        found = Counter(row["version"] for row in side_of(self.checkpoint, "late"))
        last = Log.open(Location.of(str(self.checkpoint))).last  # which may be a tick, and so not in the sink
        assert last is not None
        oldest = last.version - RETAIN_SIDE + 1
        wanted = {number: late for number, late in self._late.items() if late and number >= oldest}
        kept = {number: late for number, late in found.items() if number >= oldest}
        assert kept == wanted, f"{self.name}: late rows by version are {kept}, and came as {wanted}"


def _signature(folder: Path) -> tuple[int, int]:
    found = folder.stat()
    return found.st_ino, found.st_mtime_ns


def check_swept(location: Location) -> None:
    """The last sweep of the query has left nothing that was not needed then, and no file has a foreign name."""
    log = Log.open(location)
    assert log.last is not None
    # What became superfluous since the last sweep was needed by a version that was kept then, or failed since.
    oldest = log.last.version - SWEEP_EVERY - RETAIN - SNAPSHOT_EVERY - 1
    swept = [attempt for path in sweep(location, log, RETAIN) if (attempt := attempt_of(path))]
    left = [attempt for attempt in swept if attempt.version < oldest]
    assert not left, f"files of versions before {oldest} were left: {left[:3]}"
    root = Path(location.root)
    named = {path.relative_to(root).parts[0] for path in root.rglob("*") if path.is_file()}
    assert named <= {"manifests", "deltas", "snapshots", "side", "spark", "meander.json"}, named
    assert [path for path in root.rglob("*.tmp") if "spark" not in path.parts] == []
