"""Support for tests of the native engine without Spark: executors, state partitions and batches, made by hand."""

from __future__ import annotations

import json
import threading
from types import SimpleNamespace

from meander.attached import Attached
from meander.engine.spark.gateway import Executor
from meander.native.batches import BatchWatch
from meander.native.engine import NativeEngine
from meander.native.placement import StatePlacement
from meander.native.stores import Backlog, StatefulOperator
from streams import wait_until

RUN, QUERY = "run-1", "query-1"


def stage_event(number, batch, rdds="StateStoreRDD", tasks=2, query=QUERY, attempt=0, failed=False):
    """A stage that was submitted, or is completed."""
    properties = {"sql.streaming.queryId": query, "streaming.sql.batchId": str(batch)}
    info = SimpleNamespace(
        stageId=lambda: number, numTasks=lambda: tasks, rddInfos=lambda: SimpleNamespace(mkString=lambda _: rdds),
        attemptNumber=lambda: attempt, failureReason=lambda: SimpleNamespace(isDefined=lambda: failed),
    )  # fmt: skip
    return SimpleNamespace(properties=lambda: SimpleNamespace(getProperty=properties.get), stageInfo=lambda: info)


def task_event(stage, index, executor="1", ms=10, rows=5, metric=7, updated=2, size=100, **info):
    """A task that has ended."""
    numbers = {
        "number of total state rows": rows,
        "number of updated state rows": updated,
        "memory used by state": size,
    }
    listed = [{"ID": metric + at, "Name": name, "Update": str(n)} for at, (name, n) in enumerate(numbers.items())]
    fields = {
        "Task Info": {
            "Failed": False, "Killed": False, "Executor ID": executor, "Index": index, "Locality": "PROCESS_LOCAL",
            "Speculative": False, "Accumulables": listed, **info,
        },
        "Task Metrics": {"Executor Run Time": ms},
    }  # fmt: skip
    return SimpleNamespace(stageId=lambda: stage, fields=fields)


def other_event(kind, **fields):
    """An event of streaming."""
    return SimpleNamespace(
        getClass=lambda: SimpleNamespace(getSimpleName=lambda: kind),
        progress=lambda: SimpleNamespace(json=lambda: json.dumps(fields)),
        runId=lambda: SimpleNamespace(toString=lambda: fields.get("runId")),
    )


def progress_event(batch, took=100, run=RUN, rate=50.0, rows=5):
    """A batch that has ended."""
    return other_event(
        "QueryProgressEvent", runId=run, batchId=batch, numInputRows=rows, inputRowsPerSecond=rate,
        durationMs={"triggerExecution": took},
    )  # fmt: skip


class PlainSpark:
    """One query on executors: `Internals` and `Gateway` in one, whose batches run where the state is said to be."""

    checkpoint = "/nowhere"
    trigger_ms = 0.0
    is_elastic = False
    is_between_batches = False
    is_quiet = True
    takes_snapshots_on_request = True
    local = False
    context = None

    def __init__(self, executors=3, partitions=6, skew=None) -> None:
        self.alive = {str(each): 1 for each in range(executors)}
        """Cores of each executor."""
        self.places = dict.fromkeys(range(partitions), "0")
        self.skew = skew or {}
        """How many rows of a batch a partition has, where not 10."""
        self.total = executors
        self.can_grow = True
        self.is_active = True
        self.wait = "3s"
        self.batch = -1
        self.steered: list[tuple[int, str]] = []
        self.refuses: set[tuple[int, str]] = set()
        """Partitions that do not follow to an executor."""
        self.gateway, self.spark = self, SimpleNamespace(streams=SimpleNamespace(active=[]))
        self.name = "words"
        self.query = SimpleNamespace(id=QUERY, runId=RUN, name="words", isActive=True)
        self.operators = (StatefulOperator(0, "count", ("default",), partitions, 0),)
        self.lock = threading.RLock()
        self._stopped = threading.Event()
        self._pump = threading.Thread(target=self._pour, daemon=True)

    # --- batches ---------------------------------------------------------------------------

    def __enter__(self):
        self.watch = BatchWatch(self, self.operators)
        self.placement = StatePlacement(self, self.operators, self.watch)
        self.engine = NativeEngine(self.placement)
        self.attached = Attached(self.engine, False, None)
        self.run_batch()
        self.run_batch()
        self._pump.start()
        return self

    def __exit__(self, *_):
        self._stopped.set()
        self._pump.join()
        self.attached.detach()

    def _pour(self):
        while not self._stopped.wait(0.005):
            if self.is_active:
                self.run_batch()

    def run_batch(self):
        """One batch: every partition runs where it is, or somewhere else if that executor is gone."""
        with self.lock:
            self.batch += 1
            count = len(self.places)
            self.listener.onStageSubmitted(stage_event(self.batch, self.batch, tasks=count))
            for number in self.places:
                if self.places[number] not in self.alive:
                    self.places[number] = min(self.alive)
                rows = self.skew.get(number, 10)
                task = task_event(
                    self.batch, number, self.places[number], ms=rows, rows=100, updated=rows, size=1000 + number
                )
                self.listener.onTaskEnd(task)
            self.listener.onStageCompleted(stage_event(self.batch, self.batch, tasks=count))
            self.listener.onOtherEvent(progress_event(self.batch, took=20))

    def stop(self):
        """End the query."""
        self.is_active = self.query.isActive = False
        self.listener.onOtherEvent(other_event("QueryTerminatedEvent", runId=RUN))

    def lose(self, executor):
        """An executor is gone."""
        del self.alive[executor]
        event = SimpleNamespace(executorId=lambda: executor, reason=lambda: "killed\nby a test")
        self.listener.onExecutorRemoved(event)

    def wait_batches(self, count):
        """Until so many more batches have ended."""
        target = self.watch.batch + count
        wait_until(lambda: self.watch.batch >= target, f"batch {target}")

    # --- what the native engine asks of Spark ------------------------------------------------

    @property
    def last_planned(self):
        return self.batch

    def listen(self, listener):
        self.listener = listener
        return lambda: None

    def as_json(self, event):
        return json.dumps(event.fields)

    def place(self, operators, number):
        return self.places[number]

    def steer(self, operators, number, executor):
        with self.lock:
            self.steered.append((number, executor.id))
            if (number, executor.id) not in self.refuses:
                self.places[number] = executor.id

    def backlog(self, operators, number):
        return Backlog(0, 0, 0)

    def warm(self, operator, number, executor):
        pass

    def executor_ids(self):
        return ",".join(sorted(self.alive))

    def executors(self):
        return [Executor(each, f"host-{each}", cores, True) for each, cores in self.alive.items()]

    def request_executors(self, total):
        self.total = total
        if self.can_grow:
            while len(self.alive) < total:
                self.alive[str(max(map(int, self.alive)) + 1)] = 1

    def release_executors(self, executors):
        for each in executors:
            self.alive.pop(each)

    def locality_wait(self):
        return self.wait

    def set_locality_wait(self, wait):
        self.wait = wait

    def seconds(self, duration):
        return float(duration.removesuffix("s"))
