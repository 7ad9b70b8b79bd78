"""The open loop of NEXMark's source, without Spark: a clock that is ours, offsets, parts and options."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable

from meander.errors import InvalidOption
from meander_lab.nexmark import source
from meander_lab.nexmark.generator.config import Config
from meander_lab.nexmark.generator.events import events
from meander_lab.nexmark.model import KINDS
from meander_lab.nexmark.source import EventReader, EventStream, Nexmark, cut

ALL = ReadAllAvailable()
START = 1_700_000_000.0


class Clock:
    """Seconds since 1970 that pass only when they are told to, or when somebody waits."""

    def __init__(self, now=START):
        self.now = now
        self.waited = []

    def __call__(self):
        return self.now

    def wait(self, seconds):
        self.waited.append(seconds)
        self.now += seconds


def loop(**options):
    return EventStream(**{"kind": "bid", "rate": 1000.0, "start": START, **options})


def reader(clock, **options):
    return EventReader(loop(**options), clock, clock.wait)


def asked(of, offset, limit=None):
    return of.latestOffset(offset, limit or of.getDefaultReadLimit())


def numbers(parts):
    return [number for part in parts for number in range(part.first, part.last)]


# --- the loop --------------------------------------------------------------------------------


@given(st.integers(1, 2_000_000), st.integers(0, 10**9), st.one_of(st.none(), st.integers(0, 10**7)))
def test_what_has_happened_follows_from_the_time_alone(rate, elapsed_us, count):
    """Up to one event: a float may fall on either side of a whole number."""
    made = loop(rate=float(rate), events=count)
    seconds = elapsed_us / 1_000_000
    happened = made.happened(seconds)
    true = math.floor(Fraction(seconds) * rate)
    tick = max(1, round(rate * source.TICK_S))
    if count is not None and true >= count + 1:
        assert happened == count
    else:
        assert true - tick - 1 < happened <= true + 1
        assert happened % tick == 0 or happened == count


@given(st.integers(1, 2_000_000), st.lists(st.integers(0, 10**8), min_size=2, max_size=20), st.integers(0, 10**6))
def test_nothing_unhappens(rate, times_us, count):
    made = loop(rate=float(rate), events=count)
    seen = [made.happened(us / 1_000_000) for us in sorted(times_us)]
    assert seen == sorted(seen)
    assert made.happened(-5.0) == 0


@given(st.integers(1, 2_000_000), st.integers(0, 10**8), st.integers(1, 10**6))
def test_after_the_time_to_the_next_tick_more_has_happened(rate, at_us, count):
    made = loop(rate=float(rate), events=count)
    seconds = at_us / 1_000_000
    before, wait = made.happened(seconds), made.until_next(seconds)
    if before == count:
        assert wait == 0
    else:
        assert 0 <= wait <= max(source.TICK_S * 1.5, 1 / rate) + 1e-6
        assert made.happened(seconds + wait + 1e-5) > before


def test_event_time_runs_as_real_time_does_or_dilated():
    real, fast = loop(rate=1000.0), loop(rate=7900.0, dilation=79.0)
    assert real.config.time_ms(1000 // real.config.generators) - real.config.base_time_ms == 1000
    assert fast.config.time_ms(7900 // fast.config.generators) - fast.config.base_time_ms == 79_000
    assert loop(config=Config(generators=1)).config.time_ms(2500) == Config().base_time_ms + 2500


# --- offsets ---------------------------------------------------------------------------------


def test_a_slow_batch_leaves_more_to_the_next_one():
    clock = Clock(START + 0.005)
    bids = reader(clock)
    offset = bids.initialOffset()
    assert offset["event"] == 0
    ends = []
    for batch_s in (0.1, 0.1, 3.0, 0.1):
        clock.now += batch_s
        offset = asked(bids, offset)
        ends.append(offset["event"])
    assert ends == [100, 200, 3200, 3300]
    assert asked(bids, offset) == offset


def test_the_kinds_of_a_query_are_cut_at_the_same_numbers_unless_a_tick_comes_between():
    clock = Clock()
    readers = [reader(clock, kind=kind) for kind in KINDS]
    ends = []
    for each in readers:
        clock.now += 0.0411 if each is readers[0] else 0.002
        ends.append(asked(each, each.initialOffset())["event"])
    assert ends == [40, 40, 40]
    clock.now = START + 0.059
    late = [asked(readers[0], readers[0].initialOffset())["event"]]
    clock.now = START + 0.061
    late.append(asked(readers[1], readers[1].initialOffset())["event"])
    assert late == [40, 60]


def test_it_ends_after_the_last_event_which_need_not_be_a_whole_tick():
    clock = Clock(START + 60)
    bids = reader(clock, events=1234)
    end = asked(bids, bids.initialOffset())
    assert end["event"] == 1234
    clock.now += 60
    assert asked(bids, end) == end


def test_before_the_beginning_nothing_has_happened():
    clock = Clock(START - 10)
    bids = reader(clock)
    assert asked(bids, bids.initialOffset()) == bids.initialOffset()


def test_a_clock_that_is_set_back_takes_nothing_back():
    clock = Clock(START + 2)
    bids = reader(clock)
    end = asked(bids, bids.initialOffset())
    clock.now -= 1.5
    assert asked(bids, end) == end
    assert end["event"] == 2000


def test_who_starts_again_keeps_the_beginning_and_what_happened_meanwhile_waits():
    clock = Clock(START + 1)
    committed = asked(reader(clock), reader(clock).initialOffset())
    clock.now += 10
    again = EventReader(loop(start=clock.now), clock, clock.wait)
    end = asked(again, json.loads(json.dumps(committed)))
    assert (committed["event"], end["event"]) == (1000, 11_000)
    assert again.reportLatestOffset() == end


def test_a_batch_takes_no_more_than_it_may_and_the_rest_waits():
    clock = Clock(START + 1)
    bids = reader(clock, per_batch=300)
    offset, ends = bids.initialOffset(), []
    for _ in range(5):
        offset = asked(bids, offset)
        ends.append(offset["event"])
    assert ends == [300, 600, 900, 1000, 1000]
    assert bids.reportLatestOffset()["event"] == 1000
    assert asked(bids, bids.initialOffset(), ALL)["event"] == 1000


def test_available_now_is_everything_at_once_or_batch_by_batch():
    for per_batch, expected in ((None, [2500, 2500]), (1000, [1000, 2000, 2500, 2500])):
        bids = reader(Clock(), events=2500, per_batch=per_batch)
        bids.prepareForTriggerAvailableNow()
        offset, ends = bids.initialOffset(), []
        for _ in expected:
            offset = asked(bids, offset)
            ends.append(offset["event"])
        assert ends == expected


def test_available_now_without_a_number_of_events_is_what_happened_before():
    clock = Clock(START + 2)
    bids = reader(clock)
    bids.prepareForTriggerAvailableNow()
    clock.now += 5
    end = asked(bids, bids.initialOffset())
    assert end["event"] == 2000
    assert asked(bids, end) == end


def test_a_paced_loop_keeps_its_rate_with_available_now_and_ends():
    clock = Clock()
    bids = reader(clock, events=210, paced=True)
    bids.prepareForTriggerAvailableNow()
    offset, seen = bids.initialOffset(), []
    while True:
        after = asked(bids, offset)
        if after == offset:
            break
        seen.append((after["event"], round(clock.now - START, 2)))
        offset = after
        if after["event"] == 40:
            clock.now += 0.1
    assert seen == [(20, 0.02), (40, 0.04), (140, 0.14), (160, 0.16), (180, 0.18), (200, 0.2), (210, 0.21)]
    assert clock.waited
    assert min(clock.waited) > 0


def test_without_available_now_a_paced_loop_waits_for_nothing():
    clock = Clock()
    bids = reader(clock, events=210, paced=True)
    assert asked(bids, bids.initialOffset()) == bids.initialOffset()
    assert clock.waited == []


# --- parts and rows --------------------------------------------------------------------------


@given(st.integers(0, 10**6), st.integers(0, 500), st.integers(1, 40))
def test_ranges_cover_each_number_once_and_differ_by_one_at_most(first, length, parts):
    found = cut(first, first + length, parts)
    assert [number for low, high in found for number in range(low, high)] == list(range(first, first + length))
    sizes = [high - low for low, high in found]
    assert len(found) == min(parts, length)
    assert not sizes or max(sizes) - min(sizes) <= 1


@given(st.integers(0, 10**6), st.integers(0, 60_000), st.integers(1, 8), st.sampled_from(list(KINDS)))
def test_parts_cover_each_event_once_and_are_worth_a_task(first, length, partitions, kind):
    made = reader(Clock(), kind=kind, partitions=partitions)
    parts = made.partitions({"event": first, "start_ms": 0}, {"event": first + length, "start_ms": 0})
    assert numbers(parts) == list(range(first, first + length))
    assert len(parts) <= partitions
    if len(parts) > 1:
        assert length * made.loop.share / len(parts) > source.TASK_ROWS / 2


def test_more_rows_than_go_over_at_once_are_the_same_rows(monkeypatch):
    monkeypatch.setattr(source, "BATCH_ROWS", 100)
    for kind in KINDS:
        made = reader(Clock(), kind=kind, events=50_000)
        (part,) = made.partitions({"event": 1003, "start_ms": 0}, {"event": 9007, "start_ms": 0})
        batches = list(made.read(part))
        whole = events(kind, 1003, 9007, made.loop.config)
        assert pa.Table.from_batches(batches) == pa.Table.from_batches([whole])
        assert len(batches) == math.ceil((9007 - 1003) * made.loop.share / 100)


@pytest.mark.parametrize("count", [None, 20_000])
@pytest.mark.parametrize("kind", list(KINDS))
def test_columns_that_are_left_out_change_none_of_the_others(kind, count):
    names = [name for name in reversed(KINDS[kind].names) if name != "extra"]
    made = reader(Clock(), kind=kind, columns=tuple(names), events=count)
    (part,) = made.partitions({"event": 700, "start_ms": 0}, {"event": 12_000, "start_ms": 0})
    found = pa.Table.from_batches(made.read(part))
    whole = events(kind, 700, 12_000, made.loop.config)
    assert found.column_names == names
    assert found == pa.Table.from_batches([whole.select(names)])


# --- options ---------------------------------------------------------------------------------

loops = st.builds(
    EventStream,
    kind=st.sampled_from(list(KINDS)),
    rate=st.floats(200.0, 1e6),
    start=st.floats(0, 4e9),
    events=st.integers(0, 10**9),
    dilation=st.floats(0.6, 100.0),
    partitions=st.integers(1, 100),
    per_batch=st.one_of(st.none(), st.integers(1, 10**9)),
    paced=st.booleans(),
    columns=st.sampled_from([(), ("extra", "dateTime")]),
    config=st.builds(Config, generators=st.integers(1, 9), hot_auctions=st.integers(1, 9), bid_bytes=st.integers(0, 9)),
)


@given(loops)
def test_options_say_the_loop(made):
    assert all(isinstance(text, str) for text in made.options().values())
    assert EventStream.of(made.options()) == made


def test_the_schema_has_the_columns_that_are_wanted():
    found = Nexmark(loop(columns=("price", "dateTime")).options()).schema()
    assert found.simpleString() == "struct<price:bigint,dateTime:timestamp>"
    assert Nexmark(loop(kind="person").options()).schema().names == KINDS["person"].names


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"kind": "bird"}, "bird"),
        ({"rate": 0.0}, "rate"),
        ({"rate": math.nan}, "rate"),
        ({"rate": 10.0, "dilation": 60.0}, "dilation 60"),
        ({"dilation": -1.0}, "dilation"),
        ({"start": -1.0}, "start"),
        ({"events": -1}, "events"),
        ({"partitions": 0}, "partitions"),
        ({"per_batch": 0}, "per_batch"),
        ({"paced": True}, "end somewhere"),
        ({"columns": ("auction", "seller")}, "no column 'seller'"),
        ({"columns": ("auction", "auction")}, "twice"),
        ({"config": Config(next_rate_per_s=5)}, "next_rate_per_s"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(wrong, words):
    with pytest.raises(InvalidOption, match=words):
        loop(**wrong)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"rate": "fast"}, "rate.*fast"),
        ({"events": "1.5"}, "events.*1.5"),
        ({"paced": "perhaps"}, "true or false"),
        ({"config": "[]"}, "JSON object"),
        ({"config": '{"birds": 1}'}, "birds"),
        ({"speed": "3"}, "no option 'speed'"),
        ({"kind": None}, "needs the option kind"),
        ({"rate": None}, "needs the option rate"),
        ({"start": None}, "needs the option start"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(wrong, words):
    given_ = {**loop().options(), **wrong}
    with pytest.raises(InvalidOption, match=words):
        EventStream.of({name: text for name, text in given_.items() if text is not None})
