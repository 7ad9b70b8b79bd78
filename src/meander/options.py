"""Reading what users give: numbers, lists and ids, refused in one sentence; and functions that they choose by name."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from importlib.metadata import entry_points
from typing import Any, TypeVar

import numpy as np

from meander.errors import InvalidOption, MeanderError

LARGEST_WORKER_ID = 2**31 - 1

Refusal = type[MeanderError]


def kind(value: object) -> str:
    """What a value is, in words that fit into a sentence."""
    words = {dict: "an object", list: "a list", str: "a text", type(None): "null"}
    if type(value) in words:
        return words[type(value)]
    if inspect.isroutine(value):
        return f"the function {getattr(value, '__name__', '')!r}"
    text = repr(value)
    # Tables, arrays and frames show their rows, and others their address: neither is for a sentence.
    is_shown = not hasattr(value, "__array__") or isinstance(value, np.generic)
    return text[:80] if is_shown and "\n" not in text and " at 0x" not in text else f"a {type(value).__name__}"


def listed(what: str, values: object, refusal: Refusal = InvalidOption) -> list[Any]:
    """Return a list of the values of a sequence, an array or any other iterable that has an order."""
    if isinstance(values, np.ndarray):
        values = values.tolist()
    if isinstance(values, str | bytes | Mapping | Set) or not isinstance(values, Iterable):
        raise refusal(f"{what} must be a list, not {kind(values)}")
    return list(values)


def mapping(what: str, value: object, example: str) -> Mapping[Any, Any]:
    """Return a mapping; refuses anything else and shows one."""
    if not isinstance(value, Mapping):
        raise InvalidOption(f"{what} is {kind(value)}; give {example}")
    return value


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


def amount(what: str, value: object, refusal: Refusal = InvalidOption, most: float = math.inf) -> int | float:
    """Return a number that is finite, at least 0 and at most `most`."""
    plain = number(what, value, refusal)
    if not 0 <= plain < math.inf:
        raise refusal(f"{what} is {plain}; it must be finite and at least 0")
    if plain > most:
        raise refusal(f"{what} is {plain:g}, more than {most:g}; use a larger unit")
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


class Named:
    """A function with a name.

    Attributes:
        name: what users call it.
        summary: one line for people, the first of the function's docstring.
    """

    kind = "function"

    def __init__(self, function: Callable[..., Any], name: str | None = None) -> None:
        self.name = name or function.__name__
        self.summary = (function.__doc__ or "").partition("\n")[0].rstrip(".")
        self.__doc__ = function.__doc__
        self.__name__ = function.__name__
        self.__module__ = function.__module__

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name}: {self.summary}>"

    @property
    def options(self) -> dict[str, inspect.Parameter]:
        """The options it takes, by name."""
        return {}

    def check_options(self, names: list[str]) -> None:
        """Raise `InvalidOption` for the first name that is not one of its options."""
        for name in names:
            if name not in self.options:
                known = ", ".join(self.options) or "none"
                raise InvalidOption(f"{self.kind} {self.name} has no option {name!r}; its options: {known}")


Kind = TypeVar("Kind", bound=Named)
Value = TypeVar("Value")


def chosen(kind: str, name: object, known: Mapping[str, Kind]) -> Kind:
    """Return the one of that name, or raise `InvalidOption` and list those there are."""
    if not isinstance(name, str) or name not in known:
        raise InvalidOption(f"there is no {kind} {name!r}; the {kind}s are {', '.join(known)}")
    return known[name]


class Plugins(Mapping[str, Value]):
    """What installed packages offer under a name of entry points, and what we offer ourselves, which wins.

    What is not looked up is not loaded: a list of names costs no import.
    """

    def __init__(self, group: str, own: Mapping[str, Value] | None = None) -> None:
        self._loaded: dict[str, Value] = dict(own or {})
        self._entries = {each.name: each for each in entry_points(group=group)}

    def __repr__(self) -> str:
        return f"<{', '.join(self)}>"

    def __getitem__(self, name: str) -> Value:
        if name not in self._loaded:
            self._loaded[name] = self._entries[name].load()
        return self._loaded[name]

    def __contains__(self, name: object) -> bool:
        return name in self._loaded or name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self._entries, *self._loaded]))

    def __len__(self) -> int:
        return len(self._entries.keys() | self._loaded.keys())
