"""Rows that have a key, waiting for an operator: alone, in windows, or beside another stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from meander.engine.spark.nodes import OperatorNode
from meander.errors import InvalidOption
from meander.expressions import apart
from meander.operators.aggregate import Aggregate
from meander.operators.count import Count
from meander.operators.custom import Custom
from meander.operators.dedup import Dedup
from meander.operators.flat_map import FlatMap
from meander.operators.fold import Fold
from meander.operators.map_state import MapWithState
from meander.operators.operator import ALL, BinnedOperator, Operator
from meander.operators.times import Duration
from meander.operators.top_k import TopK
from meander.operators.window import window
from meander.sources import UNDECODED, PairSource, RowSource, as_side, undecoded

if TYPE_CHECKING:
    from meander.streams import Stream


@dataclass(frozen=True, repr=False)
class KeyedStream:
    """Rows cut into bins by their key, waiting for an operator.

    Every operator emits, with each batch, the keys that changed, with their new values.
    """

    stream: Stream
    key: tuple[str, ...]
    columns: Mapping[str, Any] = field(default_factory=dict)
    """Columns of the key, or of aggregates, that have to be computed first, as Spark expressions."""

    def __repr__(self) -> str:
        return f"<KeyedStream by {', '.join(self.key)} of {self.stream}>"

    def count(self, name: str = "count") -> Stream:
        """How many rows each key has had so far."""
        return _with_operator(self, lambda schema: Count(schema, self.key, name), columns=())

    def aggregate(self, by: str | None = None, **named: Any) -> Stream:
        """Several aggregates at once: `aggregate(total=("sum", "price"), top=("max", "price"), n="count")`.

        Args:
            by: the column of event time by which the first and the last are told, and lists are in order.
            named: for each output column a function and what it takes, a column or an expression of Spark:
                `total=("sum", F.col("price") * F.col("number"))`. The functions are Spark's: sum, min, max, avg (or
                mean), stddev, stddev_pop, variance (or var), var_pop, count, count_distinct, approx_count_distinct,
                any, all, first, last, collect_list and collect_set. The last two keep the first values of each key, as
                many as a limit says: `pages=("collect_set", "page", {"limit": 100})`.

        Returns:
            A stream of the key's columns and these; a batch emits the keys that had rows in it.

        Raises:
            InvalidOption: a function is none of these, or does not take such a column.

        Example:
            >>> import meander as me
            >>> orders = me.stream(me.testing.source("user string, item string, price bigint"))
            >>> spent = orders.key_by("user").aggregate(mean=("avg", "price"), items=("count_distinct", "item"))
            >>> with me.testing.harness(spent) as h:
            ...     h.batch([{"user": "ann", "item": item, "price": price} for item, price in (("tea", 3), ("oil", 9))])
            [{'user': 'ann', 'mean': 6.0, 'items': 2}]
        """
        computed, plain = apart(named, self.stream.source)
        keyed = replace(self, columns={**self.columns, **computed})
        wanted = Aggregate(keyed_schema(keyed), self.key, plain, by).aggregation.columns
        return _with_operator(keyed, lambda schema: Aggregate(schema, self.key, plain, by), columns=wanted)

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
        options: dict[str, Any] = {"time": time, "size": size, "slide": slide, "gap": gap, "lateness": lateness}
        options["emit"] = emit
        window(keyed_schema(self), self.key, named={"count": "count"}, **options)  # what is wrong is said here
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
        inner = Custom(operator, keyed_schema(self), self.key)
        return _with_operator(self, lambda schema: Custom(operator, schema, self.key), columns=inner.declared[0].names)


def _with_operator(
    keyed: KeyedStream, build: Callable[[pa.Schema], BinnedOperator], columns: Sequence[str] | None = None
) -> Stream:
    """Add an operator that reads the key and these columns; None: all of them."""
    schema = keyed_schema(keyed)
    inner = build(schema)
    if columns is not None:
        wanted = {*keyed.key, *columns}
        inner = build(pa.schema([each for each in schema if each.name in wanted]))
    bad = None if keyed.stream.nodes else undecoded(keyed.stream.source)
    return keyed.stream.with_node(OperatorNode(inner, dict(keyed.columns), bad))


def keyed_schema(keyed: KeyedStream) -> pa.Schema:
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
    return stream.rows.with_columns(columns, "an expression")


@dataclass(frozen=True)
class ConnectedStreams:
    """Two streams with keys of the same types, for an operator with two inputs."""

    left: KeyedStream
    right: KeyedStream

    def process(self, operator: type[Operator] | Operator) -> Stream:
        """Run an operator of your own whose `on_batch` takes `left, right, state, now`."""
        both = (self.left, self.right)
        key = (self.left.key, self.right.key)
        declared = Custom(operator, tuple(keyed_schema(each) for each in both), key).declared
        schemas = [
            pa.schema([field for field in keyed_schema(each) if field.name in {*wanted.names, *each.key}])
            for each, wanted in zip(both, declared, strict=True)
        ]
        return over_both(both, schemas, Custom(operator, (schemas[0], schemas[1]), key))


def over_both(both: Sequence[KeyedStream], schemas: Sequence[pa.Schema], inner: BinnedOperator) -> Stream:
    """An operator over two sources, whose rows come as one stream."""
    if all(isinstance(each.stream.source, RowSource) for each in both):
        pair = PairSource(inner.input, (schemas[0], schemas[1]), (both[0].key, both[1].key))
        return replace(both[0].stream, source=pair, schema=inner.input).with_node(OperatorNode(inner, {}))
    from pyspark.sql import functions as F

    reasons = [undecoded(each.stream.source) for each in both]
    frames = [as_side(each.stream.source, each.columns, at, schemas, reasons) for at, each in enumerate(both)]
    source = frames[0].unionAll(frames[1])
    keyed = {
        mine: F.coalesce(F.col(f"`left.{mine}`"), F.col(f"`right.{other}`"))
        for mine, other in zip(both[0].key, both[1].key, strict=True)
    }
    bad = F.col(f"`{UNDECODED}`") if UNDECODED in source.columns else None
    return replace(both[0].stream, source=source, schema=inner.input).with_node(OperatorNode(inner, keyed, bad))


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
        computed, plain = apart(named, self.keyed.stream.source)
        keyed = replace(self.keyed, columns={**self.keyed.columns, **computed})
        # All columns are read, for a row that comes too late is kept whole.
        return _with_operator(keyed, lambda schema: window(schema, keyed.key, named=plain, by=by, **self.options))
