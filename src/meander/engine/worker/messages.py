"""What driver and workers send each other: one control message and one report per worker, operator and attempt.

Both travel as JSON: nothing that moves between processes is ever unpickled. Sets of bins and numbers by bin are arrays
here, and text on the way.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, NamedTuple
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from meander.engine.worker.bin_numbers import BinNumbers
from meander.engine.worker.output import ROWS, OutputForm
from meander.store import bitmap

Json = dict[str, Any]
Bins = NDArray[np.bool_]
NO_BINS: Bins = np.zeros(0, np.bool_)
NO_NUMBERS = BinNumbers(0)
NO_TIMES: Mapping[str, float] = {}
_to_json = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
KNOWN_SETS = 512
"""So many sets of bins are remembered by their text: those of a worker come again with every version."""
_TEXTS: dict[int, tuple[ref[Bins], str]] = {}
"""The texts of sets that are never written to, by the Python id of their array."""


class Token(NamedTuple):
    """Which attempt a task belongs to; a later one is greater."""

    epoch: int
    version: int
    attempt: int

    @property
    def text(self) -> str:
        """The part of a file's name that no other attempt has."""
        return f"{self.epoch}.{self.attempt}"

    @property
    def folder(self) -> str:
        """The name of a folder that no other attempt has."""
        return f"{self.epoch}-{self.version}-{self.attempt:x}"


class FilePart(NamedTuple):
    """A state file, in its JSON form, and the bins to read from it."""

    file: Json
    bins: Bins


class Control(NamedTuple):
    """What one worker of one operator is to do in one attempt of one version.

    Args:
        token: the attempt.
        operator: the operator, by its number.
        worker: the worker.
        slot: the worker's place among those of this attempt, from 0 on without gaps.
        place: the process that it is meant for; a task that runs elsewhere refuses.
        directory: the worker's folder there.
        checkpoint: the checkpoint's URI.
        bins: how many bins there are.
        owned: the bins it owns.
        held: the bins it is to have, those included.
        advance: committed deltas of the version before that speak of these, which its base may still lack.
        loadable: the bins of which `load` says where they are, should it not hold them.
        load: the files to read them from, in this order.
        copy: bins to read ahead, in this order, for no longer than `copy_ms`.
        rehearsal: touch nothing: only warm up the process.
        snapshot: the bins whose snapshot is due.
        frontier: event time before which everything is final, and `previous` that of the version before.
        wave: (k, n) says that only bins k, k + n, k + 2n, .. come this time.
        fsync: make what is written survive a loss of power.
        errors: for so many rows a function may still raise, and they are set aside; None: the first one ends the query.
        layouts: all layouts of the operator's tables, oldest first, where some file is of an older one than the last.
        form: in which form the output is wanted, of the operator whose output goes to the sink.
    """

    token: Token
    operator: int
    worker: int
    slot: int
    place: str
    directory: str
    checkpoint: str
    bins: int
    owned: Bins
    held: Bins = NO_BINS
    advance: tuple[Json, ...] = ()
    loadable: Bins = NO_BINS
    load: tuple[FilePart, ...] = ()
    copy: tuple[int, ...] = ()
    copy_ms: float = 0.0
    rehearsal: bool = False
    snapshot: Bins | None = None
    frontier: int | None = None
    previous: int | None = None
    wave: tuple[int, int] = (0, 1)
    fsync: bool = False
    errors: int | None = None
    layouts: tuple[Json, ...] = ()
    form: OutputForm = ROWS

    def to_bytes(self) -> bytes:
        """The message as it travels."""
        message = self._asdict()
        for name in ("owned", "held", "loadable", "snapshot"):
            message[name] = None if message[name] is None else pack(message[name])
        message["load"] = [[each.file, pack(each.bins)] for each in self.load]
        return _to_json(message).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Control:
        """Read a message."""
        message = json.loads(data)
        bins = message["bins"]
        message["token"] = Token(*message["token"])
        message["form"] = OutputForm.from_json(message["form"])
        for name in ("advance", "copy", "wave", "layouts"):
            message[name] = tuple(message[name])
        for name in ("owned", "held", "loadable", "snapshot"):
            message[name] = None if message[name] is None else unpack(message[name], bins)
        message["load"] = tuple(FilePart(file, unpack(members, bins)) for file, members in message["load"])
        return cls(**message)


