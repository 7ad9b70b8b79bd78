"""What a policy is shown of Spark's batches: rows, state and time of the partitions of one group. Pure."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable

import numpy as np

from meander.control.window import Sample
from meander.native.batches import BatchRun, TaskRun
from meander.native.stores import Partition
from meander.types import WorkerId

MAX_SAMPLES = 64


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
            busy_s[_worker_of(task)] += usual.ms / 1000
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
                owner=[_worker_of(self._tasks[key]) for key in self._keys],
            )
        )


def _worker_of(task: TaskRun) -> WorkerId:
    return WorkerId(int(task.executor))
