"""The user's way in: a stream, its key, an operator, and the query that runs.

    query = me.stream(words).key_by("word").count().start(checkpoint="...", sink=me.sinks.memory("counts"))

Everything is checked before anything runs; the work itself is in `meander.engine`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from meander.engine.driver.run import QueryRun
from meander.engine.driver.settings import Settings
from meander.engine.spark.gateway import Gateway
from meander.engine.spark.launch import SparkLaunch
from meander.engine.spark.nodes import Branch, Dataflow, OperatorNode, Shape
from meander.engine.spark.sizing import default_workers
from meander.engine.spark.stream import ControlReader, check_control
from meander.engine.worker.rows import shown
from meander.errors import InvalidOption
from meander.expressions import Rows, is_column, literal, name_of
from meander.keyed import KeyedStream
from meander.operators.join import Join
from meander.operators.operator import ALL
from meander.operators.pairs import Where, columns_of_sides
from meander.operators.times import Duration
from meander.options import kind
from meander.query import Query
from meander.sinks import sink_of
from meander.sources import RowSource, check_of_one_kind, schema_of, united
from meander.store.evolution import Evolution, Evolve
from meander.store.identity import bins_of
from meander.wiring import over_both

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["KeyedStream", "Query", "Stream", "stream"]


@dataclass(frozen=True, repr=False)
class Stream:
    """Rows on their way: those of a streaming DataFrame, the output of an operator, or several of these as one."""

    branches: tuple[Branch, ...]
    schema: pa.Schema

    def select(self, *columns: str | Column) -> Stream:
        """The same rows with these columns alone.

        Args:
            columns: names of columns, or expressions of Spark, which need a name: `F.upper("item").alias("item")`.

        Returns:
            A stream of as many rows; for an operator or a sink that comes next.

        Raises:
            InvalidOption: a column does not exist, comes twice, or is an expression that Spark refuses for streams.

        Example:
            >>> import meander as me
            >>> orders = me.stream(me.testing.source("user string, item string, price bigint"))
            >>> orders.key_by("user").aggregate(n="count", top=("max", "price")).select("user", "top").schema.names
            ['user', 'top']
        """
        chosen: dict[str, Column | None] = {}
        for each in columns:
            name = each if isinstance(each, str) else name_of(each, "selected")
            if name in chosen:
                raise InvalidOption(f"the column {name!r} is selected twice; name it once, or give one another name")
            chosen[name] = None if isinstance(each, str) else each
        return self._shaped(self.rows.selection(chosen), "what is selected")

    def with_columns(self, **columns: Column) -> Stream:
        """The same rows with further columns, or with others in place of those that are called so.

        Args:
            columns: expressions of Spark, by name: `with_columns(total=F.col("price") * F.col("number"))`.

        Returns:
            A stream of as many rows; for an operator or a sink that comes next.

        Raises:
            InvalidOption: one is no expression, or Spark refuses it for streams.

        Example:
            >>> from pyspark.sql import functions as F
            >>> me.stream(words_of(spark)).with_columns(length=F.length("word")).schema.names
            ['word', 'length']
        """
        for name, each in columns.items():
            if not is_column(each):
                raise InvalidOption(
                    f'the column {name!r} is {kind(each)}; give an expression such as F.col("price") * 2'
                )
        every: dict[str, Column | None] = dict.fromkeys(self.schema.names)
        return self._shaped(self.rows.selection(every | columns), "a column")

    def where(self, condition: Column | str) -> Stream:
        """The rows for which a condition holds; null is no.

        Behind an operator it is asked of the rows that the operator emits: an update that does not pass is left out,
        and what was emitted for its key before stays as it is.

        Args:
            condition: an expression of Spark, or its text: `where(F.col("price") > 5)`, `where("price > 5")`.

        Returns:
            A stream of the same columns; for an operator or a sink that comes next.

        Raises:
            InvalidOption: it is no expression, or Spark refuses it for streams.

        Example:
            >>> me.stream(words_of(spark)).where("word <> 'the'").schema.names
            ['word']
        """
        return self._shaped(self.rows.condition(condition), "the condition")

    def union(self, other: Stream | DataFrame) -> Stream:
        """The rows of this stream and of another that has the same columns, as one stream.

        Args:
            other: a stream, or a streaming DataFrame; columns go by their names, in whatever order. Either may be the
                output of an operator.

        Returns:
            A stream with the columns of both, in the order of this one; for an operator that comes next.

        Raises:
            InvalidOption: columns or types differ.

        Example:
            >>> import meander as me
            >>> web, shop = (me.stream(me.testing.source("user string, price bigint")) for _ in range(2))
            >>> with me.testing.harness(web.union(shop).key_by("user").count()) as h:
            ...     h.batch([{"user": "ann", "price": 3}, {"user": "ann", "price": 5}])
            [{'user': 'ann', 'count': 2}]
        """
        second = other if isinstance(other, Stream) else stream(other)
        mine, others = ({each.name: each.type for each in each.schema} for each in (self, second))
        if mine != others:
            columns = (", ".join(f"{name} {type_}" for name, type_ in each.items()) for each in (mine, others))
            raise InvalidOption(f"a union needs the same columns: these are ({next(columns)}) and ({next(columns)})")
        check_of_one_kind(self.source, second.source)
        if self.is_emitted or second.is_emitted:
            return Stream((*self.branches, *second.branches), self.schema)
        return Stream((Branch(united(self.source, second.source, self.schema)),), self.schema)

    def __repr__(self) -> str:
        columns = ", ".join(f"{each.name} {each.type}" for each in self.schema)
        operators = "".join(f", {node.operator.name}" for node in self.nodes)
        return f"<Stream{operators}: {columns}>".replace("<Stream, ", "<Stream of ")

    def key_by(self, *key: str | Column) -> KeyedStream:
        """The same rows, cut into bins by these columns; without any, all rows have one key.

        A key is made of integers, strings, binary, dates and timestamps.

        Args:
            key: names of columns, or expressions, which need a name: `key_by(F.lower("word").alias("word"))`.

        Returns:
            What waits for an operator.

        Raises:
            InvalidOption: there is no such column, or an expression has no name or is refused by Spark.

        Example:
            >>> import meander as me
            >>> me.stream(me.testing.source("user string, page string")).key_by("user", "page").key
            ('user', 'page')
        """
        columns: dict[str, Any] = {}
        names: list[str] = []
        if not key:
            columns[ALL] = 0 if isinstance(self.source, RowSource) else literal(0)
            names = [ALL]
        for each in key:
            if isinstance(each, str):
                if each not in self.schema.names:
                    have = ", ".join(name for name in self.schema.names)
                    raise InvalidOption(f"there is no column {each!r} to key by; there are: {have}")
                names.append(each)
            else:
                name = name_of(each, "key")
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

        The columns are those joined on, those of the left rows, and those of the right, with `_right` behind names that
        the left has too.

        Args:
            right: the other stream, or a streaming DataFrame. Either side may be the output of an operator.
            on: the columns that must be equal: a name, several, or {left: right} where they are called differently.
            within: how far apart in event time the two rows of a pair may be; of a pair (before, after), how much
                earlier and how much later the right row may be than the left one.
            window: instead, rows pair if they are in the same window of this size, aligned to the epoch.
            how: "inner"; or "left", "right", "full": rows of that side, or of both, without a partner come too, with
                nulls, once none can come any more.
            where: a further condition: a function of candidate pairs that returns a boolean for each, such as
                `lambda pairs: pc.less(pairs["x"], pairs["x_right"])`, or an expression such as
                `pc.field("x") < pc.field("x_right")`.
            time: the columns of event time, one name or one for each side; by default the only timestamp there is.
            lateness: how far rows may come behind the newest one of the input that is behind; later ones go to the
                side output `late`.

        Returns:
            A stream of the pairs.

        Raises:
            InvalidOption: a column, a duration or another argument is not what it should be.

        Example:
            >>> import meander as me
            >>> from datetime import datetime
            >>> orders = me.stream(me.testing.source("user string, at timestamp, item string"))
            >>> payments = me.stream(me.testing.source("user string, paid timestamp"))
            >>> noon = datetime(2026, 1, 1, 12)
            >>> with me.testing.harness(orders.join(payments, on="user", within="1 hour")) as h:
            ...     order, payment = {"user": "ann", "at": noon, "item": "tea"}, {"user": "ann", "paid": noon}
            ...     [(pair["user"], pair["item"]) for pair in h.batch(left=[order], right=[payment])]
            [('ann', 'tea')]
        """
        other = right if isinstance(right, Stream) else stream(right)
        named = columns_of_sides(on)
        both = [each.key_by(*key) for each, key in zip((self, other), named, strict=True)]
        schemas = (self.schema, other.schema)
        inner = Join(
            schemas, named, within=within, window=window, how=how, where=where, time=time, lateness=lateness
        )  # fmt: skip
        return over_both(both, schemas, inner)

    def start(
        self,
        checkpoint: str | os.PathLike[str],
        sink: object,
        *,
        workers: int | None = None,
        bins: int | None = None,
        trigger: str | Mapping[str, Any] | None = None,
        name: str | None = None,
        control: DataFrame | None = None,
        evolve: Evolve | None = None,
        renames: Mapping[str, str] | None = None,
        defaults: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> Query:
        """Start the query; it runs until it is stopped, fails, or its trigger says it is done.

        Args:
            checkpoint: folder for state and progress. Starting again with the same one goes on where it ended.
            sink: one of `me.sinks`, or a function of (df, batch_id).
            workers: how many workers own the bins; by default one for each core of the executors, of which those that
                Spark was set up with are waited for. A query that was rescaled while it ran stays so when it is
                started again with the same number, or with none.
            bins: into how many slices the keys are cut, a power of two; `meander rebin` changes it. By default what the
                checkpoint has, and 256 for a new one.
            trigger: as in Spark, `{"processingTime": "1 second"}` or `{"availableNow": True}`; or shorter: "1 second",
                "availableNow".
            name: the query's name, a-z, 0-9, _ and -.
            control: a stream of moves: a streaming DataFrame of (batch, bin, worker), and operator if there are
                several. As of that batch the worker owns the bin; it is copied before, if there is time.
            evolve: how the query may differ from the one whose state the checkpoint has: "add" lets new aggregates,
                columns of state, tables and operators at the end begin empty; a function gets the rows of the table
                that has changed, as an Arrow table, and returns them with its new columns; several functions by the
                names of their tables. What is harmless needs no word, everything else is refused.
            renames: with it, the new names of aggregates, columns, tables, keys or operators, by the old ones.
            defaults: with it, the values that new columns of state begin with, by their names.
            settings: snapshot_every, retain, retain_side, fsync, idle_after_s, idle_time, at_end, on_error,
                errors, skip_batch, attempts, hand_over_bytes, copy_bytes, copy_ms, release_after; see
                `meander.engine.driver.settings.Settings`.

        Returns:
            The query, which runs.

        Raises:
            InvalidOption: an option is not one that can be, there is nothing to run, or Spark refuses the stream.
            ChangedQuery: the checkpoint holds the state of another query.
            CheckpointError: the checkpoint cannot be used as it is.
            QueryFailed: the executors did not come, or Spark does not start the stream.

        Example:
            >>> counts = me.stream(words_of(spark)).key_by("word").count()
            >>> query = counts.start(folder / "new", me.sinks.memory(), workers=2, trigger="availableNow")
            >>> query.await_termination()
            True
        """
        self.check_end()
        if isinstance(self.source, RowSource):
            raise InvalidOption("this stream has no rows of its own; run it with me.testing.harness")
        folder = str(os.fspath(checkpoint))
        if bins is None:
            bins = bins_of(folder) or Settings.bins
        chosen = Settings.of(folder, 1 if workers is None else workers, bins, name, **settings)
        if workers is None:
            cores = default_workers(Gateway(self.source.sparkSession), chosen.executors_within_s)
            chosen = replace(chosen, workers=cores)
        evolution = Evolution.of(evolve, renames, defaults)
        return _start(self, chosen, sink, trigger_of(trigger), workers, control, evolution)

    def behind(self, node: OperatorNode) -> Stream:
        """The output of an operator."""
        return Stream((Branch(node),), shown(node.operator.output))

    def check_end(self) -> None:
        """Refuse to run what has no operator at its end."""
        if not self.is_emitted:
            raise InvalidOption("there is nothing to run yet; add .key_by(...) and an operator such as .count()")
        if len(self.branches) > 1:
            raise InvalidOption(
                "a union of what operators emit goes to an operator, not to a sink; add .key_by(...) and an operator, "
                "or start a query for each of them"
            )

    @cached_property
    def flow(self) -> Dataflow:
        """The operators and sources that its rows come from."""
        return Dataflow.of(self.branches)

    @property
    def nodes(self) -> tuple[OperatorNode, ...]:
        """The operators that its rows come from, each behind all whose rows it takes."""
        return self.flow.nodes

    @property
    def source(self) -> Any:
        """The first of its sources: a streaming DataFrame, or a `RowSource` as all others are then."""
        return self.flow.sources[0]

    @property
    def is_emitted(self) -> bool:
        """Whether any of its rows are emitted by an operator."""
        return any(each.is_emitted for each in self.branches)

    @property
    def rows(self) -> Rows:
        """Its rows, as expressions see them."""
        return Rows(self.source, self.schema, emitted=self.is_emitted)

    def _shaped(self, shape: Shape, what: str) -> Stream:
        source, schema = self.rows.after(shape, what)
        if not self.is_emitted and not isinstance(source, RowSource):
            return Stream((Branch(source),), schema)
        return Stream(tuple(replace(each, shapes=(*each.shapes, shape)) for each in self.branches), schema)


TRIGGERS = ("processingTime", "availableNow", "once")
UNITS = "microsecond|millisecond|second|minute|hour|day|week"
INTERVAL = re.compile(rf"\s*(interval\s+)?(\d+(\.\d+)?\s+({UNITS})s?\s*)+", re.IGNORECASE)
"""A trigger's interval as Spark reads it."""


def trigger_of(trigger: object) -> dict[str, Any]:
    """Spark's trigger, of what a user has given.

    >>> trigger_of("10 seconds"), trigger_of("availableNow"), trigger_of(None)
    ({'processingTime': '10 seconds'}, {'availableNow': True}, {})
    """
    if trigger is None:
        return {}
    if isinstance(trigger, str):
        if trigger in ("availableNow", "once"):
            return {trigger: True}
        trigger = {"processingTime": trigger}
    if not isinstance(trigger, Mapping) or len(trigger) > 1 or set(trigger) - set(TRIGGERS):
        known = "'10 seconds', 'availableNow', or Spark's own, such as {'processingTime': '10 seconds'}"
        raise InvalidOption(f"the trigger is {trigger!r}; give {known}")
    every = trigger.get("processingTime")
    if every is not None and not (isinstance(every, str) and INTERVAL.fullmatch(every)):
        raise InvalidOption(f"the trigger's interval is {every!r}; write a number and a unit, such as '10 seconds'")
    return dict(trigger)


def _start(
    stream: Stream,
    settings: Settings,
    sink: object,
    trigger: Mapping[str, Any],
    requested: int | None,
    control: DataFrame | None,
    evolution: Evolution,
) -> Query:
    if settings.at_end == "close" and not {"availableNow", "once"} & set(trigger):
        raise InvalidOption(
            "at_end='close' is for a query that ends; start it with trigger='availableNow', or leave at_end out"
        )
    if control is not None:
        check_control(control)
    (end,) = stream.branches
    target = sink_of(sink)
    run = QueryRun(SparkLaunch(stream.flow, settings, target, trigger, requested, end.shapes, evolution))
    query = Query(run)
    target.begin(stream.source.sparkSession, stream.schema)
    if control is not None:
        query.accompany(ControlReader(run, control))
    return query


def stream(source: DataFrame | RowSource) -> Stream:
    """A stream over a streaming DataFrame of any of Spark's sources, or over `me.testing.source` without Spark.

    Args:
        source: the DataFrame, or the source of a test.

    Returns:
        The stream.

    Raises:
        InvalidOption: it is no streaming DataFrame, or Spark refuses it for streams.

    Example:
        >>> import meander as me
        >>> me.stream(me.testing.source("word string"))
        <Stream: word string>
    """
    schema = schema_of(source)
    return Stream((Branch(source),), schema)
