"""What happened to a query: a list to look at, and calls to everyone who listens."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from meander.clock import Clock, SystemClock

logger = logging.getLogger("meander")

Listener = Callable[[dict[str, Any]], None]

MAX_ENTRIES = 1000


class EventLog:
    """The events of one query, oldest first."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.entries: list[dict[str, Any]] = []
        self.listeners: list[Listener] = []
        self._clock = clock or SystemClock()

    def emit(self, event: str, **facts: Any) -> None:
        """Add an event, and call everyone who listens, now and in this thread."""
        entry = {"time_ms": self._clock.wall_ms(), "event": event, **facts}
        self.entries.append(entry)
        del self.entries[:-MAX_ENTRIES]
        logger.debug("%s", entry)
        for listener in list(self.listeners):
            try:
                listener(entry)
            except Exception:
                logger.exception("a listener of %s has failed", event)
