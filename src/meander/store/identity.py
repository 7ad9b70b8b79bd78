"""Which query the state belongs to: bins, keys, tables and options, as it began, in `meander.json`; and Spark's part.

What has become of the query since is in the log, as its design. Settings that may change between restarts (workers,
executors, sinks, triggers) are not part of it. Spark's own checkpoint lies inside ours, and has to be of the same query
and to hold the same batches.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from meander.errors import ChangedQuery, CheckpointError, Damaged, Exists, ForeignCheckpoint, InvalidOption
from meander.pictures import many
from meander.store import spark_logs
from meander.store.design import Design
from meander.store.evolution import Evolution, OptionRule, Ruling, judge
from meander.store.files import seal, unseal
from meander.store.location import Location
from meander.store.manifest import Log, read_entry, sequences
from meander.store.spark_logs import SPARK

PATH = "meander.json"
FORMAT = 4
"""The layout of the checkpoint; a later version of the library reads its own and older ones. 2: the log announces.
3: it says how the query has changed, and fingerprints have all options. 4: bitmaps of few bins are short texts."""

ALL_OPTIONS = 3
"""From this format on an identity has all options of its operators."""

Json: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Identity:
    """A checkpoint's id, the number of bins, and the fingerprint of each operator.

    A fingerprint has: operator (its name), key ([[column, type], ..]), tables ({name: {key, values}}) and options.
    Where an operator does not take its rows from the one before alone, it has inputs: what each of them comes from.
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

    def judged(
        self,
        location: Location,
        log: Log,
        evolution: Evolution | None = None,
        rules: Sequence[Mapping[str, OptionRule]] = (),
    ) -> Ruling:
        """Whether this query may go on with a checkpoint, and as what; one that is empty yet may become any.

        Raises:
            ChangedQuery: its state would get another meaning.
        """
        stored = Identity.load(location)
        if stored is None:
            return Ruling(Design.first(self.operators))
        if self.bins != stored.bins:
            raise ChangedQuery(
                f"the checkpoint has {many(stored.bins, 'bin')}, not {self.bins}; give bins={stored.bins}, or "
                f"none, or change them with 'meander rebin --bins {self.bins}'"
            )
        design = log.index.design or Design.first(stored.completed(self).operators)
        return judge(design, self.operators, evolution or Evolution(), rules, log.index.version)

    def settle(self, location: Location) -> Identity:
        """Return the identity that the checkpoint began with: the stored one, or this one, which is stored now."""
        for _ in range(2):
            stored = Identity.load(location)
            if stored is not None:
                if stored.format < FORMAT:  # an older version of the library must not go on with what is written now
                    stored = stored.completed(self)
                    stored.store(location)
                return stored
            if location.list("manifests"):
                raise Damaged(f"{PATH} of the checkpoint {location.uri} is missing; restore it from a copy")
            try:
                location.create(PATH, seal(self.to_json()))
            except Exists:
                continue  # another driver was quicker
            return self
        raise Damaged(f"{PATH} of the checkpoint {location.uri} cannot be read; restore it from a copy")

    def to_json(self) -> Json:
        """Return the identity as a JSON object."""
        fields: Json = {"format": self.format, "id": self.id, "bins": self.bins, "stages": list(self.operators)}
        return {**fields, "rebin": True} if self.is_rebinned else fields

    def store(self, location: Location) -> None:
        """Write it in place of the one that is there."""
        location.write(PATH, seal(self.to_json()))

    def completed(self, now: Identity) -> Identity:
        """The identity in the newest format: options that were not noted then are taken to be as they are now.

        Inputs are not: what was stored without them is a chain.
        """
        if self.format >= ALL_OPTIONS:
            return replace(self, format=FORMAT)
        operators = [*self.operators]
        for at, (then, this) in enumerate(zip(self.operators, now.operators, strict=False)):
            options = {**this.get("options", {}), **then.get("options", {})}
            known = {name: part for name, part in this.items() if name != "inputs"}
            operators[at] = {**known, **then, **({"options": options} if options else {})}
        return replace(self, format=FORMAT, operators=tuple(operators))


def renew(location: Location) -> None:
    """Let no older version of the library go on with what is about to be written without a query; before the claim.

    Where options of the operators are still unknown, the next start does it.
    """
    stored = Identity.load(location)
    if stored is not None and ALL_OPTIONS <= stored.format < FORMAT:
        replace(stored, format=FORMAT).store(location)


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
