"""Rows that have a key, waiting for an operator: alone, in windows, or beside another stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from meander.expressions import apart
from meander.operators.aggregate import Aggregate
from meander.operators.count import Count
from meander.operators.custom import Custom
from meander.operators.dedup import Dedup
from meander.operators.flat_map import FlatMap
from meander.operators.fold import Fold
from meander.operators.map_state import MapWithState
from meander.operators.operator import Operator
from meander.operators.times import Duration
from meander.operators.top_k import TopK
from meander.operators.window import window
from meander.wiring import keyed_schema, over_both, with_operator

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
        """How many rows each key has had so far.

        Args:
            name: the name of the column.

        Returns:
            A stream of the key's columns and the count; a batch emits the keys that had rows in it.

        Raises:
            InvalidOption: the key has a column of that name, or a type that no key can have.

        Example:
            >>> import meander as me
            >>> with me.testing.harness(me.stream(me.testing.source("word string")).key_by("word").count("n")) as h:
            ...     h.batch([{"word": "duck"}, {"word": "duck"}])
            [{'word': 'duck', 'n': 2}]
        """
        return with_operator(self, lambda schema: Count(schema, self.key, name), columns=())

    def aggregate(self, by: str | None = None, **named: Any) -> Stream:
        """Several aggregates at once: `aggregate(total=("sum", "price"), top=("max", "price"), n="count")`.

        Args:
            by: the column of event time by which the first and the last are told, and lists are in order.
            named: for each output column a function and what it takes, a column or an expression of Spark:
                `total=("sum", F.col("price") * F.col("number"))`. The functions are Spark's: sum, min, max, avg (or
                mean), stddev, stddev_pop, variance (or var), var_pop, count, count_distinct, approx_count_distinct,
                any, all, first, last, collect_list and collect_set. The last two keep the first values of each key, as
                many as a limit says, as in `pages=("collect_set", "page", {"limit": 100})`.

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
        return with_operator(keyed, lambda schema: Aggregate(schema, self.key, plain, by), columns=wanted)

    def dedup(self, time: str | None = None, within: Duration | None = None) -> Stream:
        """The first row of every key, once.

        Args:
            time: the column of event time.
            within: a key is forgotten after so much event time; by default never.

        Returns:
            A stream of the same columns.

        Raises:
            InvalidOption: `within` comes without `time`, or one is not what it should be.

        Example:
            >>> import meander as me
            >>> with me.testing.harness(me.stream(me.testing.source("id bigint, n int")).key_by("id").dedup()) as h:
            ...     h.batch([{"id": 7, "n": 1}]) + h.batch([{"id": 7, "n": 2}])
            [{'id': 7, 'n': 1}]
        """
        return with_operator(self, lambda schema: Dedup(schema, self.key, time, within))

    def top_k(
        self,
        k: int,
        by: str,
        *,
        largest: bool = True,
        identity: Sequence[str] | None = None,
        time: str | None = None,
        rank: str = "rank",
    ) -> Stream:
        """The k best rows of every key by a column, with their rank, whenever they change.

        Args:
            k: how many.
            by: the column.
            largest: whether the largest are the best, or the smallest.
            identity: columns that tell which rows are updates of one another.
            time: the column that says which update is the newest; it needs identity.
            rank: the name of the column of ranks.

        Returns:
            A stream of the same columns and the rank.

        Raises:
            InvalidOption: a column or an option does not exist, or has a value it cannot have.

        Example:
            >>> import meander as me
            >>> bids = me.stream(me.testing.source("item string, price bigint")).key_by("item").top_k(1, by="price")
            >>> with me.testing.harness(bids) as h:
            ...     h.batch([{"item": "tea", "price": 3}, {"item": "tea", "price": 5}])
            [{'item': 'tea', 'price': 5, 'rank': 1}]
        """
        options: dict[str, Any] = {"largest": largest, "identity": identity, "time": time, "rank": rank}
        return with_operator(self, lambda schema: TopK(schema, self.key, k, by, **options))

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

        Returns:
            What waits for `.count()` or `.aggregate(...)`.

        Raises:
            InvalidOption: there is neither a size nor a gap, the column is none of event time, or a duration is none.

        Example:
            >>> import meander as me
            >>> clicks = me.stream(me.testing.source("user string, at timestamp")).key_by("user")
            >>> clicks.window("at", "1 hour").count().schema.names
            ['user', 'window_start', 'window_end', 'count']
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

        It is called once a key. Where all keys can be computed together, as columns, `fold` is faster still: sums,
        counts and extremes, or many keys with few rows each. See `meander.operators.map_state.MapWithState`.

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

        Returns:
            A stream of the rows that it gives.

        Raises:
            InvalidOption: the function takes other arguments, or a column, a type or a duration is not as it should be.

        Example:
            >>> import meander as me
            >>> def number(user, rows, state):
            ...     state.update(n=(state.n or 0) + len(rows))
            ...     yield {"user": user, "n": state.n}
            >>> clicks = me.stream(me.testing.source("user string, page string")).key_by("user")
            >>> numbered = clicks.map_with_state(number, state="n long", output="user string, n long")
            >>> with me.testing.harness(numbered) as h:
            ...     h.batch([{"user": "ann", "page": "a"}]) + h.batch([{"user": "ann", "page": "b"}])
            [{'user': 'ann', 'n': 1}, {'user': 'ann', 'n': 2}]
        """
        options: dict[str, Any] = {"time": time, "timeout": timeout, "lateness": lateness, "rows": rows}
        return with_operator(self, lambda schema: MapWithState(schema, self.key, function, state, output, **options))

    def flat_map(self, function: Callable[..., Any], output: str) -> Stream:
        """What `function(row)` gives for every row, any number of rows; nothing is kept.

        The rows go to the workers of their keys first. Before the first `key_by`, Spark's own `mapInPandas` needs no
        shuffle. See `meander.operators.flat_map.FlatMap`.

        Args:
            function: gets a row as a named tuple, and yields rows or returns a list of them.
            output: the columns of the rows that it gives.

        Returns:
            A stream of the rows that it gives.

        Raises:
            InvalidOption: the function takes other arguments, or the text is no schema.

        Example:
            >>> import meander as me
            >>> lines = me.stream(me.testing.source("page int, text string")).key_by("page")
            >>> words = lines.flat_map(lambda line: [(word,) for word in line.text.split()], output="word string")
            >>> with me.testing.harness(words) as h:
            ...     h.batch([{"page": 1, "text": "duck goose"}])
            [{'word': 'duck'}, {'word': 'goose'}]
        """
        return with_operator(self, lambda schema: FlatMap(schema, self.key, function, output))

    def fold(
        self, function: Callable[..., Any], state: str, output: str, time: str | None = None, rows: str | None = None
    ) -> Stream:
        """What a function of rows and state returns, called once a batch with the rows of all keys, as columns.

        See `meander.operators.fold.Fold` for what it gets and gives.

        Args:
            function: gets the rows and the state of their keys, and returns the new state and the rows to emit.
            state: the columns that are kept for every key.
            output: the columns of the rows that it emits.
            time: the column of event time, by which each key's rows are in order.
            rows: "arrow" or "pandas"; by default as the argument is annotated.

        Returns:
            A stream of the rows that it emits.

        Raises:
            InvalidOption: the function takes other arguments, or a column or a type is not what it should be.

        Example:
            >>> import meander as me
            >>> import numpy as np, pyarrow as pa
            >>> def total(rows, state):
            ...     new = np.bincount(rows["__group"], weights=rows["price"], minlength=state.num_rows)
            ...     new += state["total"].fill_null(0.0).to_numpy()
            ...     return pa.table({"total": new}), pa.table({"user": state["user"], "total": new})
            >>> orders = me.stream(me.testing.source("user string, price double")).key_by("user")
            >>> spent = orders.fold(total, state="total double", output="user string, total double")
            >>> with me.testing.harness(spent) as h:
            ...     h.batch([{"user": "ann", "price": 3.0}, {"user": "ann", "price": 4.0}])
            [{'user': 'ann', 'total': 7.0}]
        """
        return with_operator(self, lambda schema: Fold(schema, self.key, function, state, output, time, rows))

    def connect(self, other: KeyedStream) -> ConnectedStreams:
        """The stream and another one with a key of the same types, for an operator with two inputs.

        Args:
            other: rows of another source or of operators; also of the same ones, each row comes along both ways then.

        Returns:
            What takes the operator: `connect(...).process(MyOperator)`.

        Raises:
            InvalidOption: one of the two is read by Spark, the other is brought by a test.

        Example:
            >>> import pyarrow as pa
            >>> import meander as me
            >>> class Seen(me.Operator):
            ...     input = ("user string, n bigint", "user string, total bigint")
            ...     output = "user string, n bigint, total bigint"
            ...     state = {"last": me.KeyedTable(key="user string", value="n bigint")}
            ...     def on_batch(self, counts, sums, state, now):
            ...         state["last"].put(counts["user"], counts)
            ...         n = state["last"].get(sums["user"])["n"]
            ...         return pa.table({"user": sums["user"], "n": n, "total": sums["total"]})
            >>> orders = me.stream(me.testing.source("user string, price bigint")).key_by("user")
            >>> counts, sums = orders.count("n"), orders.aggregate(total=("sum", "price"))
            >>> both = counts.key_by("user").connect(sums.key_by("user")).process(Seen)
            >>> with me.testing.harness(both) as h:
            ...     h.batch([{"user": "ann", "price": 3}, {"user": "ann", "price": 4}])
            [{'user': 'ann', 'n': 2, 'total': 7}]
        """
        return ConnectedStreams(self, other)

    def process(self, operator: type[Operator] | Operator) -> Stream:
        """Run an operator of your own.

        Args:
            operator: a class that derives from `me.Operator`, or an instance of one.

        Returns:
            A stream of its output.

        Raises:
            InvalidOption: its declarations do not fit the stream, or a method is missing.

        Example:
            >>> import meander as me
            >>> class Seen(me.Operator):
            ...     input, output = "user string", "user string"
            ...     def on_batch(self, rows, state, now):
            ...         return rows
            >>> me.stream(me.testing.source("user string")).key_by("user").process(Seen).schema.names
            ['user']
        """
        inner = Custom(operator, keyed_schema(self), self.key)
        return with_operator(self, lambda schema: Custom(operator, schema, self.key), columns=inner.declared[0].names)


@dataclass(frozen=True, repr=False)
class ConnectedStreams:
    """Two streams with keys of the same types, for an operator with two inputs."""

    left: KeyedStream
    right: KeyedStream

    def __repr__(self) -> str:
        return f"<ConnectedStreams of {self.left} and {self.right}>"

    def process(self, operator: type[Operator] | Operator) -> Stream:
        """Run an operator of your own whose `on_batch` takes `left, right, state, now`.

        Args:
            operator: a class that derives from `me.Operator`, or an instance of one.

        Returns:
            A stream of its output.

        Raises:
            InvalidOption: its declarations do not fit the streams, or a method is missing.

        Example:
            >>> import meander as me
            >>> class Both(me.Operator):
            ...     input, output = ("user string", "user string"), "user string, side string"
            ...     def on_batch(self, left, right, state, now):
            ...         sides = ["left"] * left.num_rows + ["right"] * right.num_rows
            ...         return {"user": left["user"].to_pylist() + right["user"].to_pylist(), "side": sides}
            >>> left, right = (me.stream(me.testing.source("user string")).key_by("user") for _ in range(2))
            >>> with me.testing.harness(left.connect(right).process(Both)) as h:
            ...     h.batch(left=[{"user": "ann"}], right=[])
            [{'user': 'ann', 'side': 'left'}]
        """
        both = (self.left, self.right)
        key = (self.left.key, self.right.key)
        declared = Custom(operator, tuple(keyed_schema(each) for each in both), key).declared
        schemas = [
            pa.schema([field for field in keyed_schema(each) if field.name in {*wanted.names, *each.key}])
            for each, wanted in zip(both, declared, strict=True)
        ]
        return over_both(both, schemas, Custom(operator, (schemas[0], schemas[1]), key))


@dataclass(frozen=True, repr=False)
class WindowedStream:
    """The rows of each key in windows, waiting for what to compute of them."""

    keyed: KeyedStream
    options: Mapping[str, Any]

    def __repr__(self) -> str:
        return f"<WindowedStream by {self.options['time']} of {self.keyed}>"

    def count(self, name: str = "count") -> Stream:
        """How many rows each window of each key has.

        Args:
            name: the name of the column.

        Returns:
            A stream of the key's columns, the window's begin and end, and the count.

        Raises:
            InvalidOption: another column has that name.

        Example:
            >>> import meander as me
            >>> clicks = me.stream(me.testing.source("user string, at timestamp")).key_by("user")
            >>> clicks.window("at", gap="10 minutes").count("clicks").schema.names
            ['user', 'window_start', 'window_end', 'clicks']
        """
        return self.aggregate(**{name: "count"})

    def aggregate(self, by: str | None = None, **named: Any) -> Stream:
        """Several aggregates of each window at once.

        Args:
            by: as for a stream without windows.
            named: as for a stream without windows: `total=("sum", "price")`.

        Returns:
            A stream of the key's columns, the window's begin and end, and these.

        Raises:
            InvalidOption: a function is none that there is, or does not take such a column.

        Example:
            >>> import meander as me
            >>> sales = me.stream(me.testing.source("shop string, at timestamp, price bigint")).key_by("shop")
            >>> sales.window("at", "1 hour").aggregate(total=("sum", "price")).schema.names
            ['shop', 'window_start', 'window_end', 'total']
        """
        computed, plain = apart(named, self.keyed.stream.source)
        keyed = replace(self.keyed, columns={**self.keyed.columns, **computed})
        # All columns are read, for a row that comes too late is kept whole.
        return with_operator(keyed, lambda schema: window(schema, keyed.key, named=plain, by=by, **self.options))
