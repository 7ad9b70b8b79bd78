"""The user's way in: a stream, its key, an operator, and the query that runs.

    query = me.stream(words).key_by("word").count().start(checkpoint="...", sink=me.sinks.memory("counts"))

Everything is checked before anything runs; the work itself is in `meander.engine`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from meander.engine.driver.run import QueryRun
from meander.engine.driver.settings import Settings
from meander.engine.spark.gateway import Gateway
from meander.engine.spark.jobs import OperatorNode
from meander.engine.spark.launch import SparkLaunch
from meander.engine.spark.sizing import default_workers
from meander.engine.spark.stream import ControlReader, check_control
from meander.engine.worker.rows import shown
from meander.errors import InvalidOption
from meander.operators.aggregate import Aggregate
from meander.operators.count import Count
from meander.operators.custom import Custom
from meander.operators.dedup import Dedup
from meander.operators.flat_map import FlatMap
from meander.operators.fold import Fold
from meander.operators.join import Join
from meander.operators.map_state import MapWithState
from meander.operators.operator import ALL, BinnedOperator, Operator
from meander.operators.pairs import Where
from meander.operators.times import Duration
from meander.operators.top_k import TopK
from meander.operators.window import window
from meander.query import Query
from meander.sinks import sink_of
from meander.sources import UNDECODED, PairSource, RowSource, as_side, schema_of, undecoded

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["ConnectedStreams", "KeyedStream", "Query", "Stream", "WindowedStream", "stream"]


@dataclass(frozen=True)
class Stream:
    """Rows on their way: those of a streaming DataFrame, or the output of operators over it."""

    source: DataFrame | RowSource
    schema: pa.Schema
    nodes: tuple[OperatorNode, ...] = ()

    def key_by(self, *key: str | Column) -> KeyedStream:
        """The same rows, cut into bins by these columns; without any, all rows have one key.

        A key is made of integers, strings, binary, dates and timestamps. An expression needs a name:
        `key_by(F.lower("word").alias("word"))`.
        """
        columns: dict[str, Any] = {}
        names: list[str] = []
        if not key:
            columns[ALL] = 0 if isinstance(self.source, RowSource) else _literal(0)
            names = [ALL]
        for each in key:
            if isinstance(each, str):
                if each not in self.schema.names:
                    have = ", ".join(name for name in self.schema.names)
                    raise InvalidOption(f"there is no column {each!r} to key by; there are: {have}")
                names.append(each)
            else:
                name = _name_of(each)
                columns[name] = each
                names.append(name)
        return KeyedStream(self, tuple(names), columns)

    def join(
        self,
        right: Stream | DataFrame,
        on: str | Sequence[str] | Mapping[str, str],
        *,
        within: Duration | tuple[Duration, Duration] | None = None,
        window: Duration | None = None,
        how: str = "inner",
        where: Where | None = None,
        time: str | tuple[str, str] | None = None,
        lateness: Duration = "0s",
    ) -> Stream:
        """Pairs of rows of this stream and another that have equal keys and are near in event time, each pair once.

        Args:
            right: the other stream, or a streaming DataFrame.
            on: the columns that must be equal: a name, several, or {left: right} where they are called differently.
            within: how far apart in event time the two rows of a pair may be; of a pair (before, after), how much
                earlier and how much later the right row may be than the left one.
            window: instead, rows pair if they are in the same window of this size, aligned to the epoch.
            how: "inner", or "left": left rows without a partner come too, with nulls, once none can come any more.
            where: a further condition: a function of candidate pairs that returns a boolean for each, such as
                `lambda pairs: pc.less(pairs["x"], pairs["x_right"])`, or an expression such as
                `pc.field("x") < pc.field("x_right")`.
            time: the columns of event time, one name or one for each side; by default the only timestamp there is.
            lateness: how far rows may come behind the newest one of the input that is behind; later ones go to the
                side output `late`.

        The columns are those joined on, those of the left rows, and those of the right, with `_right` behind names that
        the left has too.
        """
        other = right if isinstance(right, Stream) else stream(right)
        if self.nodes or other.nodes:
            raise InvalidOption("join takes two sources; an operator's output cannot be joined yet")
        named = _pairs_of(on)
        both = [each.key_by(*key) for each, key in zip((self, other), named, strict=True)]
        schemas = (self.schema, other.schema)
        inner = Join(
            schemas, named, within=within, window=window, how=how, where=where, time=time, lateness=lateness
        )  # fmt: skip
        return _over_both(both, schemas, inner)

    def start(
        self,
        checkpoint: str | os.PathLike[str],
        sink: object,
        *,
        workers: int | None = None,
        bins: int = 256,
        trigger: Mapping[str, Any] | None = None,
        name: str | None = None,
        control: DataFrame | None = None,
        **settings: Any,
    ) -> Query:
        """Start the query; it runs until it is stopped, fails, or its trigger says it is done.

        Args:
            checkpoint: folder for state and progress. Starting again with the same one goes on where it ended.
            sink: one of `me.sinks`, or a function of (df, batch_id).
            workers: how many workers own the bins; by default one for each core of the executors, of which those that
                Spark was set up with are waited for. A query that was rescaled while it ran stays so when it is
                started again with the same number, or with none.
            bins: into how many slices the keys are cut, for good; a power of two.
            trigger: as in Spark: `{"processingTime": "1 second"}`, `{"availableNow": True}`.
            name: the query's name, a-z, 0-9, _ and -.
            control: a stream of moves: a streaming DataFrame of (batch, bin, worker), and operator if there are
                several. As of that batch the worker owns the bin; it is copied before, if there is time.
            settings: snapshot_every, retain, retain_side, fsync, idle_after_s, idle_time, at_end, attempts,
                hand_over_bytes, copy_bytes, copy_ms, release_after; see `meander.engine.driver.settings.Settings`.
        """
        if not self.nodes:
            raise InvalidOption("there is nothing to run yet; add .key_by(...) and an operator such as .count()")
        if isinstance(self.source, RowSource):
            raise InvalidOption("this stream has no rows of its own; run it with me.testing.harness")
        try:
            chosen = Settings(str(os.fspath(checkpoint)), 1 if workers is None else workers, bins, name, **settings)
        except TypeError as error:
            unknown = str(error).rpartition(" ")[2]
            known = ", ".join(Settings.__dataclass_fields__)
            raise InvalidOption(f"start has no option {unknown}; there are: sink, trigger, {known}") from None
        if workers is None:
            cores = default_workers(Gateway(self.source.sparkSession), chosen.executors_within_s)
            chosen = replace(chosen, workers=cores)
        return _start(self, chosen, sink, dict(trigger or {}), workers, control)

    def with_node(self, node: OperatorNode) -> Stream:
        """The output of one more operator."""
        return replace(self, schema=shown(node.operator.output), nodes=(*self.nodes, node))


TRIGGERS = ("processingTime", "availableNow", "once")


def _start(
    stream: Stream,
    settings: Settings,
    sink: object,
    trigger: Mapping[str, Any],
    requested: int | None,
    control: DataFrame | None,
) -> Query:
    unknown = set(trigger) - set(TRIGGERS)
    if unknown or len(trigger) > 1:
        raise InvalidOption(f"the trigger {trigger} is none of Spark's that fit: one of {', '.join(TRIGGERS)}")
    if settings.at_end == "close" and not {"availableNow", "once"} & set(trigger):
        raise InvalidOption(
            "at_end='close' is for a query that ends; start it with trigger={'availableNow': True}, or leave at_end out"
        )
    if control is not None:
        check_control(control)
    assert not isinstance(stream.source, RowSource)
    run = QueryRun(SparkLaunch(stream.source, stream.nodes, settings, sink_of(sink), trigger, requested))
    query = Query(run)
    if control is not None:
        query.accompany(ControlReader(run, control))
    return query


@dataclass(frozen=True)
class KeyedStream:
    """Rows cut into bins by their key, waiting for an operator.

    Every operator emits, with each batch, the keys that changed, with their new values.
    """

    stream: Stream
    key: tuple[str, ...]
    columns: Mapping[str, Any] = field(default_factory=dict)
    """Key columns that have to be computed first, as Spark expressions."""

    def count(self, name: str = "count") -> Stream:
        """How many rows each key has had so far."""
        return _with_operator(self, lambda schema: Count(schema, self.key, name), columns=())

    def aggregate(self, by: str | None = None, **named: Any) -> Stream:
        """Several aggregates at once: `aggregate(total=("sum", "price"), top=("max", "price"), n="count")`.

        The functions are sum, min, max, mean, count, first and last. `by` names the column of event time by which the
        first and the last are told.
        """
        return _with_operator(
            self, lambda schema: Aggregate(schema, self.key, named, by), columns=_columns_of(named, by)
        )

    def dedup(self, time: str | None = None, within: Duration | None = None) -> Stream:
        """The first row of every key, once; with `within`, a key is forgotten after so much event time."""
        return _with_operator(self, lambda schema: Dedup(schema, self.key, time, within))

    def top_k(self, k: int, by: str, **options: Any) -> Stream:
        """The k best rows of every key by a column, with their rank, whenever they change.

        Options: largest (True), identity (columns that tell which rows are updates of one another), time, rank.
        """
        return _with_operator(self, lambda schema: TopK(schema, self.key, k, by, **options))

    def window(
        self,
        time: str,
        size: Duration | None = None,
        *,
        slide: Duration | None = None,
        gap: Duration | None = None,
        lateness: Duration = "0s",
        emit: str | None = None,
    ) -> WindowedStream:
        """The rows of each key in windows of event time, for `.count()` or `.aggregate(...)`.

        Args:
            time: the column of event time.
            size: how long a window is.
            slide: how far apart windows begin; by default they follow one another.
            gap: sessions: a window ends when its key has had no row for so long.
            lateness: how far rows may come behind the newest one; later ones go to the side output `late`.
            emit: "update", the windows that changed, or "final", each window once when it has closed. By default
                sessions are final and the others update.
        """
        options = {"time": time, "size": size, "slide": slide, "gap": gap, "lateness": lateness, "emit": emit}
        return WindowedStream(self, options)

    def map_with_state(
        self,
        function: Callable[..., Any],
        state: str,
        output: str,
        *,
        time: str | None = None,
        timeout: Duration | None = None,
        lateness: Duration = "0s",
        rows: str | None = None,
    ) -> Stream:
        """What `function(key, rows, state)` gives, called for every key that has rows in a batch.

        Args:
            function: gets the key (a tuple where it has several columns), the key's rows of the batch in order, and
                its `me.KeyState`. It yields rows, or returns a list of them: dictionaries or tuples.
            state: the columns that are kept for every key, such as "n long, last timestamp".
            output: the columns of the rows that it gives.
            time: the column of event time; rows are in its order, and timers are times of it. With a timeout, by
                default the only timestamp there is.
            timeout: a key that has state and had no row for so much event time is called without rows, and with
                `state.timed_out`, once the watermark is past it. While no rows come the watermark stands, unless
                the query is started with idle_time="wall".
            lateness: how far the watermark stays behind the newest event time.
            rows: "plain", a list of named tuples, "pandas" or "arrow"; by default as the argument is annotated:
                list, pd.DataFrame or pa.Table.

        It is called once a key. Where all keys can be computed together, as columns, `fold` is faster still: sums,
        counts and extremes, or many keys with few rows each. See `meander.operators.map_state.MapWithState`.
        """
        options: dict[str, Any] = {"time": time, "timeout": timeout, "lateness": lateness, "rows": rows}
        return _with_operator(self, lambda schema: MapWithState(schema, self.key, function, state, output, **options))

    def flat_map(self, function: Callable[..., Any], output: str) -> Stream:
        """What `function(row)` gives for every row, any number of rows of these columns; nothing is kept.

        The rows go to the workers of their keys first. Before the first `key_by`, Spark's own `mapInPandas` needs no
        shuffle. See `meander.operators.flat_map.FlatMap`.
        """
        return _with_operator(self, lambda schema: FlatMap(schema, self.key, function, output))

    def fold(
        self, function: Callable[..., Any], state: str, output: str, time: str | None = None, rows: str | None = None
    ) -> Stream:
        """What a function of rows and state returns, called once a batch; see `meander.operators.fold.Fold`."""
        return _with_operator(self, lambda schema: Fold(schema, self.key, function, state, output, time, rows))

    def connect(self, other: KeyedStream) -> ConnectedStreams:
        """The stream and another one with a key of the same types, for an operator with two inputs."""
        if self.stream.nodes or other.stream.nodes:
            raise InvalidOption("connect takes two sources; an operator's output cannot be connected yet")
        return ConnectedStreams(self, other)

    def process(self, operator: type[Operator] | Operator) -> Stream:
        """Run an operator of your own: a class that derives from `me.Operator`, or an instance of one."""
        inner = Custom(operator, _keyed_schema(self), self.key)
        return _with_operator(self, lambda schema: Custom(operator, schema, self.key), columns=inner.declared[0].names)


def _with_operator(
    keyed: KeyedStream, build: Callable[[pa.Schema], BinnedOperator], columns: Sequence[str] | None = None
) -> Stream:
    """Add an operator that reads the key and these columns; None: all of them."""
    schema = _keyed_schema(keyed)
    inner = build(schema)
    if columns is not None:
        wanted = {*keyed.key, *columns}
        inner = build(pa.schema([each for each in schema if each.name in wanted]))
    bad = None if keyed.stream.nodes else undecoded(keyed.stream.source)
    return keyed.stream.with_node(OperatorNode(inner, dict(keyed.columns), bad))


def _keyed_schema(keyed: KeyedStream) -> pa.Schema:
    """The columns of the rows, with those of the key that have to be computed."""
    stream, columns = keyed.stream, keyed.columns
    if not columns:
        return stream.schema
    kept = [each for each in stream.schema if each.name not in columns]
    if isinstance(stream.source, RowSource):
        unfit = [name for name in columns if name != ALL]
        if unfit:
            raise InvalidOption(
                f"the key {unfit[0]!r} is an expression of Spark; in a test without Spark, key by a column"
            )
        return pa.schema([*kept, pa.field(ALL, pa.int32())])
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

    source = stream.source
    if stream.nodes:
        source = source.sparkSession.createDataFrame([], from_arrow_schema(stream.schema))
    new = source.select(*[column.alias(name) for name, column in columns.items()])
    return pa.schema([*kept, *to_arrow_schema(new.schema, timezone="UTC")])


@dataclass(frozen=True)
class ConnectedStreams:
    """Two streams with keys of the same types, for an operator with two inputs."""

    left: KeyedStream
    right: KeyedStream

    def process(self, operator: type[Operator] | Operator) -> Stream:
        """Run an operator of your own whose `on_batch` takes `left, right, state, now`."""
        both = (self.left, self.right)
        key = (self.left.key, self.right.key)
        declared = Custom(operator, tuple(_keyed_schema(each) for each in both), key).declared
        schemas = [
            pa.schema([field for field in _keyed_schema(each) if field.name in {*wanted.names, *each.key}])
            for each, wanted in zip(both, declared, strict=True)
        ]
        return _over_both(both, schemas, Custom(operator, (schemas[0], schemas[1]), key))


def _over_both(both: Sequence[KeyedStream], schemas: Sequence[pa.Schema], inner: BinnedOperator) -> Stream:
    """An operator over two sources, whose rows come as one stream."""
    if all(isinstance(each.stream.source, RowSource) for each in both):
        pair = PairSource(inner.input, (schemas[0], schemas[1]), (both[0].key, both[1].key))
        return Stream(pair, inner.input).with_node(OperatorNode(inner, {}))
    from pyspark.sql import functions as F

    reasons = [undecoded(each.stream.source) for each in both]
    frames = [as_side(each.stream.source, each.columns, at, schemas, reasons) for at, each in enumerate(both)]
    source = frames[0].unionAll(frames[1])
    keyed = {
        mine: F.coalesce(F.col(f"`left.{mine}`"), F.col(f"`right.{other}`"))
        for mine, other in zip(both[0].key, both[1].key, strict=True)
    }
    bad = F.col(f"`{UNDECODED}`") if UNDECODED in source.columns else None
    return Stream(source, inner.input).with_node(OperatorNode(inner, keyed, bad))


def _pairs_of(on: object) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The columns to join on, of the left side and of the right."""
    if isinstance(on, Mapping):
        pairs = [*on.items()]
    else:
        names = [on] if isinstance(on, str) else [*on] if isinstance(on, Sequence) else []
        pairs = [(name, name) for name in names]
    if not pairs or not all(isinstance(name, str) for pair in pairs for name in pair):
        raise InvalidOption(f'on is {on!r}; name columns as in on="key", on=["a", "b"] or on={{"left": "right"}}')
    return tuple(left for left, _ in pairs), tuple(right for _, right in pairs)


