"""When rows of two streams match: bounds and columns of event time, and the kind of join."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from meander.errors import InvalidOption
from meander.operators.custom import SIDES
from meander.operators.durations import microseconds
from meander.operators.operator import listing
from meander.operators.ordering import Flags, Words
from meander.operators.times import time_type
from meander.operators.window import Duration

HOWS = {"inner": "inner", "left": "left", "leftouter": "left", "left_outer": "left"}

SPANS = 2
"""Into how many spans the time is cut in which partners can come: fewer are faster to look up, more are forgotten
sooner."""


@dataclass(frozen=True)
class Bounds:
    """When rows match: the right one at most `before` us earlier and `after` us later, or both in one `window` (us)."""

    before: int
    after: int
    window: int | None = None

    @classmethod
    def of(cls, within: Duration | tuple[Duration, Duration] | None, window: Duration | None) -> Bounds:
        """Read what a user has written."""
        if (within is None) == (window is None):
            raise InvalidOption(
                'a join needs within="10 minutes" (rows at most so far apart) or window="10 minutes" (rows of one '
                "window); give one of them"
            )
        if window is not None:
            return cls(0, 0, microseconds("window", window, least=1))
        if isinstance(within, tuple | list):
            if len(within) != 2:
                raise InvalidOption(
                    f"within is {within!r}; a pair says how much earlier and how much later a right row may be"
                )
            return cls(microseconds("within", within[0]), microseconds("within", within[1]))
        either = microseconds("within", within)
        return cls(either, either)

    @property
    def span(self) -> int:
        """How long a span is, in microseconds."""
        return self.window or max(1, -(-(self.before + self.after) // SPANS))

    def closed(self, frontier: int, side: int) -> int:
        """Spans of this side that begin before this hold nothing that a row from the frontier on could match."""
        return frontier - (self.after, self.before)[side] - self.span + 1

    def is_late(self, times: Words, frontier: int) -> Flags:
        """Whether rows are before the frontier: in a closed window, or where others may have been forgotten."""
        if self.window is None:
            return times < frontier
        return times - times % self.window + self.window <= frontier

    def partners(self, side: int) -> tuple[int, int]:
        """How much later the partners of a row of this side may be, at least and at most."""
        return (-self.before, self.after) if side == 0 else (-self.after, self.before)


def how_of(how: object) -> str:
    """Which rows come out: "inner" or "left"."""
    if isinstance(how, str) and how in HOWS:
        return HOWS[how]
    hint = "; swap the streams" if how in ("right", "rightouter", "right_outer") else ""
    raise InvalidOption(f"how is {how!r}; a join is inner or left{hint}")


def times_of_sides(input: tuple[pa.Schema, pa.Schema], time: object) -> tuple[str, str]:
    """The column of event time of each side: as named, or the only timestamp there is."""
    named = tuple(time) if isinstance(time, tuple | list) else (time, time)
    if len(named) != 2:
        raise InvalidOption(f"time is {time!r}; name one column, or one for each side")
    names = []
    for side, schema, name in zip(SIDES, input, named, strict=True):
        if name is None:
            stamps = [field.name for field in schema if pa.types.is_timestamp(field.type)]
            if len(stamps) != 1:
                raise InvalidOption(
                    f"the {side} stream has {len(stamps)} timestamp columns ({listing(stamps)}); say with time= "
                    "which of them is event time"
                )
            name = stamps[0]
        time_type(schema, name, f"time of the {side} stream")
        names.append(str(name))
    return names[0], names[1]
