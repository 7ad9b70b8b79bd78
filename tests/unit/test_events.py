"""Events: delivered outside of locks, in order, none lost; listeners that act, fail, hang and go."""

from __future__ import annotations

import logging
import threading

import pytest

import meander as me
from meander.clock import ManualClock
from meander.migration import events as module
from meander.migration.events import EventLog
from plain_spark import PlainSpark
from streams import wait_until

SOON_S = 120


def counting(workers=2, **options):
    stream = me.stream(me.testing.source("word string")).key_by("word").count()
    return me.testing.harness(stream, workers, 16, **options)


def rows(*words):
    return [{"word": word} for word in words]


def within_time(call):
    """Run this in a thread: a query that waits for itself fails the test and does not hang it."""
    results = []
    thread = threading.Thread(target=lambda: results.append(call()), daemon=True)
    thread.start()
    thread.join(SOON_S)
    assert results, "it waits for itself"
    return results[0]


# --- listeners that act ----------------------------------------------------------------------------


@pytest.mark.parametrize("event", ["planned", "copying", "ready", "flipping", "flipped"])
def test_a_listener_may_cancel_the_migration_it_hears_of(event):
    with counting() as h:
        h.batch(rows("a", "b", "c"))
        h.query.on_event(lambda each: each.name == event and h.query.migration.cancel())
        move = within_time(lambda: h.move(dict.fromkeys(range(8), 1), schedule="fluid"))
        assert move.status == "cancelled"
        assert move.progress.steps <= 1
        assert h.batch(rows("a"))[0]["count"] == 2


def test_a_listener_may_rescale():
    with counting() as h:
        h.batch(rows("a", "b", "c"))
        asked = []

        def grow(event):
            if event.name == "flipped" and not asked:
                asked.append(h.query.rescale(3))

        h.query.on_event(grow)
        first = within_time(lambda: h.move({0: 1, 1: 1}, schedule="fluid"))
        assert first.status == "replaced"
        assert within_time(lambda: h.finish(asked[0])).status == "done"
        assert h.query.workers == [0, 1, 2]


def test_a_listener_may_stop_the_query():
    with counting() as h:
        h.batch(rows("a"))
        h.query.on_event(lambda event: event.name == "planned" and h.query.stop())
        h.query.move({0: 1})
        within_time(lambda: h.batch([]) or True)
        assert not h.query.is_active
        h.restart()
        assert h.batch(rows("a"))[0]["count"] == 2


def test_a_listener_may_replace_a_migration_of_partitions():
    with PlainSpark() as spark:
        asked = []
        spark.refuses = {(each, "1") for each in range(6)}

        def spread(event):
            if event.name == "steered" and not asked:
                asked.append(spark.attached.spread())
                spark.refuses.clear()

        spark.attached.on_event(spread)
        first = spark.attached.move(dict.fromkeys(range(6), 1), schedule="fluid", tries=1000)
        wait_until(lambda: asked, "the listener has acted")
        assert asked[0].wait(SOON_S, show=False)
        assert first.wait(SOON_S, show=False)
        assert (first.status, asked[0].status) == ("replaced", "done")


# --- delivery --------------------------------------------------------------------------------------


def test_every_event_is_delivered_once_and_in_order_whoever_emits_it():
    log, heard, emitters = EventLog(), [], 4

    def listener(event):
        heard.append(event)
        if event.name == "first":
            log.emit("second", of=event.facts["number"])

    log.subscribe(listener)
    threads = [
        threading.Thread(target=lambda: [log.emit("first", number=number) for number in range(100)])
        for _ in range(emitters)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    log.deliver()
    assert len(heard) == emitters * 200
    assert heard == log.entries
    assert len({id(each) for each in heard}) == len(heard)


def test_nobody_waits_for_a_listener():
    log, gate, heard = EventLog(), threading.Event(), []

    def slow(event):
        assert gate.wait(SOON_S)
        heard.append(event.name)

    log.subscribe(slow)
    for number in range(3):
        log.emit(f"event {number}")
    assert heard == []
    gate.set()
    log.deliver()
    assert heard == ["event 0", "event 1", "event 2"]


def test_without_a_thread_listeners_are_called_by_deliver():
    log, heard = EventLog(ManualClock(), background=False), []
    log.subscribe(lambda event: heard.append(threading.current_thread()))
    log.emit("one")
    assert heard == []
    log.deliver()
    assert heard == [threading.current_thread()]


def test_who_comes_later_hears_of_what_comes_later_and_who_goes_hears_no_more():
    log, first, second = EventLog(background=False), [], []
    log.subscribe(first.append)
    log.emit("one")
    log.subscribe(second.append)
    log.emit("two")
    log.unsubscribe(first.append)
    log.deliver()
    log.emit("three")
    log.deliver()
    assert first == []
    assert [each.name for each in second] == ["two", "three"]
    log.unsubscribe(first.append)  # again: nothing to do


def test_query_and_attached_remove_a_listener():
    with counting() as h, PlainSpark() as spark:
        calls = []
        for each in (h.query, spark.attached):
            each.on_event(calls.append)
            each.off_event(calls.append)
        h.batch(rows("a"))
        h.move({0: 1})
        assert spark.attached.spread().wait(SOON_S, show=False)
        spark.attached.detach()
        assert h.query.events
        assert spark.attached.events
        assert calls == []


def test_a_listener_that_raises_is_a_warning(caplog):
    heard = []
    with counting() as h:
        h.query.on_event(lambda event: 1 / 0)
        h.query.on_event(heard.append)
        with caplog.at_level(logging.WARNING, "meander"):
            h.batch(rows("a"))
            assert h.move({0: 1}).status == "done"
        assert h.query.exception() is None
    assert heard
    assert {(each.levelname, each.message.partition(" of ")[0]) for each in caplog.records} == {
        ("WARNING", "a listener")
    }


def test_a_listener_that_hangs_costs_the_oldest_events_and_says_so(caplog, monkeypatch):
    monkeypatch.setattr(module, "MAX_WAITING", 3)
    monkeypatch.setattr(module, "DELIVERED_WITHIN_S", 0.01)
    log, begun, gate, heard = EventLog(), threading.Event(), threading.Event(), []

    def hangs(event):
        begun.set()
        gate.wait(SOON_S)
        heard.append(event.facts["number"])

    log.subscribe(hangs)
    log.emit("event", number=0)
    assert begun.wait(SOON_S)
    with caplog.at_level(logging.WARNING, "meander"):
        for number in range(1, 6):
            log.emit("event", number=number)
        log.deliver()
    assert [each.message.split(";")[0] for each in caplog.records] == [
        "3 events wait for a slow listener", "3 events wait for a slow listener",
        "a listener is still busy after 0.01 s",
    ]  # fmt: skip
    gate.set()
    wait_until(lambda: heard == [0, 3, 4, 5], "the others")


def test_stop_returns_when_listeners_have_heard_everything():
    with counting(workers=2) as h:
        heard = []
        h.query.on_event(heard.append)
        h.batch(rows("a"))
        h.query.move({0: 1})
        h.query.stop()
        assert heard == h.query.events[-len(heard) :]
        assert heard[-1].name == h.query.events[-1].name == "planned"
