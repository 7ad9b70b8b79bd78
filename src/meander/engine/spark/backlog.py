"""How many rows wait in a query's sources, where these tell: Kafka, and Meander's own streams of pairs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def rows_behind(progress: Mapping[str, Any] | None) -> int:
    """The rows between where a query is and where its sources are, by Spark's progress of its last batch.

    Offsets are compared where they count rows: one for each partition of each topic, or under the name "row". Those of
    files, which count files, and of sources that do not say how far they are, count as nothing.

    >>> rows_behind({"sources": [{"endOffset": '{"t": {"0": 5, "1": 7}}', "latestOffset": '{"t": {"0": 9, "1": 7}}'}]})
    4
    """
    return sum(_behind(each) for each in (progress or {}).get("sources", ()))


def _behind(source: Mapping[str, Any]) -> int:
    reached, newest = (_rows(source.get(name)) for name in ("endOffset", "latestOffset"))
    return sum(max(0, newest[part] - reached.get(part, 0)) for part in newest) if reached else 0


def _rows(offset: object) -> dict[tuple[str, str], int]:
    """The rows that an offset counts, by topic and partition."""
    try:
        offsets = json.loads(offset) if isinstance(offset, str) else offset
    except ValueError:
        return {}
    if not isinstance(offsets, Mapping):
        return {}
    if isinstance(offsets.get("row"), int):
        return {("", "row"): offsets["row"]}
    return {
        (str(topic), str(part)): rows
        for topic, parts in offsets.items()
        if isinstance(parts, Mapping)
        for part, rows in parts.items()
        if isinstance(rows, int)
    }
