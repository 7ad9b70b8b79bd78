"""Functions that users choose by name: planners and schedules, with a summary and options of their own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from meander.errors import InvalidOption


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


def chosen(kind: str, name: object, known: Mapping[str, Kind]) -> Kind:
    """Return the one of that name, or raise `InvalidOption` and list those there are."""
    if not isinstance(name, str) or name not in known:
        raise InvalidOption(f"there is no {kind} {name!r}; the {kind}s are {', '.join(known)}")
    return known[name]
