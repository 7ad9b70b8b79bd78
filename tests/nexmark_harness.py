"""NEXMark queries in this process: Spark computes the stateless part of each batch, the harness runs the operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.compute as pc

from meander.engine.spark.nodes import Branch
from meander.sources import RowSource
from meander.streams import Stream
from meander.testing import Harness, harness
from meander_lab.nexmark.model import KINDS
from meander_lab.nexmark.queries import Options, QueryDefinition
from meander_lab.nexmark.running import quarter
from meander_lab.nexmark.streams import Events

PART = "__part"


def nothing(h: Harness, batch: int) -> None:
    """All bins stay where they are."""


def there_and_back(first: str, second: str) -> Callable[[Harness, int], None]:
    """A quarter of the bins moves while the second batch comes, by one schedule, and then back by another."""

    def happens(h: Harness, batch: int) -> None:
        (owner, *_) = h.query.assignment.values()
        if batch == 0:
            h.query.move(quarter(owner), schedule=first)
        elif batch == 1:
            migration = h.finish(h.query.migration)
            assert migration.status == "done"
            before = {int(move.bin): int(move.source) for step in migration.steps for move in step.moves}
            assert before
            h.query.move(before, schedule=second)

    return happens


def _over(source: RowSource, stream: Stream) -> Stream:
    """The operators of a stream, one behind the other, over another source."""
    branch = Branch(source)
    for node in stream.nodes:
        (one,) = node.inputs
        branch = Branch(replace(node, inputs=(replace(one, branch=replace(branch, shapes=one.branch.shapes)),)))
    return Stream((branch,), stream.schema)


@dataclass(frozen=True)
class Prepared:
    """A query whose sources are evaluated: its operators, and the rows that the first one takes in each batch."""

    definition: QueryDefinition
    options: Options
    stream: Stream
    batches: Sequence[pa.Table]

    @classmethod
    def of(cls, spark: Any, folder: Path, definition: QueryDefinition, options: Options) -> Prepared:
        """The query over a folder of events, a part of each kind in each batch."""
        from pyspark.sql import functions as F

        parts = range(len(list((folder / "bid").iterdir())))
        # No stream is started: batch frames stand for the streams that the query is built over.
        with mock.patch.object(type(spark.range(1)), "isStreaming", True):
            streams = [definition.build(_events(spark, folder, part), options) for part in parts]
        frames = [
            each.nodes[0].inputs[0].computed(each.source).withColumn(PART, F.lit(part))
            for part, each in enumerate(streams)
        ]
        rows = reduce(lambda one, other: one.unionAll(other), frames).toArrow()
        batches = [rows.filter(pc.equal(rows[PART], part)).drop_columns([PART]) for part in parts]
        return cls(definition, options, _over(RowSource(batches[0].schema), streams[0]), batches)

    def answer(self, happens: Callable[[Harness, int], None] = nothing) -> Counter[tuple[Any, ...]]:
        """The rows that stand at the end of all events, whatever happens after each batch."""
        with harness(self.stream, workers=2, bins=8, idle_after_s=60) as h:
            for number, rows in enumerate(self.batches):
                h.batch(rows)
                happens(h, number)
            h.end()
            assert not any(progress.late or progress.dead for progress in h.query.recent_progress)
            return self._final(h.sink.versions)

    def _final(self, versions: dict[int, pa.Table]) -> Counter[tuple[Any, ...]]:
        dialect = self.options.dialect
        key = self.definition.shape(dialect).key
        final: dict[Any, list[tuple[Any, ...]]] = {}
        for version, emitted in sorted(versions.items()):
            newest: dict[Any, list[tuple[Any, ...]]] = {}
            for row in self.definition.shown(emitted, dialect).to_pylist():
                at = version if key is None else tuple(row[name] for name in key)
                newest.setdefault(at, []).append(tuple(row.values()))
            final.update(newest)
        return Counter(row for rows in final.values() for row in rows)


def _events(spark: Any, folder: Path, part: int) -> Events:
    from pyspark.sql.pandas.types import from_arrow_schema

    paths = {kind: sorted((folder / kind).glob("*.parquet"))[part] for kind in KINDS}
    return Events(*(spark.read.schema(from_arrow_schema(KINDS[kind])).parquet(str(paths[kind])) for kind in KINDS))
