"""A batch that can never succeed is left out once, under a number that no sink has heard of."""

import logging
import shutil

import pyarrow as pa
import pytest

import meander as me
from count_case import Case
from kills import Killed, changes
from meander.store.location import Location


def picky(user, rows, state):
    if any(row.v == 13 for row in rows):
        raise ArithmeticError("thirteen is unlucky")
    state.update(n=(state.n or 0) + len(rows))
    yield user, state.n


def harness(folder, **options):
    stream = me.stream(me.testing.source("user string, v long")).key_by("user")
    counted = stream.map_with_state(picky, "n long", "user string, n long")
    return me.testing.harness(counted, checkpoint=folder / "ck", **options)


def failed_in_batch(folder, before=1):
    """A checkpoint whose next batch can never succeed; what the failure says."""
    with harness(folder) as h:
        for _ in range(before):
            h.batch([{"user": "ann", "v": 1}])
        with pytest.raises(me.QueryFailed) as failed:
            h.batch([{"user": "ann", "v": 13}, {"user": "bob", "v": 1}])
    return str(failed.value).splitlines()[0]


@pytest.mark.parametrize("before", [0, 1, 2])
def test_the_batch_that_the_failure_names_is_left_out_once_and_the_query_goes_on(tmp_path, caplog, before):
    assert f" or skip_batch={before}" in failed_in_batch(tmp_path, before)
    with caplog.at_level(logging.INFO, "meander"), harness(tmp_path, skip_batch=before) as h:
        assert h.query.version == before + 1, "a sink may have heard of the number before it"
        assert [(event.name, event.version, event.facts) for event in h.query.events if event.name == "skipped"] == [
            ("skipped", before + 1, {"batch": before})
        ]
        assert f"batch {before} is skipped: version {before + 1} has the state before it" in caplog.text
        assert h.batch([{"user": "ann", "v": 1}]) == [{"user": "ann", "n": before + 1}]
        h.restart()
        assert f"batch {before} is not skipped again: the next one is {before + 2}" in caplog.text
        assert h.batch([{"user": "bob", "v": 1}]) == [{"user": "bob", "n": 1}]
        assert not h.dead()
    versions = me.checkpoint(tmp_path / "ck").versions()
    mine = next(version for version in versions if version.number == before + 1)
    assert (mine.kind, mine.batch, mine.rows, mine.undoes) == ("skip", before, 0, (before, before))
    assert [version.batch for version in versions] == list(range(before + 3))
    assert not me.checkpoint(tmp_path / "ck").verify().damaged


def test_only_the_next_batch_can_be_left_out(tmp_path):
    failed_in_batch(tmp_path, before=2)
    for number, sentence in (
        (1, r"batch 1 was processed, in version 1, and cannot be skipped any more; leave skip_batch out"),
        (3, r"batch 3 cannot be skipped: the next batch is 2; give the number that the failure names"),
    ):
        with pytest.raises(me.CheckpointError, match=sentence):
            harness(tmp_path, skip_batch=number)
    with pytest.raises(me.InvalidOption, match="skip_batch is -1"):
        harness(tmp_path, skip_batch=-1)
    with harness(tmp_path, skip_batch=2) as h:
        h.batch([{"user": "ann", "v": 1}])
    with pytest.raises(me.CheckpointError, match=r"the next batch is 4, and Spark has not begun it"):
        harness(tmp_path, skip_batch=4)


def test_a_failing_timer_is_no_batch_to_skip(tmp_path):
    def fails(user, rows, state):
        if state.timed_out:
            raise ArithmeticError("too late")
        state.update(n=1)

    stream = me.stream(me.testing.source("user string, at timestamp")).key_by("user")
    with me.testing.harness(stream.map_with_state(fails, "n long", "user string", timeout="1s")) as h:
        h.batch([{"user": "ann", "at": pa.scalar(0, pa.timestamp("us", "UTC")).as_py()}])
        with pytest.raises(me.QueryFailed) as failed:
            h.end()
    first = str(failed.value).splitlines()[0]
    assert "on_error" in first
    assert "skip_batch" not in first


def test_the_sink_never_hears_of_the_batch_nor_twice_of_a_number(tmp_path):
    """The sink has prepared the batch when its driver dies: what it prepared is never shown."""
    case = Case(tmp_path).start().put(3)
    case.sink.dies_in = "prepare"
    with pytest.raises(Killed):
        case.put()
    case.settings["skip_batch"] = 3
    case.start().put(2)
    assert sorted(case.sink.calls) == [0, 1, 2, 3, 5, 6]
    del case.batches[3]
    assert case.state() == case.recount(5)
    assert case.shown() == case.emitted(5)


def test_a_kill_at_every_point_leaves_the_batch_to_be_skipped_or_skipped(tmp_path, monkeypatch):
    first = Case(tmp_path / "case").start().put(3)
    first.sink.dies_in = "prepare"
    with pytest.raises(Killed):
        first.put()
    shutil.copytree(tmp_path / "case", tmp_path / "copy")
    outcomes = []
    for point in range(100):
        shutil.rmtree(tmp_path / "case")
        shutil.copytree(tmp_path / "copy", tmp_path / "case")
        case = Case(tmp_path / "case", skip_batch=3)
        with monkeypatch.context() as patch:
            changes(patch, until=point)
            try:
                case.start()
            except Killed:
                pass
            else:
                break
        kinds = [version.kind for version in me.checkpoint(case.checkpoint).versions()]
        outcomes.append(kinds.count("skip"))
        case.start().put(1)
        del case.batches[3]
        assert case.state() == case.recount(4)
        assert case.shown() == case.emitted(4)
    assert outcomes == sorted(outcomes)
    assert set(outcomes) == {0, 1}


def test_going_back_before_it_brings_the_batch_again(tmp_path):
    failed_in_batch(tmp_path, before=2)
    with harness(tmp_path, skip_batch=2) as h:
        h.batch([{"user": "ann", "v": 1}])
    assert me.checkpoint(tmp_path / "ck").rollback(to=1, take_over=True).batches == 2
    assert not Location.of(tmp_path / "ck").exists("spark/offsets/2")
    with harness(tmp_path) as h:
        assert h.batch([{"user": "bob", "v": 1}]) == [{"user": "bob", "n": 1}]
