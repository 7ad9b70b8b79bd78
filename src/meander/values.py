"""Reading what users give: numbers, lists and ids, from Python, NumPy or JSON, refused in one sentence."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import numpy as np

from meander.errors import InvalidOption, MeanderError

LARGEST_WORKER_ID = 2**31 - 1

Refusal = type[MeanderError]


def kind(value: object) -> str:
    """What a value is, in words that fit into a sentence."""
    words = {dict: "an object", list: "a list", str: "a text", type(None): "null"}
    return words.get(type(value)) or repr(value)[:80]


def listed(what: str, values: object, refusal: Refusal = InvalidOption) -> list[Any]:
    """Return a list of the values of a sequence, an array or any other iterable that has an order."""
    if isinstance(values, np.ndarray):
        values = values.tolist()
    if isinstance(values, str | bytes | Mapping | Set) or not isinstance(values, Iterable):
        raise refusal(f"{what} must be a list, not {kind(values)}")
    return list(values)


def number(what: str, value: object, refusal: Refusal = InvalidOption) -> int | float:
    """Return a plain number that fits a 64-bit float, be it infinite or NaN."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise refusal(f"{what} must be a number, not {kind(value)}")
    try:
        float(value)
    except OverflowError:
        raise refusal(f"{what} is too large for a 64-bit float") from None
    return value


def amount(what: str, value: object, refusal: Refusal = InvalidOption) -> int | float:
    """Return a number that is finite and at least 0."""
    plain = number(what, value, refusal)
    if not 0 <= plain < math.inf:
        raise refusal(f"{what} is {plain}; it must be finite and at least 0")
    return plain


def positive(what: str, value: object, refusal: Refusal = InvalidOption) -> int | float:
    """Return a number that is finite and above 0."""
    plain = number(what, value, refusal)
    if not 0 < plain < math.inf:
        raise refusal(f"{what} is {plain}; it must be finite and above 0")
    return plain


def whole(what: str, value: object, least: int, most: int | None = None, refusal: Refusal = InvalidOption) -> int:
    """Return a whole number within bounds."""
    if isinstance(value, np.integer):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise refusal(f"{what} is {value!r}; it must be a whole number {bounds}")
    return value


def worker_id(what: str, value: object, refusal: Refusal = InvalidOption) -> int:
    """Return the id of a worker, also from a text of digits: JSON has only texts as keys."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        value = int(value)
    if isinstance(value, np.integer):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LARGEST_WORKER_ID:
        raise refusal(f"{what} is {value!r}; worker ids are whole numbers from 0 to {LARGEST_WORKER_ID}")
    return value


def total(sizes: Sequence[int | float]) -> int | float:
    """Return a sum of sizes: whole numbers add up exactly and stay whole, fractions are rounded once."""
    return sum(sizes) if all(isinstance(size, int) for size in sizes) else math.fsum(sizes)
