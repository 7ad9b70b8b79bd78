"""The footer of a state file: where its tables, their pieces and their indexes are.

A right checksum says that the file is as it was written, not that whoever wrote it told the truth. So every number is
checked before it is used: tables, indexes and footer follow one another from the first byte to the last, without gaps,
and all counts of rows agree.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from meander.kernel import kernel
from meander.pictures import many
from meander.route.columns import view
from meander.route.hashing import MOST_BINS

ENTRY_BYTES = 12
"""A bin in an index: the number of rows up to its end, and its number."""


class Stretch(NamedTuple):
    """Bytes of the file and their checksum, as 16 hexadecimal digits."""

    offset: int
    length: int
    seal: str


class StreamPart(NamedTuple):
    """A part of an Arrow stream and how many rows it has."""

    offset: int
    length: int
    rows: int
    seal: str


@dataclass(frozen=True)
class Section:
    """Where one table is: the pieces of its stream, of which the first has the schema, and its index."""

    rows: int
    pieces: Sequence[StreamPart]
    index: Stretch

    def to_json(self) -> dict[str, Any]:
        """The section as the footer has it."""
        first, last = self.pieces[0], self.pieces[-1]
        length = last.offset + last.length - first.offset
        pieces = [list(piece) for piece in self.pieces]
        return {"offset": first.offset, "length": length, "rows": self.rows, "pieces": pieces, "index": [*self.index]}


@dataclass(frozen=True)
class Footer:
    """How many bins there are, and the tables by name."""

    bins: int
    sections: dict[str, Section]

    def to_bytes(self) -> bytes:
        """The footer as the file has it."""
        sections = {name: section.to_json() for name, section in self.sections.items()}
        return json.dumps({"bins": self.bins, "sections": sections}).encode()

    @classmethod
    def from_bytes(cls, data: bytes, start: int, stop: int) -> Footer:
        """Read a footer whose file has its tables and indexes from byte `start` to `stop`.

        Raises a ValueError, KeyError, TypeError, AttributeError or RecursionError where it says anything else.
        """
        fields = json.loads(data)
        sections = {name: _section(each) for name, each in fields["sections"].items()}
        footer = cls(_whole(fields["bins"]), sections)
        if footer.bins.bit_count() != 1 or footer.bins > MOST_BINS:
            raise ValueError(f"its footer speaks of {many(footer.bins, 'bin')}")
        stretches: list[Stretch | StreamPart] = [piece for section in sections.values() for piece in section.pieces]
        at = start
        for each in stretches + [section.index for section in sections.values()]:
            if each.offset != at:
                raise ValueError(f"its footer leaves a gap or an overlap at byte {min(at, each.offset)}")
            at += each.length
        if at != stop:
            raise ValueError(f"its footer speaks of {at} bytes before it, and there are {stop}")
        return footer


def _section(fields: dict[str, Any]) -> Section:
    pieces = [
        StreamPart(_whole(offset), _whole(length), _whole(rows), _text(seal))
        for offset, length, rows, seal in fields["pieces"]
    ]
    offset, length, seal = fields["index"]
    section = Section(_whole(fields["rows"]), pieces, Stretch(_whole(offset), _whole(length), _text(seal)))
    if not pieces or pieces[0].rows or section.rows != sum(piece.rows for piece in pieces):
        raise ValueError("its footer has a table whose pieces do not add up to its rows")
    if section.index.length % ENTRY_BYTES or section.to_json() != fields:
        raise ValueError("its footer has a table that contradicts its own pieces or index")
    return section


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"its footer says {value!r} where a number from 0 on belongs")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"its footer says {value!r} where a checksum belongs")
    return value


class BinIndex(NamedTuple):
    """The bins of a table that have rows, ascending, and how many rows there are up to the end of each."""

    bins: NDArray[np.int32]
    ends: NDArray[np.int64]

    def to_bytes(self) -> bytes:
        """The index as the file has it."""
        return self.ends.tobytes() + self.bins.tobytes()

    @classmethod
    def from_bytes(cls, data: Any, rows: int, bins: int) -> BinIndex:
        """Read the index of a table of so many rows; a ValueError where it does not fit the table or the bins."""
        count = len(data) // ENTRY_BYTES
        ends = view(data, np.dtype(np.int64), 0, count)
        index = cls(view(data, np.dtype(np.int32), 2 * count, count), ends)
        # Compared, not subtracted: a difference of hostile numbers may overflow.
        wrong = any((each[1:] <= each[:-1]).any() for each in index)
        if count and (wrong or index.ends[0] <= 0 or index.bins[0] < 0 or index.bins[-1] >= bins):
            raise ValueError("its index has bins out of order, without rows, or that there are not")
        if (index.ends[-1] if count else 0) != rows:
            raise ValueError("its index speaks of another number of rows than its footer")
        return index

    def is_of(self, rows: NDArray[np.int32], start: int) -> bool:
        """Whether these are the bins of the rows from `start` on."""
        return _are_bins(rows, start, self.bins, self.ends, int(np.searchsorted(self.ends, start, "right")))


@kernel
def _are_bins(rows: NDArray[np.int32], start: int, bins: NDArray[np.int32], ends: NDArray[np.int64], k: int) -> bool:
    at = 0
    while at < rows.size:
        stop, different = min(ends[k] - start, rows.size), np.int32(0)
        # Unsigned positions and a number of 32 bits: only then the compiler takes eight rows at a time.
        for i in range(np.uint64(at), np.uint64(stop)):
            different = np.int32(different | (rows[i] ^ bins[k]))
        if different:
            return False
        k, at = k + 1, stop
    return True
