"""Where the output goes: once for each version, whatever the sink does with it."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import meander as me
from meander.engine.spark.exchange import SparkOutput
from meander.engine.worker.output import ROWS
from streams import PATIENCE_S, Feed, Several, as_ints, by_batch, cut, files_written, recounted

pytestmark = pytest.mark.spark


def numbers(rows: int, keys: int, seed: int) -> pa.Table:
    rng = random.Random(seed)
    return as_ints([rng.randrange(keys) for _ in range(rows)])


def start(stream, tmp_path, sink, **options):
    return stream.start(tmp_path / "ck", sink, workers=2, trigger={"availableNow": True}, **options)


def commits(tmp_path) -> int:
    """How many versions are committed, read from the checkpoint alone."""
    from meander.store.reader import Reader

    return Reader.open(tmp_path / "ck").log.index.version + 1


def test_files_hold_each_version_once_also_after_a_replay(spark, tmp_path):
    batches = cut(numbers(800, 60, 1), 4, random.Random(1))
    feed = Feed(tmp_path / "in", batches[0].schema).add(*batches)
    stream = me.stream(feed.read(spark)).key_by("key").count()
    files = me.sinks.files(str(tmp_path / "out"))
    called = []

    class FilesThenFailure(me.sinks.Files):
        def prepare(self, output, write):
            called.append(write.version)
            token = super().prepare(output, write)
            if write.version == 2:
                raise RuntimeError("the network is down")
            return token

    query = start(stream, tmp_path, FilesThenFailure(str(tmp_path / "out"), "parquet", {}))
    with pytest.raises(RuntimeError, match="the network is down"):
        query.await_termination(PATIENCE_S)
    assert str(query.exception()) == "the network is down"
    assert called == [0, 1, 2]
    assert commits(tmp_path) == 2
    assert {path.name for path in (tmp_path / "out").iterdir()} == {".prepared", "batch=0", "batch=1"}
    assert spark.read.parquet(str(tmp_path / "out")).select("batch").distinct().count() == 2

    query = start(stream, tmp_path, files)
    query.await_termination(PATIENCE_S)
    assert query.exception() is None
    expected = {number: found for number, found in enumerate(recounted(batches, ["key"])) if found}
    assert by_batch(files_written(tmp_path / "out"), ["key"]) == expected
    assert not list((tmp_path / "out" / ".prepared").iterdir())
    assert query.misrouted == 0


def test_an_operator_runs_once_however_often_its_output_is_read(spark, tmp_path):
    calls = str(tmp_path / "calls")

    def tally(rows, state):
        import pyarrow as pa

        with open(calls, "a") as file:  # noqa: PTH123
            file.write(f"{rows.num_rows}\n")
        seen = rows["__group"].value_counts().to_pylist()
        counts = {each["values"]: each["counts"] for each in seen}
        new = [(old or 0) + counts[g] for g, old in enumerate(state["n"].to_pylist())]
        return pa.table({"n": new}), pa.table({"key": state["key"], "n": new})

    batches = [numbers(200, 40, seed) for seed in range(4)]
    feed = Feed(tmp_path / "in", batches[0].schema, parts=2).add(*batches)
    stream = me.stream(feed.read(spark)).key_by("key").fold(tally, "n bigint", "key bigint, n bigint")
    read = []

    def curious(df, version):
        if version == 0:
            read.append(len(df.limit(1).collect()))
        elif version == 1:
            read.append([df.count(), len(df.collect()), df.agg({"n": "sum"}).collect()[0][0]])
        elif version == 2:
            df.explain()
        else:
            read.append({row.key: row.n for row in df.collect()})

    query = start(stream, tmp_path, curious)
    query.await_termination(PATIENCE_S)
    expected = recounted(batches, ["key"])
    assert read[0] == 1
    assert read[1] == [len(expected[1]), len(expected[1]), sum(expected[1].values())]
    assert read[2] == {key: n for (key,), n in expected[3].items()}
    lines = [int(line) for line in Path(calls).read_text().split()]
    assert len(lines) == 2 * len(batches)
    assert sum(lines) == sum(batch.num_rows for batch in batches)
    assert query.misrouted == 0


def test_large_output_goes_through_files_and_can_be_read_twice_and_kept(spark, tmp_path):
    rows = pa.table({"key": [f"{n:>60}" for n in range(60_000)]})
    batches = [rows, rows.slice(0, 40_000)]
    feed = Feed(tmp_path / "in", rows.schema, parts=2).add(*batches)
    told = []
    memory, files = me.sinks.memory(), me.sinks.files(str(tmp_path / "out"), compression="none")

    class Curious(me.sinks.Sink):
        def prepare(self, output, write):
            frame = output.frame()
            answer = (frame.count(), frame.distinct().count(), len(frame.limit(1).collect()), frame.toArrow())
            told.append((len(output.files), output.small, *answer))

    sink = Several(Curious(), memory, files)
    query = start(me.stream(feed.read(spark)).key_by("key").count(), tmp_path, sink)
    query.await_termination(PATIENCE_S)
    for (parts, small, many, distinct, limited, table), batch, count in zip(told, batches, (1, 2), strict=True):
        assert parts == 2
        assert small is None
        assert (many, distinct, limited) == (batch.num_rows, batch.num_rows, 1)
        assert sorted(table["key"].to_pylist()) == sorted(batch["key"].to_pylist())
        assert set(table["count"].to_pylist()) == {count}
    wanted = {
        version: dict.fromkeys(((key,) for key in batch["key"].to_pylist()), version + 1)
        for version, batch in enumerate(batches)
    }
    assert by_batch(memory.to_arrow(), ["key"]) == wanted
    assert by_batch(files_written(tmp_path / "out"), ["key"]) == wanted
    assert query.misrouted == 0


def test_memory_and_console_and_any_format_of_spark_take_what_came(spark, tmp_path, capfd):
    feed = Feed(tmp_path / "in", as_ints([]).schema).add(as_ints([7, 7, 8]), as_ints([7]))
    sinks = [
        me.sinks.memory("seen"),
        me.sinks.console(rows=1),
        me.sinks.files(str(tmp_path / "out"), format="json"),
    ]

    stream = me.stream(feed.read(spark)).key_by("key").count()
    start(stream, tmp_path, Several(*sinks)).await_termination(PATIENCE_S)
    memory = sinks[0]
    assert sorted(row["count"] for row in memory.latest("key")) == [1, 3]
    assert memory.to_df(spark).count() == 3
    assert spark.sql("select sum(count) as n from seen where batch = 0").collect()[0].n == 3
    shown = capfd.readouterr().out
    assert "batch 0" in shown
    assert "only the first row is shown" in shown
    found = spark.read.json(str(tmp_path / "out")).collect()
    assert sorted((row.batch, row.key, row["count"]) for row in found) == [(0, 7, 2), (0, 8, 1), (1, 7, 3)]


def test_sql_reads_the_committed_rows_of_a_memory_sink_at_every_query(spark, tmp_path, caplog):
    batches = cut(numbers(400, 20, 3), 3, random.Random(3))
    feed = Feed(tmp_path / "in", batches[0].schema)
    stream = me.stream(feed.read(spark)).key_by("key").count()
    sink = me.sinks.memory("live_counts")
    query = stream.start(tmp_path / "ck", sink, workers=2, bins=16)

    def rows(text):
        return [row.asDict() for row in spark.sql(text).collect()]

    assert rows("select * from live_counts") == []
    emitted = recounted(batches, ["key"])
    for number, batch in enumerate(batches):
        feed.add(batch)
        query.process_all_available()
        seen = rows("select * from live_counts order by batch, key")
        assert seen == sorted(sink.to_arrow().to_pylist(), key=lambda row: (row["batch"], row["key"]))
        assert len(seen) == sum(map(len, emitted[: number + 1]))
    total = "select sum(count) as n from (select key, max(count) as count from live_counts group by key)"
    assert rows(total) == [{"n": 400}]
    joined = "select count(*) as n from live_counts a join live_counts b on a.key = b.key and a.batch = b.batch"
    assert rows(joined) == [{"n": len(seen)}], "also where it is read twice"

    query.stop()
    assert rows(total) == [{"n": 400}], "it stays when the query has ended"
    spark.range(3).createOrReplaceTempView("live_mine")
    others = {"live_counts": "showed another memory sink", "live_mine": "another view called live_mine, which stays"}
    fresh = {name: me.sinks.memory(name) for name in others}
    for name, said in others.items():
        stream.start(tmp_path / name, fresh[name], workers=2, bins=16).stop()
        assert said in caplog.text
    # Stopped before its first version or after it, which holds all batches: the rows are those of the other sink.
    seen = rows("select * from live_counts order by batch, key")
    assert seen == sorted(fresh["live_counts"].to_arrow().to_pylist(), key=lambda row: (row["batch"], row["key"]))
    assert len({row["batch"] for row in seen}) <= 1
    assert rows("select count(*) as n from live_mine") == [{"n": 3}]
    caplog.clear()
    stream.start(tmp_path / "ck", sink, workers=2, bins=16).stop()
    assert "live_counts" not in caplog.text, "a sink that comes back to its view has nothing to say"
    assert rows(total) == [{"n": 400}]
    for name in others:
        spark.catalog.dropTempView(name)


class ByWorkers(me.sinks.Files):
    """Workers write, however little it is."""

    def form(self, *query):
        return super().form(*query)._replace(inline=0)


class BySpark(me.sinks.Files):
    """A job of Spark writes."""

    def form(self, *query):
        return ROWS


MOMENTS = ("2026-03-29 01:59:59.999999", "0001-01-01 00:00:00", "9999-12-31 23:59:59.999999")
MOMENT = f"element_at(array{MOMENTS}, cast(id % 3 + 1 as int))"
VALUES = {
    "id % 2 = 0": "boolean", "id": "tinyint", "-id": "smallint", "id * 7": "int", "id / 8": "decimal(12,3)",
    "repeat('9', 30) || id": "decimal(38,0)", "id / 3": "float", "if(id % 3 = 0, double('NaN'), -0.0)": "double",
    "date_add(date'0001-01-01', cast(id * 90000 as int))": "date", MOMENT: "timestamp",
    f"trim({MOMENT})": "timestamp_ntz", "unhex('00ff')": "binary", "if(id % 5 = 0, null, 'ü' || id)": "string",
    "array(id, null)": "array<int>",
    "named_struct('a', id, 'b', array('x'))": "struct<a:int,b:array<string>>", "map('k', id)": "map<string,bigint>",
}  # fmt: skip


def test_what_workers_write_is_what_spark_would_write(spark, tmp_path):
    columns = (f"cast({value} as {type_}) as `{at}`" for at, (value, type_) in enumerate(VALUES.items()))
    rows = spark.range(40).selectExpr("id as key", *columns)
    rows.write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema(rows.schema).parquet(str(tmp_path / "in"))
    folders = []
    for kind in (ByWorkers, BySpark):
        folder = tmp_path / kind.__name__
        folders.append(folder / "out")
        same = me.stream(stream).key_by("key").dedup()
        start(same, folder, kind(str(folder / "out"), "parquet", {})).await_termination(PATIENCE_S)
    mine, theirs = (spark.read.parquet(str(folder)) for folder in folders)
    assert {path.name[:7] for path in (folders[0] / "batch=0").iterdir()} == {"part-0-", "_SUCCES"}
    assert mine.schema == theirs.schema
    rows_of = [
        [row.json for row in frame.selectExpr("to_json(struct(*)) as json").collect()] for frame in (mine, theirs)
    ]
    assert sorted(rows_of[0]) == sorted(rows_of[1])
    assert len(rows_of[0]) == 40
    assert pq.read_table(folders[0] / "batch=0").column_names == theirs.drop("batch").columns


@pytest.mark.parametrize(
    ("options", "codec"), [({}, "ZSTD"), ({"compression": "gzip"}, "GZIP"), ({"compression": "none"}, "UNCOMPRESSED")]
)
def test_workers_compress_as_the_session_or_an_option_says(spark, tmp_path, monkeypatch, options, codec):
    monkeypatch.setattr(SparkOutput, "frame", None)  # no job of Spark's beside ours
    spark.conf.set("spark.sql.parquet.compression.codec", "zstd")
    try:
        feed = Feed(tmp_path / "in", as_ints([1]).schema).add(as_ints([1, 2, 2]))
        query = start(
            me.stream(feed.read(spark)).key_by("key").count(),
            tmp_path,
            ByWorkers(str(tmp_path / "out"), "parquet", options),
        )
        query.await_termination(PATIENCE_S)
    finally:
        spark.conf.unset("spark.sql.parquet.compression.codec")
    files = sorted((tmp_path / "out" / "batch=0").glob("part-*"))
    assert {pq.ParquetFile(path).metadata.row_group(0).column(0).compression for path in files} == {codec}
    assert by_batch(files_written(tmp_path / "out"), ["key"]) == {0: {(1,): 1, (2,): 2}}


def test_what_only_sparks_writer_can_do_is_done_by_it(spark):
    schema = pa.schema([("n", pa.int64())])
    assert me.sinks.files("out").form(spark, schema).folder.endswith("/out/.prepared")
    assert me.sinks.files("out", maxRecordsPerFile="10").form(spark, schema) == ROWS
    assert me.sinks.files("out", format="orc").form(spark, schema) == ROWS
    assert me.sinks.files("out", compression="lz4raw").form(spark, schema) == ROWS
    assert me.sinks.files("out").form(spark, pa.schema([("gap", pa.duration("us"))])) == ROWS


def test_a_sink_may_look_at_the_rows_before_it_takes_the_files(spark, tmp_path):
    looks = []

    class Curious(ByWorkers):
        def prepare(self, output, write):
            looks.append(sorted(tuple(row) for row in output.frame().collect()))
            return super().prepare(output, write)

    feed = Feed(tmp_path / "in", as_ints([1]).schema).add(as_ints([1, 2, 2]), as_ints([1]))
    counts = me.stream(feed.read(spark)).key_by("key").count().select("count", "key")
    query = start(counts, tmp_path, Curious(str(tmp_path / "out"), "parquet", {}))
    query.await_termination(PATIENCE_S)
    assert looks == [[(1, 1), (2, 2)], [(2, 1)]]
    assert spark.read.parquet(str(tmp_path / "out")).columns == ["count", "key", "batch"]
