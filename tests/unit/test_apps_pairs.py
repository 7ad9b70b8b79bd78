"""The readers of both sides of a join: every row once and at its time, in batches of event time, on after a restart."""

from __future__ import annotations

import pyarrow as pa
import pytest

from meander.errors import InvalidOption
from meander_lab.apps import pairs
from meander_lab.apps.pairs import Loop, Reader
from meander_lab.apps.rides import Rides
from meander_lab.apps.zipf import ZipfStreams

ZIPF = ZipfStreams(0.8, 300, seed=2)
CITY = Rides(seed=2, fleet=50, demand=(3.0, 0.0, 1.0, 8.0), step_s=0.25)


class Clock:
    """A time that goes on when somebody waits."""

    def __init__(self, now_s):
        self.now_s = now_s

    def __call__(self):
        return self.now_s

    def wait(self, seconds):
        assert seconds > 0
        self.now_s += seconds


def read(reader, start, end):
    """The rows of a batch."""
    schema = reader.loop.source.schema(reader.loop.side)
    batches = [batch for part in reader.partitions(start, end) for batch in reader.read(part)]
    return pa.Table.from_batches(batches, schema)


@pytest.mark.parametrize("source", [ZIPF, CITY], ids=["zipf", "rides"])
@pytest.mark.parametrize("side", [0, 1])
def test_the_rows_before_a_time_are_those_whose_time_is_earlier(source, side):
    loop = Loop(source, side, 130.0, 0)
    times = source.rows(side, 0, 1000, 130.0)["ts"].cast(pa.int64()).to_pylist()
    for after_us in (0, 1, *times[1:900:37], *(each + 1 for each in times[:900:41]), 3_333_333):
        assert loop.before(after_us) == sum(each < after_us for each in times)
    ends = Loop(source, side, 130.0, 0, rows=500)
    assert (ends.before(ends.end_us), ends.before(ends.end_us - 1)) == (500, times[:500].index(times[499]))
    assert Loop(source, side, 130.0, 0, rows=0).end_us == 0
    assert Loop.of(ends.text()) == ends


def test_a_live_stream_has_what_the_clock_says_in_whole_ticks_and_goes_on_with_its_own_beginning():
    clock = Clock(99.0)
    reader = Reader(Loop(ZIPF, 0, 100.0, 100_000_000), clock)
    start = reader.initialOffset()
    assert start == {"us": 0, "row": 0, "start_us": 100_000_000}
    assert reader.latestOffset(start, None) == start
    clock.now_s = 101.5099
    end = reader.latestOffset(start, None)
    assert end == {"us": 1_500_000, "row": 150, "start_us": 100_000_000} == reader.reportLatestOffset()
    assert read(reader, start, end) == ZIPF.rows(0, 0, 150, 100.0, 100_000_000)
    clock.now_s = 101.511
    assert reader.latestOffset(end, None) is end
    # A program that starts again names a later beginning, and keeps the one it had.
    again = Reader(Loop(ZIPF, 0, 100.0, 107_000_000), Clock(110.0))
    later = again.latestOffset(end, None)
    assert later == {"us": 10_000_000, "row": 1000, "start_us": 100_000_000}
    assert read(again, end, later) == ZIPF.rows(0, 150, 850, 100.0, 100_000_000)


def test_a_batch_has_so_much_event_time_also_where_no_rows_are_in_it():
    # Orders come in the first, the third and the last quarter of each second.
    reader = Reader(Loop(CITY, 0, 40.0, 0, rows=80, batch_us=100_000), Clock(50.0))
    reader.prepareForTriggerAvailableNow()
    offset, seen = reader.initialOffset(), []
    while (end := reader.latestOffset(offset, None)) != offset:
        seen.append((end["us"], end["row"] - offset["row"]))
        offset = end
    assert [us for us, _ in seen[:-1]] == [100_000 * batch for batch in range(1, len(seen))]
    assert seen[-1][0] == reader.loop.end_us
    assert sum(rows for _, rows in seen) == 80
    assert [rows for _, rows in seen[3:5]] == [0, 0], "nothing from 0.3 to 0.5 s"


def test_paced_streams_keep_their_time_and_end():
    clock = Clock(9.5)
    readers = [
        Reader(Loop(source, side, rate, 10_000_000, rows=20, paced=True), clock, clock.wait)
        for source, side, rate in ((CITY, 0, 10.0), (CITY, 1, 40.0))
    ]
    offsets = [reader.initialOffset() for reader in readers]
    for reader in readers:
        reader.prepareForTriggerAvailableNow()
    ended_s = [None, None]
    for _ in range(1000):
        for at, reader in enumerate(readers):
            before_s = clock.now_s
            end = reader.latestOffset(offsets[at], None)
            assert clock.now_s - before_s < 0.03 or before_s < 10
            assert end["us"] <= (clock.now_s - 10) * 1e6 + 1
            if end == offsets[at]:
                ended_s[at] = ended_s[at] or clock.now_s
            offsets[at] = end
    assert [offset["row"] for offset in offsets] == [20, 20]
    assert 10 + 19 / 40 < ended_s[1] < 10.6
    assert 11.9 < ended_s[0] < 12.1


def test_what_makes_no_sense_is_refused():
    for wrong, said in (
        (lambda: Loop(ZIPF, 0, 1.0, 0, paced=True), "must end somewhere"),
        (lambda: Loop(ZIPF, 0, 1.0, 0, rows=-1), "rows is -1"),
        (lambda: Loop("zipf", 0, 1.0, 0).text(), "there are no streams of 'zipf'; give ZipfStreams or Rides"),
        (lambda: pairs.streams(None, ZIPF, rate=(1, 2, 3)), "rate has 3 values; give one for both sides, or two"),
        (lambda: pairs.streams(None, ZIPF, rate=0), "rate is 0"),
    ):
        with pytest.raises(InvalidOption, match=said):
            wrong()
