"""What a policy is shown of Spark's batches; by hand."""

import pytest

from meander.native.batches import MAX_SAMPLES, Sampler
from meander.native.stores import Backlog, BatchRun, Partition, TaskRun


def batch(number, *tasks, rows=10, interval_s=2.0, group=0):
    runs = {Partition(group, at): task for at, task in enumerate(tasks) if task is not None}
    return BatchRun(number, 100.0, 5.0, rows, runs, interval_s)


def task(executor, ms=100.0, rows=50, updated=4):
    return TaskRun(str(executor), ms, rows=rows, updated=updated)


def samples(*batches, partitions=2):
    sampler = Sampler(0, partitions)
    sampler.note(batches)
    return sampler.samples


def test_a_sample_has_what_was_stored_before_and_what_came():
    first = batch(0, task(1, rows=40), task(2, rows=7))
    (sample,) = samples(batch(-1, interval_s=0.0), first, batch(1, rows=0))
    assert sample.stored[0].tolist() == [40, 7], "nothing is known of the time before"
    _, second = samples(first, batch(1, task(1, rows=44), task(2, ms=300.0, rows=11, updated=1)))
    assert (second.batch, second.interval_s, second.owner) == (1, 2.0, (1, 2))
    assert second.stored[0].tolist() == [40, 7]
    assert second.rows.tolist() == second.queued[0].tolist() == [4, 1]
    assert second.busy_s == {1: pytest.approx(0.1), 2: pytest.approx(0.3)}


def test_the_first_batch_stands_for_nobody_knows_how_long():
    assert samples(batch(0, task(1), task(2), interval_s=0.0)) == ()


def test_a_batch_without_rows_lends_its_time_to_the_next():
    _, second = samples(batch(0, task(1), task(2)), batch(1, task(1), task(2), rows=0), batch(2, task(1), task(2)))
    assert (second.batch, second.interval_s) == (2, 4.0)


def test_the_time_in_which_state_was_loaded_is_not_what_a_batch_takes():
    _, second = samples(batch(0, task(1, ms=80.0), task(1)), batch(1, task(2, ms=5000.0), task(1)))
    assert second.owner == (2, 1)
    assert second.busy_s == {1: pytest.approx(0.1), 2: pytest.approx(0.08)}


def test_batches_that_were_not_looked_at_or_lack_a_partition_give_none():
    assert samples(batch(0, task(1), None)) == ()
    both = samples(batch(0, task(1), task(2)), batch(1), batch(2, task(1), None))
    assert [each.batch for each in both] == [0, 2]
    assert both[1].owner == (1, 2)
    assert both[1].rows.tolist() == [4, 0]


def test_other_groups_are_left_out_and_batches_are_taken_once():
    sampler = Sampler(1, 1)
    batches = [batch(number, task(1), group=1) for number in range(MAX_SAMPLES + 9)]
    sampler.note(batches)
    sampler.note(batches)
    assert [each.batch for each in sampler.samples] == list(range(9, MAX_SAMPLES + 9))
    assert samples(batch(0, task(1), group=1), partitions=1) == ()


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ([], Backlog(0, 0, 0)),
        ([("1.delta", 5), ("2.delta", 7)], Backlog(0, 12, 2)),
        ([("1.delta", 5), ("2.snapshot", 90), ("2.delta", 7), ("3.delta", 8)], Backlog(90, 8, 1)),
        ([("9_a-1.zip", 90), ("9_a-1.changelog", 7), ("10_b-2.changelog", 8), ("_metadata", 3)], Backlog(90, 8, 1)),
    ],
)
def test_what_has_to_be_read_to_load_a_partition(files, expected):
    entries = [f"{{path=file:/ck/state/0/1/{name}; isDirectory=false; length={size}; x=1}}" for name, size in files]
    folder = "{path=file:/ck/state/0/1/7.delta; isDirectory=true; length=0; x=1}"
    listing = ", ".join([*entries, folder])
    assert Backlog.of_listing(listing) == expected


def test_the_stores_of_a_partition_are_read_together():
    assert Backlog.total([Backlog(1, 2, 3), Backlog(10, 20, 1)]) == Backlog(11, 22, 3)
    assert Backlog.total([]) == Backlog(0, 0, 0)
