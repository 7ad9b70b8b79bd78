"""Whether a checkpoint, Spark's part of it and the query belong together; refused where they do not."""

from __future__ import annotations

import json
from collections.abc import Sequence

from meander.checkpoint.identity import Identity
from meander.checkpoint.location import Location
from meander.checkpoint.manifest import Log
from meander.errors import ForeignCheckpoint
from meander.operators.operator import BinnedOperator
from meander.route.hashing import checksum

SPARK = "spark"


def check_identity(location: Location, bins: int, operators: Sequence[BinnedOperator]) -> None:
    """Write who this checkpoint belongs to, or refuse a query that is another one."""
    Identity.of(bins, [operator.fingerprint for operator in operators]).settle(location)


def offsets_of(location: Location, batch: int) -> str:
    """The hash of what Spark says batch `batch` holds."""
    return f"{checksum(location.read(f'{SPARK}/offsets/{batch}').to_pybytes()):016x}"


def check_spark_part(log: Log) -> str | None:
    """Spark's id of the query whose state this is, None if nothing is committed; refuses a reset Spark part."""
    last = log.last
    if last is None:
        return None
    location = log.location
    path = f"{SPARK}/metadata"
    if not location.exists(path):
        raise foreign(location, last.query, "none")
    query = json.loads(location.read(path).to_pybytes())["id"]
    if query != last.query:
        raise foreign(location, last.query, query)
    if not location.exists(f"{SPARK}/offsets/{last.batch}") or offsets_of(location, last.batch) != last.offsets:
        raise ForeignCheckpoint(
            f"{location.uri}/{SPARK} does not hold batch {last.batch} as it was committed; it was reset or replaced: "
            "restore it, or start with a new checkpoint"
        )
    return last.query


def is_done(log: Log, batch: int, query: str, offsets: str) -> bool:
    """Whether Spark replays a batch that is committed; refuses one that cannot be next."""
    last = log.last
    if last is None:
        if batch != 0:
            raise ForeignCheckpoint(
                f"Spark begins with batch {batch} and nothing is committed; start with a new checkpoint"
            )
        return False
    if query != last.query:
        raise foreign(log.location, last.query, query)
    if batch == last.batch + 1:
        return False
    if batch == last.batch and offsets == last.offsets:
        return True
    raise ForeignCheckpoint(
        f"Spark runs batch {batch} and the last one committed is {last.batch}; Spark's part of {log.location.uri} was "
        "reset or replaced: restore it, or start with a new checkpoint"
    )


def foreign(location: Location, ours: str, theirs: str) -> ForeignCheckpoint:
    """The error for a Spark part of another query."""
    return ForeignCheckpoint(
        f"the state in {location.uri} belongs to Spark's query {ours}, and {SPARK}/ in it to {theirs}; restore it, or "
        "start with a new checkpoint"
    )
