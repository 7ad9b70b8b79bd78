"""What driver and workers tell each other: one control message down and one report up, per worker, stage and attempt.

Both are JSON: nothing that moves between processes is ever unpickled.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from meander.checkpoint import bitmap


class Token(NamedTuple):
    """Which attempt a task belongs to; a later one is greater."""

    epoch: int
    version: int
    attempt: int

    @property
    def text(self) -> str:
        """The part of a file's name that no other attempt has."""
        return f"{self.epoch}.{self.attempt}"


@dataclass(frozen=True)
class Part:
    """A state file to read some bins from, in its JSON form, and a bitmap of those bins."""

    file: dict[str, Any]
    bins: str


@dataclass(frozen=True)
class Control:
    """What one worker of one stage is to do in one attempt of one version.

    `owned` is the bitmap of the bins it owns, `held` that of the bins it is to have, those included. `advance` are the
    committed deltas of the version before that speak of them, which its base may still lack; `load` says where the bins
    in `loadable` are to be read, should it not hold them. `copy` are bins to read ahead, in this order, for no longer
    than `copy_ms`. `snapshot` is the bitmap of the bins whose snapshot is due. `wave` (k, n) says that only bins k,
    k + n, k + 2n, .. come this time. A `rehearsal` is a task that touches nothing: it only warms up its process.
    """

    query: str
    token: tuple[int, int, int]
    stage: int
    worker: int
    slot: int
    place: str
    directory: str
    checkpoint: str
    bins: int
    owned: str
    held: str = ""
    advance: tuple[dict[str, Any], ...] = ()
    loadable: str = ""
    load: tuple[Part, ...] = ()
    copy: tuple[int, ...] = ()
    copy_ms: float = 0.0
    rehearsal: bool = False
    snapshot: str | None = None
    frontier: int | None = None
    previous: int | None = None
    wave: tuple[int, int] = (0, 1)
    fsync: bool = False
    inline: int = 1 << 20

    @property
    def at(self) -> Token:
        """The attempt as a token that can be compared."""
        return Token(*self.token)

    def to_bytes(self) -> bytes:
        """The message as it travels."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Control:
        """Read a message."""
        told = json.loads(data)
        told["token"] = tuple(told["token"])
        for name in ("advance", "copy", "wave"):
            told[name] = tuple(told[name])
        told["load"] = tuple(Part(**part) for part in told["load"])
        return cls(**told)


@dataclass(frozen=True)
class Fault:
    """Why a worker could not do its part.

    `kind`: "user" (an exception in the user's function, with traceback and bin), "place" (the task ran elsewhere),
    "stale" (a later attempt has begun), "reload" (the base is not what the driver thinks), "space", "damaged",
    "other".
    """

    kind: str
    message: str
    trace: str = ""
    bin: int | None = None


@dataclass(frozen=True)
class Report:
    """What one worker of one stage did in one attempt; its files are named here or nowhere."""

    token: tuple[int, int, int]
    stage: int
    worker: int
    place: str = ""
    rows: int = 0
    bytes: int = 0
    emitted: int = 0
    misrouted: int = 0
    late: int = 0
    dead: int = 0
    newest: tuple[int | None, ...] = ()
    """The newest event time of each input; without any where the stage has no event time or saw no row."""
    delta: dict[str, Any] | None = None
    snapshot: dict[str, Any] | None = None
    side: tuple[dict[str, Any], ...] = ()
    output: str | None = None
    held: str = ""
    copied: int = 0
    trouble: str | None = None
    """Why bins could not be copied; the version itself is not hurt by it."""
    loads: str = ""
    stored: tuple[str, ...] = ()
    """Rows that each bin has of each input, where there are several; `queued` are those that came to meet them."""
    queued: tuple[str, ...] = ()
    state_rows: str = ""
    state_bytes: str = ""
    spent_ms: Mapping[str, float] = field(default_factory=dict)
    fault: Fault | None = None

    def to_text(self) -> str:
        """The report as it travels."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> Report:
        """Read a report."""
        told = json.loads(text)
        told["token"] = tuple(told["token"])
        for name in ("side", "newest", "stored", "queued"):
            told[name] = tuple(told[name])
        told["fault"] = Fault(**told["fault"]) if told["fault"] else None
        return cls(**told)


def packed(chosen: NDArray[np.bool_]) -> str:
    """A set of bins as text: one bit each."""
    return bitmap.to_text(np.packbits(chosen).tobytes())


def unpacked(text: str, bins: int) -> NDArray[np.bool_]:
    """The set of bins of a text made by `packed`."""
    return np.unpackbits(np.frombuffer(bitmap.from_text(text), np.uint8), count=bins).astype(np.bool_)


def numbers(values: NDArray[np.int64]) -> str:
    """Whole numbers, one for each bin, as text."""
    return b64encode(np.ascontiguousarray(values, "<i8").tobytes()).decode()


def read_numbers(text: str) -> NDArray[np.int64]:
    """The numbers of a text made by `numbers`."""
    return np.frombuffer(b64decode(text), "<i8").astype(np.int64)
