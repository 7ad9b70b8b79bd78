"""Deleting what no kept version needs, beside the batches: listing and deleting files would be felt in them."""

from __future__ import annotations

import logging
import threading

from meander.checkpoint.location import Location
from meander.checkpoint.manifest import Log
from meander.checkpoint.retention import sweep

logger = logging.getLogger("meander")


class Sweeper:
    """Sweeps a checkpoint in a thread of its own, one time after the other.

    It reads the log for itself, and what is meant for versions after the last one it sees it leaves alone: so it needs
    no lock, and does not see a batch that is being made.
    """

    def __init__(self, location: Location, retain: int, background: bool = True) -> None:
        self._location, self._retain, self._background = location, retain, background
        self._thread: threading.Thread | None = None

    def sweep(self) -> None:
        """Begin to sweep, unless that is being done."""
        if not self._background:
            self._sweep()
        elif self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._sweep, name="meander-sweeper", daemon=True)
            self._thread.start()

    def join(self) -> None:
        """Wait until it is done."""
        if self._thread is not None:
            self._thread.join()

    def _sweep(self) -> None:
        try:
            sweep(self._location, Log.open(self._location), self._retain)
        except Exception as problem:
            # Nothing is lost by it: the next one takes what this one left.
            logger.warning("old files could not be removed: %s", problem)
