"""What a query does, batch by batch: where each state partition ran, for how long, and how much state it has.

Spark tells it through its listeners; nothing is asked of the query, and it waits for nobody here.
"""

from __future__ import annotations

import atexit
import json
import math
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from meander.clock import Clock, SystemClock
from meander.control.window import Sample
from meander.logs import logger
from meander.native.internals import Internals
from meander.native.stores import BatchRun, Partition, StatefulOperator, TaskRun
from meander.types import WorkerId

REMEMBERED = 500
MAX_SAMPLES = 64
RECENT = 0.3
"""The weight of the last batch in the time of a partition: plans are made with it, and one batch is chance."""

CLOSELY = 64
"""So many tasks are looked at in every batch; with more, every second batch, every third, and so on."""

_STATEFUL = ("StateStoreRDD", "ReadStateStoreRDD", "StateStoreAwareZipPartitionsRDD")
_NUMBERS = {
    "number of total state rows": "rows",
    "number of updated state rows": "updated",
    "number of removed state rows": "removed",
    "memory used by state": "state_bytes",
    "count of cache miss on states cache in provider": "loads",
}


class BatchWatch:
    """The last batches of one run of a query, and what is known of its partitions."""

    def __init__(self, internals: Internals, operators: Sequence[StatefulOperator], clock: Clock | None = None) -> None:
        self._internals, self._clock = internals, clock or SystemClock()
        self._query, self._run = internals.query.id, internals.query.runId
        self._groups = sorted({each.group for each in operators})
        self.partitions = {group: max(o.partitions for o in operators if o.group == group) for group in self._groups}
        self.odd_tasks: int | None = None
        """How many tasks a stage with state had, where that is not one for each partition."""
        self.is_close = False
        """Look at every task of every batch, however many there are: somebody needs to know where they run."""
        self.batches: deque[BatchRun] = deque(maxlen=REMEMBERED)
        self.newest = BatchRun(-1, 0.0, 0.0, 0)
        """The last batch whose state partitions have all been served, though it may not have ended yet."""
        self.last: dict[Partition, tuple[int, TaskRun]] = {}
        self.ms: dict[Partition, float] = {}
        self.ended = threading.Event()
        self.on_lost: Callable[[str, str], None] = lambda executor, why: None
        """Called with an executor that is gone, and why."""
        self._ended_s: float | None = None
        self._begun = -1
        self._stages: dict[int, int] = {}
        self._completed: dict[int, set[int]] = {}
        self._by_metric: tuple[int, dict[int, int]] = (-1, {})
        self._running: dict[int, dict[Partition, TaskRun]] = {}
        self._news = threading.Condition()
        self._stop_listening = internals.listen(_Listener(self))
        # A listener that outlives this process makes Spark complain while it ends.
        atexit.register(self.close)

    def close(self) -> None:
        """Listen no more."""
        atexit.unregister(self.close)
        self.ended.set()
        with self._news:
            self._news.notify_all()
        with suppress(Exception):
            self._stop_listening()

    @property
    def batch(self) -> int:
        """The last batch that ended; -1 before the first."""
        return self.batches[-1].number if self.batches else -1

    @property
    def is_in_batch(self) -> bool:
        """Whether a batch has begun to run and has not ended."""
        return self._begun > self.batch

    def wait_ended(self, batch: int, timeout_s: float) -> BatchRun | None:
        """The newest batch that ended after this one, as soon as there is one; None: none came in time."""
        with self._news:
            self._news.wait_for(lambda: (self.batches and self.batch > batch) or self.ended.is_set(), timeout_s)
            return self.batches[-1] if self.batches and self.batch > batch else None

    def wait_served(self, batch: int, timeout_s: float) -> BatchRun | None:
        """The newest batch after this one whose state partitions have all been served; None: none was in time.

        That is the moment to say where they shall be: no task of the batch can say otherwise any more, and the next
        one has not been planned.
        """
        with self._news:
            self._news.wait_for(lambda: self.newest.number > batch or self.ended.is_set(), timeout_s)
            return self.newest if self.newest.number > batch else None

    # --- what Spark tells; called in the thread of its listener --------------------------------

    def stage_submitted(self, event: Any) -> None:
        """Note which stages are ours and keep state, and in which batch they run."""
        properties = event.properties()
        if properties is None or properties.getProperty("sql.streaming.queryId") != self._query:
            return
        batch = int(properties.getProperty("streaming.sql.batchId"))
        self._begun = max(self._begun, batch)
        info = event.stageInfo()
        names = str(info.rddInfos().mkString("\n"))
        if not any(name in names for name in _STATEFUL):
            return
        tasks = int(info.numTasks())
        if int(info.attemptNumber()) == 0:  # another attempt has only the tasks that are missing
            self.odd_tasks = None if tasks in self.partitions.values() else tasks
        apart = -(-sum(self.partitions.values()) // CLOSELY)
        if self.is_close or batch % apart == 0 or not self.last:
            self._stages[int(info.stageId())] = batch

    def task_ended(self, event: Any) -> None:
        """Note where a state partition ran, and what it has."""
        stage = int(event.stageId())
        if stage not in self._stages:
            return
        batch = self._stages[stage]
        fields = json.loads(self._internals.as_json(event))
        info = fields["Task Info"]
        if info["Failed"] or info["Killed"]:
            return
        numbers = dict.fromkeys(_NUMBERS.values(), 0)
        metrics = []
        for each in info["Accumulables"]:
            name = each.get("Name")
            if name in _NUMBERS:
                numbers[_NUMBERS[name]] += max(0, int(each.get("Update") or 0))
                if name == "number of total state rows":
                    metrics.append(int(each["ID"]))
        group = self._group(batch, metrics)
        if group is None:
            return
        task = TaskRun(
            str(info["Executor ID"]), float(fields.get("Task Metrics", {}).get("Executor Run Time", 0)),
            local=info["Locality"] in ("PROCESS_LOCAL", "NODE_LOCAL"), speculative=bool(info["Speculative"]), **numbers,
        )  # fmt: skip
        self._running.setdefault(batch, {})[Partition(group, int(info["Index"]))] = task

    def _group(self, batch: int, metrics: Sequence[int]) -> int | None:
        if len(self._groups) == 1:
            return self._groups[0]
        if self._by_metric[0] != batch or not self._by_metric[1]:
            self._by_metric = (batch, self._internals.groups_by_metric(batch))
        return next((self._by_metric[1][each] for each in metrics if each in self._by_metric[1]), None)

    def executor_removed(self, event: Any) -> None:
        """Tell that an executor is gone."""
        self.on_lost(str(event.executorId()), str(event.reason()).partition("\n")[0])

    def stage_completed(self, event: Any) -> None:
        """Note which batches have served all their partitions."""
        info = event.stageInfo()
        stage = int(info.stageId())
        if stage not in self._stages or info.failureReason().isDefined():
            return
        batch = self._stages.pop(stage)
        completed = self._completed.setdefault(batch, set())
        completed.add(stage)
        if len(completed) >= len(self._groups) and batch > self.newest.number:
            with self._news:
                self.newest = BatchRun(batch, 0.0, 0.0, 0, dict(self._running.get(batch, {})))
                self._news.notify_all()

    def other(self, event: Any) -> None:
        """Note that a batch, or the query, has ended."""
        kind = str(event.getClass().getSimpleName())
        if kind == "QueryTerminatedEvent" and str(event.runId().toString()) == self._run:
            self.ended.set()
            with self._news:
                self._news.notify_all()
        if kind != "QueryProgressEvent":
            return
        progress = json.loads(str(event.progress().json()))
        if progress["runId"] == self._run:
            self._end_batch(progress)

    def _end_batch(self, progress: Mapping[str, Any]) -> None:
        number = int(progress["batchId"])
        tasks = self._running.pop(number, {})
        for by_batch in (self._running, self._completed):
            for old in [each for each in by_batch if each <= number]:
                del by_batch[old]
        # A stage that failed, or was skipped, never completes.
        self._stages = {stage: batch for stage, batch in self._stages.items() if batch > number}
        for partition, task in tasks.items():
            before = self.last.get(partition)
            self.last[partition] = (number, task)
            if before is None or before[1].executor != task.executor:
                continue  # it has just been loaded: that is not what a batch takes
            usual = self.ms.get(partition)
            self.ms[partition] = task.ms if usual is None else usual + RECENT * (task.ms - usual)
        if number == self.batch:
            return  # Spark tells now and then that nothing has happened since
        took_ms = float(progress["durationMs"].get("triggerExecution", 0))
        rate = float(progress.get("inputRowsPerSecond") or 0)
        now_s = self._clock.now_s()
        # Word of several batches may come at once; none of them was shorter than it took.
        interval_s = 0.0 if self._ended_s is None else max(now_s - self._ended_s, took_ms / 1000)
        self._ended_s = now_s
        batch = BatchRun(
            number, took_ms, rate if math.isfinite(rate) else 0.0, int(progress["numInputRows"]), tasks, interval_s
        )
        with self._news:
            self.batches.append(batch)
            self._news.notify_all()


class _Listener:
    """What Spark's JVM calls; never raises, for Spark would log it for every event."""

    def __init__(self, watch: BatchWatch) -> None:
        self._calls = {
            "onStageSubmitted": watch.stage_submitted,
            "onTaskEnd": watch.task_ended,
            "onStageCompleted": watch.stage_completed,
            "onExecutorRemoved": watch.executor_removed,
            "onOtherEvent": watch.other,
        }

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("on"):
            raise AttributeError(name)
        return lambda event: self._heard(name, event)

    def _heard(self, name: str, event: Any) -> None:
        call = self._calls.get(name)
        if call is not None:
            try:
                call(event)
            except Exception:
                logger.debug("an event of Spark was not understood", exc_info=True)

    class Java:
        """The interface of Spark's that this implements."""

        implements = ["org.apache.spark.scheduler.SparkListenerInterface"]  # noqa: RUF012


class Sampler:
    """The samples of one group, made of batches as they end."""

    def __init__(self, group: int, partitions: int) -> None:
        self._keys = [Partition(group, number) for number in range(partitions)]
        self._tasks: dict[Partition, TaskRun] = {}
        self._samples: deque[Sample] = deque(maxlen=MAX_SAMPLES)
        self._batch = -1
        self._elapsed_s = 0.0

    @property
    def samples(self) -> tuple[Sample, ...]:
        """What was counted in the last batches, oldest first."""
        return tuple(self._samples)

    def note(self, batches: Iterable[BatchRun]) -> None:
        """Take batches that have ended, oldest first; those that were taken before change nothing."""
        for batch in batches:
            if batch.number > self._batch:
                self._batch = batch.number
                self._note(batch)

    def _note(self, batch: BatchRun) -> None:
        before = dict(self._tasks)
        tasks = {key: batch.tasks[key] for key in self._keys if key in batch.tasks}
        self._tasks.update(tasks)
        is_first = batch.interval_s <= 0  # nobody knows for how long it stands
        self._elapsed_s += batch.interval_s
        if not batch.rows:
            return  # the rows of the next batch have come since the last one with rows
        interval_s, self._elapsed_s = self._elapsed_s, 0.0
        # With many partitions not every batch is looked at; and nothing is known of one that never ran.
        if is_first or not tasks or len(self._tasks) < len(self._keys):
            return
        busy_s: dict[WorkerId, float] = defaultdict(float)
        for key, task in tasks.items():
            last = before.get(key, task)
            # The first task on another executor has loaded the state: that is not what a batch takes.
            usual = task if last.executor == task.executor else last
            busy_s[task.worker] += usual.ms / 1000
        updated = np.array([tasks[key].updated if key in tasks else 0 for key in self._keys], np.float64)
        stored = np.array([before.get(key, self._tasks[key]).rows for key in self._keys], np.float64)
        self._samples.append(
            Sample(
                batch=batch.number,
                interval_s=interval_s,
                stored=(stored,),
                queued=(updated,),
                rows=updated,
                busy_s=busy_s,
                owner=[self._tasks[key].worker for key in self._keys],
            )
        )
