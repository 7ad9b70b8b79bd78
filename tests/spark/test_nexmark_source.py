"""NEXMark's events as streams of real Spark: every event once, at its time, at its rate, and on after a restart."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

import meander as me
from meander.errors import InvalidOption
from meander_lab.nexmark.generator.config import Config
from meander_lab.nexmark.generator.events import events
from meander_lab.nexmark.model import KINDS
from meander_lab.nexmark.source import NAME, Loop, register
from meander_lab.nexmark.streams import Events
from streams import PATIENCE_S, wait_until

pytestmark = pytest.mark.spark

CONFIG = Config(generators=3, bid_bytes=60)


class Kept:
    """A query that keeps the rows of every batch, and when it had them."""

    def __init__(self, stream, checkpoint, trigger=None, slow_s=None):
        self.batches: dict[int, pa.Table] = {}
        self.ended_s: dict[int, float] = {}
        self.slow_s = slow_s or {}
        writer = stream.writeStream.foreachBatch(self._keep).option("checkpointLocation", str(checkpoint))
        self.query = (writer.trigger(**trigger) if trigger else writer).start()

    def _keep(self, rows, batch):
        self.batches[batch] = rows.toArrow()
        time.sleep(self.slow_s.get(batch, 0))
        self.ended_s[batch] = time.time()

    def wait(self):
        assert self.query.awaitTermination(PATIENCE_S)
        return self

    def ends(self):
        """Up to which event each source was read, batch by batch."""
        told = [each["sources"] for each in self.query.recentProgress if each["numInputRows"]]
        return [[json.loads(source["endOffset"])["event"] for source in sources] for sources in told]


def tagged(streams):
    """The three streams as one, with the kind of each row and its time in microseconds as Spark understands it."""
    frames = {"person": streams.persons, "auction": streams.auctions, "bid": streams.bids}
    named = [
        frame.withColumns({"kind": F.lit(kind), "micros": F.unix_micros("dateTime")}) for kind, frame in frames.items()
    ]
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), named)


def plain(rows, kind):
    """Rows of a kind as a sorted list, with times in microseconds since 1970."""
    schema = KINDS[kind]
    as_numbers = [pa.int64() if pa.types.is_timestamp(each.type) else each.type for each in schema]
    found = [rows[name].cast(type_) for name, type_ in zip(schema.names, as_numbers, strict=True)]
    return sorted(zip(*(column.to_pylist() for column in found), strict=True))


def made(kind, first, last, config):
    return plain(pa.Table.from_batches([events(kind, first, last, config)]), kind)


def in_order(rows):
    """Rows in order of all their columns, with times as they are in Arrow, whatever zone they are shown in."""
    times = [pa.int64() if pa.types.is_timestamp(each.type) else each.type for each in rows.schema]
    found = pa.table({name: rows[name].cast(to) for name, to in zip(rows.column_names, times, strict=True)})
    return found.combine_chunks().sort_by([(name, "ascending") for name in found.column_names])


def of_kind(rows, kind):
    return rows.filter(pc.equal(rows["kind"], kind))


def test_all_three_kinds_hold_every_event_once_cut_at_the_same_numbers_in_any_time_zone(spark, tmp_path):
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        streams = Events.at_rate(spark, 20_000, 16_000, CONFIG, per_batch=12_000)
        assert [frame.dtypes for frame in (streams.persons, streams.auctions, streams.bids)] == [
            [(each.name, {"int64": "bigint", "string": "string"}.get(str(each.type), "timestamp")) for each in schema]
            for schema in KINDS.values()
        ]
        found = Kept(tagged(streams), tmp_path / "ck", {"availableNow": True}).wait()
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert found.ends() == [[12_000] * 3, [16_000] * 3]
    config = Loop("bid", 20_000, 0, 16_000, config=CONFIG).config
    for rows, (first, last) in zip(found.batches.values(), [(0, 12_000), (12_000, 16_000)], strict=True):
        assert rows["micros"].to_pylist() == rows["dateTime"].cast(pa.int64()).to_pylist()
        for kind in KINDS:
            assert plain(of_kind(rows, kind), kind) == made(kind, first, last, config)


def test_a_live_loop_is_open_and_goes_on_where_it_was_committed(spark, tmp_path):
    """The bounds hold on any machine: no event comes before its time, and none that was due is left for later."""
    rate, began_s = 5000, time.time()
    tick = Loop("bid", rate, began_s).tick
    names = ["price", "auction", "bidder", "dateTime"]

    def bids(start_s):
        return Events.at_rate(spark, rate, config=CONFIG, start=start_s, columns={"bid": names}).bids

    live = Kept(bids(began_s), tmp_path / "ck", slow_s={1: 1.0})
    wait_until(lambda: len(live.ends()) >= 4, "four batches")
    live.query.stop()
    ends = [end for (end,) in live.ends()]
    for batch, end in enumerate(ends):
        assert end <= (live.ended_s[batch] - began_s) * rate
    for batch, end in enumerate(ends[1:]):
        assert end > (live.ended_s[batch] - began_s) * rate - tick - 1
    assert ends[2] - ends[1] > 1.0 * rate - 2 * tick
    again_s = time.time()
    rest = Kept(bids(again_s), tmp_path / "ck", {"availableNow": True}).wait()
    (last,) = rest.ends()[-1]
    assert last > (again_s - began_s) * rate - tick - 1
    config = Loop("bid", rate, began_s, config=CONFIG).config
    found = pa.concat_tables({**live.batches, **rest.batches}.values())
    expected = pa.Table.from_batches([events("bid", 0, last, config)]).select(names)
    assert found.column_names == names
    assert in_order(found) == in_order(expected)


def test_a_query_of_ours_reads_a_paced_loop_to_its_end_at_its_rate(spark, tmp_path):
    start_s = time.time() + 2
    bids = Events.at_rate(spark, 10_000, 5000, CONFIG, start=start_s, paced=True).bids
    sink = me.sinks.memory()
    query = (
        me.stream(bids.select("auction"))
        .key_by("auction")
        .count()
        .start(tmp_path / "ck", sink, workers=2, bins=16, trigger={"availableNow": True})
    )
    query.await_termination()
    assert time.time() >= start_s + 0.5
    config = Loop("bid", 10_000, 0, 5000, config=CONFIG).config
    expected = Counter(events("bid", 0, 5000, config)["auction"].to_pylist())
    assert {row["auction"]: row["count"] for row in sink.latest("auction")} == expected


def test_a_folder_is_read_one_part_of_each_kind_a_batch(spark, tmp_path):
    cuts = [(0, 400), (400, 403), (403, 1000)]
    config = Config(count=1000, generators=1)
    for kind, schema in KINDS.items():
        (tmp_path / kind).mkdir()
        for part, (first, last) in enumerate(cuts):
            file = tmp_path / kind / f"part-{part:05d}.parquet"
            pq.write_table(pa.Table.from_batches([events(kind, first, last, config)], schema), file)
            os.utime(file, (10**9 + part, 10**9 + part))
    found = Kept(tagged(Events.of_files(spark, tmp_path)), tmp_path / "ck", {"availableNow": True}).wait()
    for rows, (first, last) in zip(found.batches.values(), cuts, strict=True):
        for kind in KINDS:
            assert plain(of_kind(rows, kind), kind) == made(kind, first, last, config)
    assert of_kind(found.batches[1], "bid").num_rows == 0


def test_a_folder_without_one_of_the_kinds_is_refused(spark, tmp_path):
    (tmp_path / "person").mkdir()
    with pytest.raises(InvalidOption, match="auction"):
        Events.of_files(spark, tmp_path)


def test_what_makes_no_sense_is_refused_before_a_query_starts(spark):
    with pytest.raises(InvalidOption, match="kind 'bids'"):
        Events.at_rate(spark, 1000, columns={"bids": ["price"]})
    with pytest.raises(InvalidOption, match="rate"):
        Events.at_rate(spark, 0)
    register(spark)
    with pytest.raises(PySparkException, match="needs the option rate"):
        spark.readStream.format(NAME).option("kind", "bid").load()