@dataclass(frozen=True)
class Fault:
    """Why a worker could not do its part.

    `kind`: "user" (an exception in the user's function, with traceback and bin), "errors" (too many of them to set
    aside), "state" (it wrote state of other keys), "place" (the task ran elsewhere), "stale" (a later attempt has
    begun), "reload" (the base is not what the driver thinks), "space", "damaged", "other".
    """

    kind: str
    message: str
    trace: str = ""
    bin: int | None = None


class TaskReport(NamedTuple):
    """What one worker of one operator did in one attempt; its files are named here or nowhere.

    Args:
        rows, late, dead: the rows that came, those that came too late, and the dead letters; `errors` of these are
            there because a function raised.
        new_rows: those of a source that is read here for the first time.
        newest: the newest event time of each input; empty where the operator has no event time or saw no row.
        trouble: why bins could not be copied; the version itself is not hurt by it.
        loads: the rows that came to each bin.
        stored: the rows that each bin has of each input, where there are several.
        queued: the rows of each input that came to meet them.
    """

    token: Token
    operator: int
    worker: int
    place: str = ""
    rows: int = 0
    new_rows: int = 0
    bytes: int = 0
    emitted: int = 0
    misrouted: int = 0
    late: int = 0
    dead: int = 0
    errors: int = 0
    newest: tuple[int | None, ...] = ()
    delta: Json | None = None
    snapshot: Json | None = None
    side: tuple[Json, ...] = ()
    output: str | None = None
    held: Bins = NO_BINS
    copied: int = 0
    trouble: str | None = None
    loads: BinNumbers = NO_NUMBERS
    stored: tuple[BinNumbers, ...] = ()
    queued: tuple[BinNumbers, ...] = ()
    state_rows: BinNumbers = NO_NUMBERS
    state_bytes: BinNumbers = NO_NUMBERS
    spent_ms: Mapping[str, float] = NO_TIMES
    fault: Fault | None = None

    def to_text(self) -> str:
        """The report as it travels."""
        message = self._asdict()
        message["held"] = [self.held.size, pack(self.held)]
        for name in ("loads", "state_rows", "state_bytes"):
            message[name] = message[name].to_json()
        for name in ("stored", "queued"):
            message[name] = [each.to_json() for each in message[name]]
        message["fault"] = None if self.fault is None else asdict(self.fault)
        return _to_json(message)

    @classmethod
    def from_text(cls, text: str) -> TaskReport:
        """Read a report."""
        message = json.loads(text)
        message["token"] = Token(*message["token"])
        bins, members = message["held"]
        message["held"] = unpack(members, bins)
        for name in ("loads", "state_rows", "state_bytes"):
            message[name] = BinNumbers.from_json(message[name])
        for name in ("stored", "queued"):
            message[name] = tuple(map(BinNumbers.from_json, message[name]))
        for name in ("side", "newest"):
            message[name] = tuple(message[name])
        message["fault"] = None if message["fault"] is None else Fault(**message["fault"])
        return cls(**message)


def pack(chosen: Bins) -> str:
    """A set of bins as text; that of an array that is never written to is remembered with it."""
    if chosen.flags.writeable:
        return _pack(chosen)
    known = _TEXTS.get(id(chosen))
    if known is None or known[0]() is not chosen:
        at = id(chosen)
        known = _TEXTS[at] = (ref(chosen, lambda _: _TEXTS.pop(at, None)), _pack(chosen))
    return known[1]


@lru_cache(maxsize=KNOWN_SETS)
def unpack(text: str, bins: int) -> Bins:
    """The set of bins of a text made by `pack`, not to be written to; equal texts give the same array."""
    chosen = np.unpackbits(np.frombuffer(bitmap.from_text(text), np.uint8), count=bins).view(np.bool_)
    chosen.flags.writeable = False
    return chosen


def _pack(chosen: Bins) -> str:
    return bitmap.to_text(np.packbits(chosen).tobytes())
