"""Which query the state belongs to: bins, keys, tables and options, written once as `meander.json`; and Spark's part.

Only the query that wrote the state can read it. Settings that may change between restarts (workers, executors, sinks,
triggers) are not part of it. Spark's own checkpoint lies inside ours, and has to be of the same query and to hold the
same batches.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from meander.errors import ChangedQuery, CheckpointError, Damaged, Exists, ForeignCheckpoint, InvalidOption
from meander.store import spark_logs
from meander.store.files import seal, unseal
from meander.store.location import Location
from meander.store.manifest import Log, read_entry, sequences
from meander.store.spark_logs import SPARK

PATH = "meander.json"
FORMAT = 2
"""The layout of the checkpoint; a later version of the library reads its own and older ones. 2: the log announces."""

Json: TypeAlias = dict[str, Any]

_NEXT = "start with a new checkpoint, or with the query as it was"


@dataclass(frozen=True)
class Identity:
    """A checkpoint's id, the number of bins, and the fingerprint of each operator.

    A fingerprint has: operator (its name), key ([[column, type], ..]), tables ({name: {key, values}}) and options.
    """

    id: str
    bins: int
    operators: tuple[Json, ...]
    format: int = FORMAT
    is_rebinned: bool = False
    """Whether the log says how many bins there are: they were about to change."""

    @classmethod
    def of(cls, bins: int, fingerprints: Sequence[Mapping[str, Any]], id: str | None = None) -> Identity:
        """Return the identity of a query, with a new id by default."""
        try:
            operators = tuple(json.loads(json.dumps(dict(each), allow_nan=False)) for each in fingerprints)
        except (TypeError, ValueError) as error:
            raise InvalidOption(f"an option cannot be kept in the checkpoint: {error}") from None
        return cls(id or uuid.uuid4().hex, bins, operators)

    @classmethod
    def load(cls, location: Location) -> Identity | None:
        """Read the identity of a checkpoint; None where there is none yet."""
        if not location.exists(PATH):
            return None
        fields = unseal(location.read(PATH).to_pybytes(), PATH)
        if not isinstance(fields.get("format"), int) or fields["format"] > FORMAT:
            raise CheckpointError(
                f"the checkpoint {location.uri} has format {fields.get('format')!r} and this version of meander reads "
                f"up to {FORMAT}; use the version that wrote it, or a later one"
            )
        try:
            stored = cls(fields["id"], fields["bins"], tuple(fields["stages"]), fields["format"], "rebin" in fields)
            return replace(stored, bins=_bins_in_log(location) or stored.bins) if stored.is_rebinned else stored
        except (KeyError, TypeError) as error:
            raise Damaged(f"{PATH} lacks {error}; restore it from a copy") from None

    def check_at(self, location: Location) -> None:
        """Raise ChangedQuery where a checkpoint has another identity; one that has none yet may have any."""
        stored = Identity.load(location)
        if stored is not None:
            Identity.check(stored, self)

    def settle(self, location: Location) -> Identity:
        """Return the identity of the checkpoint: the stored one, checked against this one, or this one, now stored."""
        for _ in range(2):
            stored = Identity.load(location)
            if stored is not None:
                Identity.check(stored, self)
                if stored.format < FORMAT:  # an older version of the library must not go on with what is written now
                    stored = replace(stored, format=FORMAT)
                    stored.store(location)
                return stored
            if location.list("manifests"):
                raise Damaged(f"{PATH} of the checkpoint {location.uri} is missing; restore it from a copy")
            try:
                location.create(PATH, seal(self.to_json()))
            except Exists:
                continue  # another driver was quicker; check its identity
            return self
        raise Damaged(f"{PATH} of the checkpoint {location.uri} cannot be read; restore it from a copy")

    def to_json(self) -> Json:
        """Return the identity as a JSON object."""
        fields: Json = {"format": self.format, "id": self.id, "bins": self.bins, "stages": list(self.operators)}
        return {**fields, "rebin": True} if self.is_rebinned else fields

    def store(self, location: Location) -> None:
        """Write it in place of the one that is there."""
        location.write(PATH, seal(self.to_json()))

    @staticmethod
    def check(stored: Identity, now: Identity) -> None:
        """Raise ChangedQuery, saying what differs, unless the state of the one is the state of the other."""
        if now.bins != stored.bins:
            raise ChangedQuery(
                f"the checkpoint has {stored.bins} bins, not {now.bins}; give bins={stored.bins}, or none, or change "
                f"them with 'meander rebin --bins {now.bins}'"
            )
        if len(now.operators) != len(stored.operators):
            then, this = (" -> ".join(_names(each)) or "none" for each in (stored, now))
            raise ChangedQuery(f"the checkpoint has the operators {then}, the query has {this}; {_NEXT}")
        for number, (before, after) in enumerate(zip(stored.operators, now.operators, strict=True)):
            for what in sorted({*before, *after}, key=_importance):
                if before.get(what) != after.get(what):
                    raise ChangedQuery(f"operator {number}{_named(before)} {_difference(what, before, after)}; {_NEXT}")


def bins_of(checkpoint: str) -> int | None:
    """How many bins a checkpoint has; None where there is none yet."""
    stored = Identity.load(Location.of(checkpoint))
    return None if stored is None else stored.bins


def _bins_in_log(location: Location) -> int | None:
    """How many bins the last commit has; None where there is none that can be read."""
    for number in reversed(sequences(location)):
        try:
            entry, _ = read_entry(location, number)
        except Damaged:
            continue
        commit = entry.commit or entry.last
        if commit is not None:
            return len(commit.operators[0].owner)
    return None


def _names(identity: Identity) -> list[str]:
    return [str(operator.get("operator")) for operator in identity.operators]


def _importance(what: str) -> tuple[int, str]:
    known = ("operator", "key", "tables", "options")
    return (known.index(what) if what in known else len(known), what)


def _named(operator: Json) -> str:
    return f" ({operator['operator']})" if "operator" in operator else ""


def _difference(what: str, then: Json, now: Json) -> str:
    """The change, as the end of a sentence about the operator."""
    if what == "operator":
        return f"was {then.get(what)} and is now {now.get(what)}"
    if what == "key":
        return f"was keyed by {_columns(then.get(what))} and is now keyed by {_columns(now.get(what))}"
    before, after = then.get(what), now.get(what)
    if not isinstance(before, dict) or not isinstance(after, dict):
        return f"had {what} {_short(before)} and now has {_short(after)}"
    name = next(each for each in sorted({*before, *after}) if before.get(each) != after.get(each))
    if what == "options":
        return f"had {name}={_short(before.get(name))} and now has {name}={_short(after.get(name))}"
    if name not in after:
        return f"had the {what.removesuffix('s')} {name!r} and has it no more"
    if name not in before:
        return f"has a new {what.removesuffix('s')} {name!r}"
    old, new = _table(before[name]), _table(after[name])
    return f"had {old} in the {what.removesuffix('s')} {name!r} and now has {new}"


def _columns(columns: Any) -> str:
    try:
        return ", ".join(f"{name} {type_}" for name, type_ in columns) or "nothing"
    except (TypeError, ValueError):
        return _short(columns)


def _table(table: Any) -> str:
    if isinstance(table, dict) and set(table) == {"key", "values"}:
        return f"({_columns(table['key'])} -> {_columns(table['values'])})"
    return _short(table)


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


def check_spark_part(log: Log) -> str | None:
    """Spark's id of the query whose state this is, None if nothing is committed; refuses a reset Spark part.

    What a loss of power has torn of it is mended.
    """
    last, begun, location = log.last, log.announced or log.last, log.location
    query = spark_logs.query_of(location, last.query if last else None)
    if last is not None and query != last.query:
        raise foreign(location, last.query, query or "none")
    if begun is None:
        spark_logs.drop_torn(location)
    else:
        offsets = spark_logs.restore(location, begun.batch, begun.offsets)
        spark_logs.drop_torn(location, batch=begun.batch, offsets=offsets)
    return last.query if last else None


def is_done(log: Log, batch: int, query: str, offsets: str) -> bool:
    """Whether Spark replays a batch that is committed; refuses one that cannot be next."""
    last, announced = log.last, log.announced
    if announced is not None and not (batch == announced.batch and spark_logs.is_of(announced.offsets, offsets)):
        raise ForeignCheckpoint(
            f"version {announced.version} was begun with batch {announced.batch}, and Spark runs batch {batch} or "
            f"another one of that number; {SPARK}/ in {log.location.uri} was reset or replaced: restore it, or start "
            "with a new checkpoint"
        )
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
    if batch == last.batch and spark_logs.is_of(last.offsets, offsets):
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
