"""A count over one checkpoint and one folder of output, whose drivers die where a test says."""

from __future__ import annotations

import random
from collections import Counter, defaultdict

import pyarrow.dataset
import pyarrow.parquet as pq

import meander as me
from kills import Killed
from meander.clock import ManualClock
from meander.engine.driver.run import QueryRun
from meander.engine.driver.settings import Settings
from meander.sinks import Files
from meander.store.location import Location
from meander.testing.inprocess import InProcessCluster, InProcessJobs
from meander.testing.stream import InProcessLaunch
from streams import as_ints


class TableFiles(Files):
    """The files sink over tables, which notes every call; by wish the driver dies in a call."""

    def __init__(self, path):
        super().__init__(str(path), "parquet", {})
        self.calls = defaultdict(list)
        self.dies_in = None

    def prepare(self, output, write):
        self.calls[write.version].append(sorted(map(repr, output.to_pylist())))
        if self.dies_in == "prepare":
            self.dies_in = None
            raise Killed
        return super().prepare(output, write)

    def save(self, output, folder, write):
        folder.mkdir(parents=True)
        pq.write_table(output, folder / "part-0.parquet")

    def commit(self, token):
        if self.dies_in == "commit":
            self.dies_in = None
            raise Killed
        super().commit(token)


class Case:
    """A count over one checkpoint and one folder of output, for several drivers in this process."""

    def __init__(self, folder, seed=1, batches=12, **settings):
        rng = random.Random(seed)
        self.folder, self.checkpoint = folder, folder / "ck"
        self.batches = [as_ints([rng.randrange(9) for _ in range(20)]) for _ in range(batches)]
        self.settings = settings
        self.sink = TableFiles(folder / "out")
        self.drivers = 0
        self.run = None

    def start(self):
        self.drivers += 1
        operators = [node.operator for node in me.stream(me.testing.source("key bigint")).key_by("key").count().nodes]
        cluster = InProcessCluster(self.folder / f"executors{self.drivers}", 2)
        jobs = InProcessJobs(operators, self.batches[0].schema, cluster, self.sink)
        chosen = Settings(str(self.checkpoint), 2, **{"bins": 8, "copy_ms": 1e9, **self.settings})
        launch = InProcessLaunch(
            operators, Location.of(self.checkpoint), cluster, jobs, chosen, ManualClock(), 2, f"d{self.drivers}"
        )
        self.run = QueryRun(launch)
        return self

    def put(self, count=1):
        for _ in range(count):
            self.run.stream.put(self.batches[self.run.stream.next_batch])
        return self

    def rollback(self, to, **options):
        return me.checkpoint(self.checkpoint).rollback(to, take_over=True, **options)

    def state(self):
        rows = me.checkpoint(self.checkpoint).to_arrow("count").to_pylist()
        return {row["key"]: row["count"] for row in rows}

    def recount(self, batches):
        return dict(Counter(key for batch in self.batches[:batches] for key in batch["key"].to_pylist()))

    def shown(self):
        """What a plain reader finds in the folder: the rows of each version."""
        rows = defaultdict(dict)
        for row in pyarrow.dataset.dataset(self.folder / "out", partitioning="hive").to_table().to_pylist():
            assert row["key"] not in rows[row["batch"]]
            rows[row["batch"]][row["key"]] = row["count"]
        return [rows[version] for version in sorted(rows)]

    def emitted(self, batches):
        """What a count emits with each batch."""
        so_far, emitted = Counter(), []
        for batch in self.batches[:batches]:
            keys = batch["key"].to_pylist()
            so_far.update(keys)
            emitted.append({key: so_far[key] for key in set(keys)})
        return emitted

    def check(self, batches):
        """State, output, numbers and files are as if nothing had ever been undone."""
        assert self.state() == self.recount(batches)
        assert self.shown() == self.emitted(batches)
        for number, calls in self.sink.calls.items():
            assert all(call == calls[0] for call in calls), f"number {number} came with other rows"
        findings = me.checkpoint(self.checkpoint).verify()
        assert not findings.damaged
