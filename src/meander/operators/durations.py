"""Durations as users write them, in microseconds."""

from __future__ import annotations

import re
from datetime import timedelta

from meander.errors import InvalidOption
from meander.options import kind

_UNITS = {
    "us": 1, "microsecond": 1, "ms": 1_000, "millisecond": 1_000, "s": 1_000_000, "sec": 1_000_000, "second": 1_000_000,
    "m": 60_000_000, "min": 60_000_000, "minute": 60_000_000, "h": 3_600_000_000, "hour": 3_600_000_000,
    "d": 86_400_000_000, "day": 86_400_000_000, "w": 604_800_000_000, "week": 604_800_000_000,
}  # fmt: skip

_LONGEST = 2**62


def microseconds(what: str, value: object, least: int = 0) -> int:
    """The microseconds of a duration: a text such as "10 minutes", "1h 30m" or "500ms", a timedelta, or seconds.

    >>> microseconds("size", "1h 30m"), microseconds("size", 0.5)
    (5400000000, 500000)
    """
    duration = _read(what, value)
    if not least <= duration < _LONGEST:
        raise InvalidOption(f"{what} is {value!r}; it must be {'above 0' if least else 'at least 0'} and below 2^62 us")
    return duration


def _read(what: str, value: object) -> int:
    if isinstance(value, timedelta):
        return value // timedelta(microseconds=1)
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LONGEST:
        return round(value * 1_000_000)
    if isinstance(value, str):
        parts = re.findall(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)", value)
        rest = re.sub(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)", "", value).strip(" ,")
        sizes = [_UNITS.get(unit.lower()) or _UNITS.get(unit.lower().removesuffix("s"), 0) for _, unit in parts]
        if parts and not rest and all(sizes):
            return sum(round(float(number) * size) for (number, _), size in zip(parts, sizes, strict=True))
    text = repr(value) if isinstance(value, str) else kind(value)
    raise InvalidOption(f'{what} is {text}; write a duration such as "10 minutes", "1h 30m" or "500ms"')
