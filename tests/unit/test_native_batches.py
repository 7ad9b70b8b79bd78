"""What Spark's listeners tell of a query, put together; with events made by hand."""

import json
from types import SimpleNamespace

import pytest

from meander.native.batches import CLOSELY, BatchWatch
from meander.native.stores import Partition, StatefulOperator, TaskRun
from plain_spark import QUERY, RUN, other_event, progress_event, stage_event, task_event


class Fake:
    """Spark's side: a query, its events as JSON, and which metric belongs to which group."""

    def __init__(self, groups=None):
        self.query = SimpleNamespace(id=QUERY, runId=RUN)
        self.groups, self.asked, self.ended = groups or {}, [], False

    def listen(self, listener):
        self.listener = listener

        def end():
            self.ended = True

        return end

    def as_json(self, event):
        return json.dumps(event.fields)

    def groups_by_metric(self, batch):
        self.asked.append(batch)
        return self.groups


def watching(partitions=2, groups=(0,), metrics=None):
    spark = Fake(metrics)
    operators = [StatefulOperator(each, f"op{each}", ("default",), partitions, each) for each in groups]
    return BatchWatch(spark, operators), spark


def test_a_batch_is_what_its_tasks_did():
    watch, _ = watching()
    watch.stage_submitted(stage_event(3, 0))
    watch.task_ended(task_event(3, 0))
    watch.task_ended(task_event(3, 1, executor="2", rows=9))
    watch.stage_completed(stage_event(3, 0))
    assert watch.wait_ended(-1, 0) is None
    watch.other(progress_event(0))
    batch = watch.wait_ended(-1, 0)
    assert (batch.number, batch.took_ms, batch.rows_per_s, batch.rows) == (0, 100.0, 50.0, 5)
    assert batch.tasks == {
        Partition(0, 0): TaskRun("1", 10.0, rows=5, updated=2, state_bytes=100),
        Partition(0, 1): TaskRun("2", 10.0, rows=9, updated=2, state_bytes=100),
    }
    assert watch.wait_ended(0, 0) is None


def test_others_queries_stages_without_state_and_failed_tasks_are_left_out():
    watch, _ = watching()
    watch.stage_submitted(stage_event(1, 0, rdds="MapPartitionsRDD"))
    watch.stage_submitted(stage_event(2, 0, query="another"))
    watch.stage_submitted(stage_event(3, 0))
    for number in (1, 2):
        watch.task_ended(task_event(number, 0))
    watch.task_ended(task_event(3, 0, Failed=True))
    watch.task_ended(task_event(3, 1, Killed=True))
    watch.other(progress_event(5, run="another run"))
    watch.other(progress_event(0))
    assert watch.batches[-1].tasks == {}
    assert watch.batch == 0


def test_the_time_of_a_partition_is_smoothed_and_leaves_out_the_batch_that_loads_it():
    watch, _ = watching()
    for batch, (executor, ms) in enumerate([("1", 900), ("1", 100), ("1", 200), ("2", 5000), ("2", 200)]):
        watch.stage_submitted(stage_event(batch, batch))
        watch.task_ended(task_event(batch, 0, executor, ms))
        watch.other(progress_event(batch))
    expected = 100 + 0.3 * (200 - 100)
    assert watch.ms == {Partition(0, 0): pytest.approx(expected + 0.3 * (200 - expected))}
    assert watch.last[Partition(0, 0)][1].executor == "2"


def test_with_several_groups_the_plan_says_whose_a_task_is_once_a_batch():
    watch, spark = watching(groups=(0, 1), metrics={7: 1, 40: 0})
    watch.stage_submitted(stage_event(1, 4))
    watch.stage_submitted(stage_event(2, 4))
    watch.task_ended(task_event(1, 0, metric=40))
    watch.task_ended(task_event(2, 0, metric=7))
    watch.task_ended(task_event(2, 1, metric=1000))
    watch.other(progress_event(4))
    assert set(watch.batches[-1].tasks) == {Partition(0, 0), Partition(1, 0)}
    assert spark.asked == [4]


def test_a_stage_with_another_number_of_tasks_is_noted():
    watch, _ = watching()
    watch.stage_submitted(stage_event(1, 0))
    assert watch.odd_tasks is None
    watch.stage_submitted(stage_event(1, 0, tasks=1, attempt=1))
    assert watch.odd_tasks is None, "another attempt has only the tasks that are missing"
    watch.stage_submitted(stage_event(2, 0, tasks=1))
    assert watch.odd_tasks == 1


def test_a_batch_is_served_when_the_stages_of_all_groups_are_completed():
    watch, _ = watching(groups=(0, 1), metrics={7: 0})
    for number in (1, 2):
        watch.stage_submitted(stage_event(number, 6))
    watch.task_ended(task_event(1, 0))
    watch.stage_completed(stage_event(1, 6))
    assert watch.wait_served(-1, 0) is None
    watch.stage_completed(stage_event(2, 6, failed=True))
    assert watch.wait_served(-1, 0) is None
    watch.stage_completed(stage_event(2, 6))
    served = watch.wait_served(-1, 0)
    assert (served.number, set(served.tasks)) == (6, {Partition(0, 0)})
    assert watch.batch == -1, "it has not ended yet"
    assert watch.wait_served(6, 0) is None


def test_a_stage_that_never_completes_is_forgotten_with_its_batch():
    watch, _ = watching()
    watch.stage_submitted(stage_event(1, 6))
    watch.stage_completed(stage_event(1, 6, failed=True))
    watch.stage_submitted(stage_event(2, 7))
    watch.other(progress_event(6))
    watch.task_ended(task_event(1, 0))
    watch.task_ended(task_event(2, 1))
    watch.stage_completed(stage_event(1, 6))
    assert watch.newest.number == -1
    watch.stage_completed(stage_event(2, 7))
    assert (watch.newest.number, set(watch.newest.tasks)) == (7, {Partition(0, 1)})


def test_with_many_partitions_only_every_few_batches_are_looked_at_closely():
    watch, _ = watching(partitions=2 * CLOSELY)

    def looked_at(batch):
        watch.stage_submitted(stage_event(batch, batch, tasks=2 * CLOSELY))
        watch.task_ended(task_event(batch, 0))
        watch.other(progress_event(batch))
        return bool(watch.batches[-1].tasks)

    assert [looked_at(batch) for batch in range(4)] == [True, False, True, False]
    watch.is_close = True
    assert [looked_at(batch) for batch in range(4, 7)] == [True] * 3


def test_the_query_ends():
    watch, spark = watching()
    watch.other(other_event("QueryTerminatedEvent", runId="another"))
    assert not watch.ended.is_set()
    watch.other(other_event("QueryTerminatedEvent", runId=RUN))
    assert watch.ended.is_set()
    watch.close()
    assert spark.ended


def test_a_rate_that_is_no_number_is_none():
    watch, _ = watching()
    watch.other(progress_event(0, rate=float("inf")))
    assert watch.batches[-1].rows_per_s == 0.0


def test_spark_may_call_anything_and_never_gets_an_exception():
    watch, spark = watching()
    listener = spark.listener
    listener.onJobStart(object())
    listener.onTaskEnd(object())
    listener.onOtherEvent(progress_event(0))
    assert watch.batch == 0
    with pytest.raises(AttributeError):
        listener.anything_else  # noqa: B018
