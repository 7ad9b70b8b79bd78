"""The state of one key, as a function over keys sees it, and what the functions of one batch have changed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from meander.errors import InvalidOption
from meander.operators.operator import listing
from meander.options import kind

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)

Values = tuple[Any, ...]


class StateChanges:
    """What the calls of one batch have changed, by the place of the key: new values, and the timer in microseconds.

    Where keys may not ask for timers, `refusal` says why.
    """

    def __init__(self, refusal: str | None = None) -> None:
        self.refusal = refusal
        self.values: dict[int, Values] = {}
        self.timers: dict[int, int | None] = {}

    def check_timers(self) -> None:
        """Refuse a timer where there are none."""
        if self.refusal is not None:
            raise InvalidOption(self.refusal)


class KeyState:
    """The state of one key in a function of `map_with_state`.

    The columns are attributes to read: `state.total`, null (None) where the key is new. They are set with `update`.

    Attributes:
        timed_out: whether this call is for a timer or a timeout, and has no rows.
    """

    __slots__ = ("_changes", "_place", "_values", "timed_out")
    columns: tuple[str, ...] = ()

    def __init__(self, changes: StateChanges, place: int, values: Values, timed_out: bool = False) -> None:
        self._changes, self._place, self._values, self.timed_out = changes, place, values, timed_out

    @property
    def exists(self) -> bool:
        """Whether the key has state: any column that is not null."""
        return any(value is not None for value in self._values)

    def update(self, **values: Any) -> None:
        """Set some columns of the key's state; the others keep what they have.

        Args:
            values: the new values, by column; None is null.

        Raises:
            InvalidOption: there is no such column.

        Example:
            >>> state.update(total=7)
            >>> state.total, state.last
            (7, None)
        """
        columns, new = self.columns, list(self._values)
        for name, value in values.items():
            if name not in columns:
                raise InvalidOption(f"the state has no column {name!r} to update; its columns are {listing(columns)}")
            new[columns.index(name)] = value
        self._values = self._changes.values[self._place] = tuple(new)

    def clear(self) -> None:
        """Forget the key: all its columns, and its timer.

        Example:
            >>> state.update(total=7)
            >>> state.clear()
            >>> state.exists
            False
        """
        self._values = self._changes.values[self._place] = (None,) * len(self._values)
        self._changes.timers[self._place] = None

    def timer(self, at: datetime) -> None:
        """Ask to be called again, without rows, once the watermark is past this time.

        A key has one timer: a new one takes the place of the one before.

        Args:
            at: the time; without a zone, of UTC.

        Raises:
            InvalidOption: it is no datetime, or the stream has no event time.

        Example:
            >>> from datetime import datetime
            >>> state.timer(datetime(2026, 1, 1, 12))
        """
        self._changes.check_timers()
        if not isinstance(at, datetime) or at != at:  # pandas' NaT is a datetime that is not equal to itself
            raise InvalidOption(f"a timer is set for a datetime, not for {kind(at)}; add a timedelta to a row's time")
        whole = at.replace(tzinfo=UTC) if at.tzinfo is None else at
        self._changes.timers[self._place] = int((whole - EPOCH) // MICROSECOND)

    def cancel_timer(self) -> None:
        """Forget the key's timer, if it has one.

        Raises:
            InvalidOption: the stream has no event time, and so no timers.

        Example:
            >>> state.cancel_timer()
        """
        self._changes.check_timers()
        self._changes.timers[self._place] = None

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the state has no column {name!r}; its columns are {listing(self.columns)}")

    def __repr__(self) -> str:
        values = zip(self.columns, self._values, strict=True)
        return f"KeyState({', '.join(f'{name}={value!r}' for name, value in values)})"


WORDS = frozenset(name for name in vars(KeyState) if not name.startswith("__"))
"""Names that a column of state cannot have: they are those of the state's own attributes."""


@lru_cache(maxsize=64)
def state_type(columns: tuple[str, ...]) -> type[KeyState]:
    """The type of the states with these columns."""
    space: dict[str, Any] = {"__slots__": (), "columns": columns, "__doc__": KeyState.__doc__}
    for at, name in enumerate(columns):
        space[name] = _column(at, name)
    return type("KeyState", (KeyState,), space)


def check_columns(columns: Sequence[str], key: Sequence[str]) -> None:
    """Refuse columns of state that cannot be attributes of it, or that are the key's."""
    for name in columns:
        if name in key:
            raise InvalidOption(
                f"the state has a column {name!r}, which is one of the key's; the function gets the key itself, leave "
                "it out"
            )
        if name in WORDS:
            raise InvalidOption(f"a state column is called {name!r}, a word of the state itself; rename it")


def _column(at: int, name: str) -> property:
    def get(self: Any) -> Any:
        return self._values[at]

    def refuse(self: Any, value: object) -> None:
        raise InvalidOption(f"state.{name} cannot be assigned to; write state.update({name}=..)")

    return property(get, refuse, doc=f"The column {name!r}.")
