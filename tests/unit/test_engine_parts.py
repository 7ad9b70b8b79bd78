"""The parts of the engine that need no Spark: messages, places, settings, dead letters, what a failure means."""

import threading
from itertools import chain, repeat

import numpy as np
import pyarrow as pa
import pytest

from meander.errors import InvalidOption
from meander.operators.count import Count
from meander.spark.incoming import BAD, REPORT, taken_apart
from meander.spark.messages import Control, Fault, Part, Report, Token, numbers, packed, read_numbers, unpacked
from meander.spark.places import Place, seat
from meander.spark.settings import Settings
from meander.spark.watch import Watchdog, in_short, is_loss


def control(**changes):
    fields = {
        "query": "q", "token": (3, 7, 1), "stage": 0, "worker": 4, "slot": 1, "place": "host:1:2", "directory": "d",
        "checkpoint": "file:///c", "bins": 8, "owned": packed(np.arange(8) < 3),
    }  # fmt: skip
    return Control(**{**fields, **changes})


def test_messages_travel_unchanged():
    sent = control(advance=({"path": "a"},), load=(Part({"path": "x"}, packed(np.arange(8) == 5)),), wave=(1, 4))
    assert Control.from_bytes(sent.to_bytes()) == sent
    told = Report((3, 7, 1), 0, 4, rows=5, fault=Fault("user", "no", "trace", 3), side=({"path": "s"},))
    assert Report.from_text(told.to_text()) == told


def test_a_later_attempt_is_greater_whatever_it_counts():
    assert Token(3, 7, 1) < Token(3, 7, 2) < Token(3, 8, 1) < Token(4, 0, 1)


@pytest.mark.parametrize("bins", [1, 8, 13, 256])
def test_sets_of_bins_and_numbers_travel_as_text(bins):
    rng = np.random.default_rng(bins)
    chosen = rng.random(bins) < 0.4
    assert np.array_equal(unpacked(packed(chosen), bins), chosen)
    counts = rng.integers(0, 1 << 60, bins)
    assert np.array_equal(read_numbers(numbers(counts)), counts)


def place(name, cores=1):
    return Place(name, f"executor_h_{name}", f"h:{name}:1", cores)


def test_workers_that_can_stay_stay_and_the_others_spread():
    a, b, c = place("a", 2), place("b", 2), place("c", 2)
    first = seat([0, 1, 2, 3], [a, b], {})
    assert sorted(found.executor for found in first.values()) == ["a", "a", "b", "b"]
    later = seat([0, 1, 2, 3], [a, c], first)
    assert {w: p for w, p in later.items() if first[w] == a} == {w: p for w, p in first.items() if p == a}
    assert all(later[w] == c for w in first if first[w] == b)


def test_more_workers_than_cores_are_refused():
    with pytest.raises(InvalidOption, match="3 workers need as many cores and the executors have 2"):
        seat([0, 1, 2], [place("a"), place("b")], {})


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"bins": 100}, "bins must be a power of two, not 100; nearest: 64, 128"),
        ({"workers": 0}, "workers"),
        ({"workers": 300}, "300 workers cannot share 256 bins"),
        ({"name": "My query"}, "may have only a-z"),
        ({"idle_time": "never"}, "idle_time is 'hold' or 'wall'"),
        ({"at_end": "stop"}, "at_end is 'hold' or 'close'"),
        ({"snapshot_every": 0}, "snapshot_every"),
        ({"retain": 0}, "retain"),
        ({"idle_after_s": -1}, "idle_after_s"),
    ],
)
def test_wrong_settings_are_named(options, sentence):
    with pytest.raises(InvalidOption, match=sentence):
        Settings(**{"checkpoint": "c", "workers": 2, **options})


def handed_over(table):
    return [pa.scalar(batch.serialize().to_pybytes(), pa.binary()) for batch in table.to_batches()]


def test_null_keys_broken_text_and_failed_casts_become_dead_letters():
    broken = pa.array([b"ok", None, b"\xff\xfe", b"bad", b"fine"], pa.binary()).view(pa.string())
    rows = pa.table({BAD: pa.array([None, None, None, "column n is no number", None]), "word": broken})
    stage = Count(pa.schema([("word", pa.string())]), ["word"])
    found = taken_apart(handed_over(rows), rows.schema, stage)
    assert found.rows.to_pydict() == {"word": ["ok", "fine"]}
    assert found.dead.to_pydict() == {
        "reason": ["the key column word is null", "column word is not valid UTF-8", "column n is no number"],
        "row": ['{"word": null}', '{"word": "\\ufffd\\ufffd"}', '{"word": "bad"}'],
    }


def test_reports_of_the_stage_before_travel_along():
    rows = pa.table({REPORT: pa.array([None, "one", None]), "word": pa.array(["a", None, "b"])})
    found = taken_apart(handed_over(rows), rows.schema, Count(pa.schema([("word", pa.string())]), ["word"]))
    assert found.reports == ["one"]
    assert found.dead is None
    assert found.rows.to_pydict() == {"word": ["a", "b"]}


def test_only_lost_processes_are_worth_another_attempt():
    lost = "Job aborted: ExecutorLostFailure (executor 1 exited caused by one of the running tasks)"
    assert is_loss(RuntimeError(lost))
    assert is_loss(RuntimeError("Python worker exited unexpectedly (crashed)"))
    assert not is_loss(RuntimeError("[DIVIDE_BY_ZERO] Division by zero"))


def test_a_failure_is_told_in_one_line():
    text = "An error occurred while calling o1.collect\n: java.lang.Problem: one\n\tat a.b.c\nValueError: the reason\n"
    assert in_short(RuntimeError(text)) == "ValueError: the reason"
    assert "PYSPARK_PYTHON" in in_short(RuntimeError("ModuleNotFoundError: No module named 'meander'"))


def test_the_watchdog_cancels_again_and_again_once_an_executor_is_gone():
    looks = chain([False, False], repeat(True))
    cancelled, twice = [], threading.Event()

    def cancel():
        cancelled.append(True)
        if len(cancelled) == 2:
            twice.set()

    with Watchdog(lambda: next(looks), cancel, every_s=0.001) as dog:
        assert twice.wait(timeout=30)
    assert dog.barked


def test_the_watchdog_keeps_quiet_while_every_executor_is_there():
    looked = threading.Event()

    def gone():
        looked.set()
        return False

    with Watchdog(gone, lambda: None, every_s=0.001) as dog:
        assert looked.wait(timeout=30)
    assert not dog.barked
