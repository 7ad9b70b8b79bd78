"""The events of one query, and who listens to them.

Listeners are called one event after the other, in a thread of their own, in the order of the events. The query never
waits for them and they hold none of its locks, so a listener may call anything of the query: cancel, rescale, stop.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from meander.clock import Clock, SystemClock
from meander.logs import logger


@dataclass(frozen=True, repr=False)
class Event:
    """Something that happened to a query.

    Args:
        name: what: a phase of a migration (planned, copying, ready, flipped, released, finished), workers, lost,
            executors, balancer, accepted, refused, ..
        time_ms: when, in milliseconds since 1970.
        version: the version that it happened in, of a query of Meander's own.
        migration: the number of the migration, and `step` that of its step, where it is about one.
        facts: everything else, by name, in JSON's types.
    """

    name: str
    time_ms: int
    version: int | None = None
    migration: int | None = None
    step: int | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """One flat object, ready for JSON; its name is called `event`.

        Returns:
            The fields that are given, and the facts beside them.

        Example:
            >>> Event("lost", 5, version=3, facts={"workers": [1]}).to_dict()
            {'time_ms': 5, 'event': 'lost', 'version': 3, 'workers': [1]}
        """
        about = {"version": self.version, "migration": self.migration, "step": self.step}
        given = {name: value for name, value in about.items() if value is not None}
        return {"time_ms": self.time_ms, "event": self.name, **given, **self.facts}

    def __repr__(self) -> str:
        return f"<Event {self}>"

    def __str__(self) -> str:
        facts = {name: value for name, value in self.to_dict().items() if name not in ("time_ms", "event")}
        return " ".join([self.name, *(f"{name}={value}" for name, value in facts.items())])


Listener = Callable[[Event], None]

MAX_ENTRIES = 1000
MAX_WAITING = 10_000
"""So many events may wait for a listener that is slow; then the oldest are dropped, with a warning."""
DELIVERED_WITHIN_S = 10.0


class EventLog:
    """The events of one query, oldest first."""

    def __init__(self, clock: Clock | None = None, background: bool = True, query: str | None = None) -> None:
        """Without `background`, listeners are called by `deliver` alone, in its thread; `query` is its name in logs."""
        self._query = query
        self.entries: list[Event] = []
        self._clock, self._background = clock or SystemClock(), background
        self._listeners: tuple[Listener, ...] = ()
        self._waiting: deque[tuple[Event, tuple[Listener, ...]]] = deque()
        self._thread: threading.Thread | None = None
        """What calls the listeners now."""
        self._changed = threading.Condition()

    def subscribe(self, listener: Listener) -> None:
        """Call a listener with every event from here on."""
        with self._changed:
            self._listeners = (*self._listeners, listener)

    def unsubscribe(self, listener: Listener) -> None:
        """Do not call a listener any more; one that does not listen is no error."""
        with self._changed:
            self._listeners = tuple(each for each in self._listeners if each != listener)

    def emit(self, event: str, **facts: Any) -> None:
        """Add an event; those who listen now are called soon."""
        with self._changed:
            about = {name: facts.pop(name) for name in ("version", "migration", "step") if name in facts}
            entry = Event(event, self._clock.wall_ms(), **about, facts=facts)
            self.entries.append(entry)
            del self.entries[:-MAX_ENTRIES]
            named = {"query": self._query, "version": entry.version, "migration": entry.migration}
            logger.debug("%s", entry, extra={name: value for name, value in named.items() if value is not None})
            if not self._listeners:
                return
            if len(self._waiting) == MAX_WAITING:
                lost, _ = self._waiting.popleft()
                logger.warning("%d events wait for a slow listener; it will not hear of %s", MAX_WAITING, lost)
            self._waiting.append((entry, self._listeners))
            if self._background and self._thread is None:
                self._thread = threading.Thread(target=self._call_listeners, name="meander-events", daemon=True)
                self._thread.start()

    def deliver(self) -> None:
        """Return when listeners have heard of everything so far; a listener itself does not wait."""
        with self._changed:
            if self._thread is threading.current_thread():
                return
            if self._background:
                if not self._changed.wait_for(lambda: self._thread is None, DELIVERED_WITHIN_S):
                    logger.warning("a listener is still busy after %g s; it is not waited for", DELIVERED_WITHIN_S)
                return
            self._thread = threading.current_thread()
        self._call_listeners()

    def _call_listeners(self) -> None:
        while True:
            with self._changed:
                if not self._waiting:
                    self._thread = None
                    self._changed.notify_all()
                    return
                entry, listeners = self._waiting.popleft()
            for listener in listeners:
                if listener in self._listeners:
                    _call(listener, entry)


def _call(listener: Listener, entry: Event) -> None:
    try:
        listener(entry)
    except (Exception, SystemExit):
        logger.warning("a listener of %s has failed; the query goes on", entry.name, exc_info=True)
