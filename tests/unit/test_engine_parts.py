"""The parts of the engine that need no Spark: messages, settings, dead letters, what a failure means."""

import threading
from itertools import chain, repeat
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from meander.engine.driver.settings import Settings
from meander.engine.spark.jobs import Watchdog, in_short, is_loss
from meander.engine.spark.stream import SparkStream, control_name
from meander.engine.worker.bin_numbers import BinNumbers
from meander.engine.worker.links import Link
from meander.engine.worker.messages import Control, Fault, FilePart, TaskReport, Token, pack, unpack
from meander.engine.worker.rows import BAD, REPORT, sort_out, table_of
from meander.errors import InvalidOption
from meander.operators.count import Count


def plain(message):
    """A message as data that can be compared: arrays as lists."""
    if isinstance(message, np.ndarray):
        return message.dtype, message.tolist()
    if isinstance(message, BinNumbers):
        return repr(message), message.total
    return type(message), [plain(each) for each in message] if isinstance(message, tuple) else message


def test_a_control_message_travels_unchanged():
    bins = np.arange(8)
    sent = Control(
        Token(3, 7, 1), 0, 4, 1, "host:1:2", "d", "file:///c", 8, owned=bins < 3, held=bins < 5,
        advance=({"path": "a"},), loadable=bins == 5, load=(FilePart({"path": "x"}, bins == 5),), copy=(5, 2),
        copy_ms=7.5, snapshot=bins == 1, frontier=9, previous=8, wave=(1, 4), fsync=True,
    )  # fmt: skip
    assert plain(Control.from_bytes(sent.to_bytes())) == plain(sent)
    few = sent._replace(snapshot=None, frontier=None, load=(), copy=())
    assert plain(Control.from_bytes(few.to_bytes())) == plain(few)


def test_a_report_travels_unchanged():
    numbers, more = BinNumbers.of([3, 0, 1 << 60]), BinNumbers.of([4, 1, (1 << 60) + 1])
    sent = TaskReport(
        Token(3, 7, 1), 0, 4, "host:1:2", rows=5, newest=(7, None), delta={"path": "d"}, side=({"path": "s"},),
        held=np.array([True, False, True]), loads=numbers, stored=(numbers, more), queued=(numbers,),
        state_rows=numbers, state_bytes=numbers, spent_ms={"busy": 1.5}, fault=Fault("user", "no", "trace", 3),
    )  # fmt: skip
    assert plain(TaskReport.from_text(sent.to_text())) == plain(sent)
    assert plain(TaskReport.from_text(TaskReport(Token(0, 0, 1), 0, 4).to_text())) == plain(
        TaskReport(Token(0, 0, 1), 0, 4)
    )


def test_a_later_attempt_is_greater_whatever_it_counts():
    assert Token(3, 7, 1) < Token(3, 7, 2) < Token(3, 8, 1) < Token(4, 0, 1)


@pytest.mark.parametrize("bins", [1, 8, 13, 256])
def test_sets_of_bins_travel_as_text(bins):
    chosen = np.random.default_rng(bins).random(bins) < 0.4
    assert np.array_equal(unpack(pack(chosen), bins), chosen)


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
    return [batch.serialize() for batch in table.to_batches()]


def test_null_keys_broken_text_and_failed_casts_become_dead_letters():
    broken = pa.array([b"ok", None, b"\xff\xfe", b"bad", b"fine"], pa.binary()).view(pa.string())
    rows = pa.table({BAD: pa.array([None, None, None, "column n is no number", None]), "word": broken})
    operator = Count(pa.schema([("word", pa.string())]), ["word"])
    found = sort_out([table_of(handed_over(rows), rows.schema)], operator, [Link(-1, ("word",), is_new=True)])
    assert found.rows.to_pydict() == {"word": ["ok", "fine"]}
    assert found.dead.to_pydict() == {
        "kind": ["unusable"] * 3,
        "reason": ["the key column word is null", "column word is not valid UTF-8", "column n is no number"],
        "row": ['{"word": null}', '{"word": "\\ufffd\\ufffd"}', '{"word": "bad"}'],
    }


def test_reports_of_the_operator_before_travel_along():
    rows = pa.table({REPORT: pa.array([None, "one", None]), "word": pa.array(["a", None, "b"])})
    operator = Count(pa.schema([("word", pa.string())]), ["word"])
    found = sort_out([table_of(handed_over(rows), rows.schema)], operator, [Link(-1, ("word",), is_new=True)])
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


def test_a_query_shares_its_executors_with_other_streams_but_not_with_its_own_control_stream():
    mine, other = SimpleNamespace(id="a", name=None), SimpleNamespace(id="b", name=None)
    control = SimpleNamespace(id="c", name=control_name("a"))
    session = SimpleNamespace(streams=SimpleNamespace(active=[mine, control]))
    stream = SparkStream(mine, session)
    assert not stream.is_shared
    session.streams.active.append(other)
    assert stream.is_shared
