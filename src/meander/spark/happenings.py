"""What happened to a query, as a list to look at and as calls to whoever wants to know at once."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

logger = logging.getLogger("meander")

Listener = Callable[[dict[str, Any]], None]

REMEMBERED = 1000


class Happenings:
    """The events of one query, oldest first."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []
        self.listeners: list[Listener] = []

    def tell(self, event: str, **facts: Any) -> None:
        """Note an event and call everybody who listens, here and now."""
        found = {"time_ms": int(time.time() * 1000), "event": event, **facts}
        self.told.append(found)
        del self.told[:-REMEMBERED]
        logger.debug("%s", found)
        for listener in list(self.listeners):
            try:
                listener(found)
            except Exception:
                logger.exception("a listener of %s has failed", event)
