"""The lab's mode "pause_bins" in this process: rows wait, and are judged by the event time of their own batch."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

import meander as me

START = datetime(2026, 1, 1, tzinfo=UTC)
BINS = 16
HALF = dict.fromkeys(range(BINS // 2), 1)


def batches(count=6):
    """Each has rows of ten seconds, out of order, of every key; each is ten seconds ahead of the one before."""
    return [
        [
            {"key": f"k{key}", "at": START + timedelta(seconds=10 * batch + (key * 7 + number * 3) % 10)}
            for number in range(4)
            for key in range(40)
        ]
        for batch in range(count)
    ]


def outcome(mode, lateness):
    """Closed windows, late rows, the frontier and rows that waited; half of the bins move after the second batch."""
    stream = me.stream(me.testing.source("key string, at timestamp")).key_by("key")
    windows = stream.window("at", "1s", lateness=lateness, emit="final").count()
    with me.testing.harness(windows, 2, BINS, idle_after_s=60) as h:
        first, second, *others = batches()
        h.batch(first)
        h.batch(second)
        move = h.query.move(HALF, operator=0, mode=mode, schedule="all_at_once")
        for batch in others:
            h.batch(batch)
            move.poll()
        frontier, rows_held = h.driver.log.last.operators[0].frontier, move.report.rows_held
        h.end()
        assert (move.status, h.query.assignment["0:window"]) == ("done", [1] * BINS)
        closed = Counter((row["key"], row["window_start"], row["count"]) for row in h.output())
        return (closed, len(h.late()), frontier), rows_held


@pytest.mark.parametrize("lateness", ["0s", "3s"])
def test_rows_that_wait_are_late_only_where_they_would_be_live(lateness):
    live, none_held = outcome("live", lateness)
    paused, rows_held = outcome("pause_bins", lateness)
    assert none_held == 0
    assert rows_held > 0
    assert live[1] == 0
    assert paused == live