@dataclass(frozen=True)
class WindowedStream:
    """The rows of each key in windows, waiting for what to compute of them."""

    keyed: KeyedStream
    options: Mapping[str, Any]

    def count(self, name: str = "count") -> Stream:
        """How many rows each window of each key has."""
        return self.aggregate(**{name: "count"})

    def aggregate(self, by: str | None = None, **named: Any) -> Stream:
        """Several aggregates of each window at once, as for a stream without windows."""
        # All columns are read, for a row that comes too late is kept whole.
        return _with_operator(
            self.keyed, lambda schema: window(schema, self.keyed.key, named=named, by=by, **self.options)
        )


def _literal(value: int) -> Column:
    from pyspark.sql import functions as F

    return F.lit(value)


def _columns_of(named: Mapping[str, Any], by: str | None) -> list[str]:
    """The columns that aggregates read."""
    columns = [each[1] for each in named.values() if isinstance(each, tuple) and len(each) == 2]
    return [column for column in [*columns, by] if isinstance(column, str)]


def _name_of(column: Column) -> str:
    """The name an expression was given with `alias`, or that of the plain column it is."""
    described = str(column).removeprefix("Column<'").removesuffix("'>")
    name = described.rpartition(" AS ")[2].strip("`")
    if not name.isidentifier():
        raise InvalidOption(f"the key expression {described} needs a name: add .alias('...')")
    return name


def stream(source: DataFrame | RowSource) -> Stream:
    """A stream over a streaming DataFrame of any of Spark's sources, or over `me.testing.source` without Spark."""
    return Stream(source, schema_of(source))
