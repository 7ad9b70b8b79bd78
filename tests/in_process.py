"""Support for tests without Spark: a stream fed with whole batches, and what came out of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

import meander as me

Rows = list[dict[str, Any]]


@contextmanager
def fed(stream: Any, batches: Sequence[pa.Table | dict[str, pa.Table]], **options: Any) -> Iterator[me.testing.Harness]:
    """A harness that has processed these batches, in which everything has fired that is due; {side: rows} for two."""
    with me.testing.harness(stream, **options) as harness:
        for batch in batches:
            if isinstance(batch, dict):
                harness.batch(**batch)
            else:
                harness.batch(batch)
        harness.idle()
        assert harness.query.misrouted == 0
        yield harness


def emitted(harness: me.testing.Harness) -> Rows:
    """Every row that came out, with the version that emitted it as `batch`."""
    return [{"batch": version, **row} for version, rows in harness.sink.versions.items() for row in rows.to_pylist()]


def of_version(harness: me.testing.Harness, version: int) -> Rows:
    """The rows that one version emitted."""
    return list(harness.sink.versions[version].to_pylist())
