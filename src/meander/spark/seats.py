"""Which worker sits on which executor, and what the driver believes it holds there. It may be wrong: workers check."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import ClassVar
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from meander.spark.gateway import Gateway
from meander.spark.places import Place, Places, seat
from meander.types import WorkerId

logger = logging.getLogger("meander")
Bins = NDArray[np.bool_]


class Seats:
    """The workers of one run of a query and their places."""

    everywhere: ClassVar[WeakSet[Seats]] = WeakSet()
    """Those of all queries of this process: an executor is let go only if nobody sits on it."""

    def __init__(self, gateway: Gateway, run: str) -> None:
        self.gateway, self.run = gateway, run
        Seats.everywhere.add(self)
        self.places = Places(gateway)
        self.now: dict[WorkerId, Place] = {}
        self._homes: dict[WorkerId, str] = {}
        self._every_home: set[str] = set()
        self._held: dict[tuple[int, WorkerId], Bins] = {}

    def settle(self, workers: Sequence[WorkerId], wait_s: float) -> list[WorkerId]:
        """Give every worker a place, and return those for which none came within the time.

        Workers that have one keep it: the watchdog and the tasks themselves notice when a place is gone.
        """
        if self.now.keys() >= set(workers):
            return []
        places = self.places.now()
        deadline = time.monotonic() + wait_s
        while not self.gateway.local and _cores(places) < len(workers) and time.monotonic() < deadline:
            time.sleep(0.2)
            places = self.places.now()
        if self.gateway.local:
            seated = dict.fromkeys(workers, places[0])
        else:
            there = {place.process for place in places}
            stay = [worker for worker in workers if worker in self.now and self.now[worker].process in there]
            others = [worker for worker in workers if worker not in stay]
            seated = seat([*stay, *others][: _cores(places)], places, self.now)
        for worker, place in seated.items():
            if self.now.get(worker) != place:
                self._move_in(worker)
        if seated != self.now:
            logger.info("workers sit on executors %s", {int(w): place.executor for w, place in seated.items()})
        self.now = seated
        return [worker for worker in workers if worker not in seated]

    def _move_in(self, worker: WorkerId) -> None:
        # A worker that comes back to a place starts anew there: what it left behind is out of date.
        home = f"meander-{self.run}-{len(self._every_home)}"
        self._homes[worker] = home
        self._every_home.add(home)
        self._held = {at: bins for at, bins in self._held.items() if at[1] != worker}

    @property
    def cores(self) -> int:
        """How many tasks the executors in use can run at once."""
        return _cores(set(self.now.values()))

    def home(self, worker: WorkerId) -> str:
        """The name of a worker's folder at its place."""
        return self._homes[worker]

    def held(self, stage: int, worker: WorkerId) -> Bins | None:
        """The bins that a worker is believed to hold of a stage; None: nothing is known."""
        return self._held.get((stage, worker))

    def holds(self, stage: int, worker: WorkerId, bins: Bins) -> None:
        """Note what a worker has reported to hold."""
        self._held[stage, worker] = bins

    def doubt(self, stage: int, worker: WorkerId, place: bool = False) -> None:
        """Forget what a worker is believed to hold, or even where it is believed to sit."""
        self._held.pop((stage, worker), None)
        if place:
            self.places.known.clear()
            self.now.pop(worker, None)

    def forget_lost(self) -> None:
        """Forget the places that Spark no longer lists."""
        time.sleep(0.2)  # Spark hears of a lost executor a moment after its tasks have failed.
        gone = self.places.gone(self.now)
        for executor in gone:
            self.places.known.pop(executor, None)
        self.now = {worker: place for worker, place in self.now.items() if place.executor not in gone}

    def dismiss(self, workers: Collection[WorkerId]) -> dict[str, str]:
        """Take workers off their seats, and return which executor each folder they leave behind is on."""
        left = {self._homes[worker]: self.now[worker].executor for worker in workers if worker in self.now}
        self.now = {worker: place for worker, place in self.now.items() if worker not in workers}
        for at in [at for at in self._held if at[1] in workers]:
            del self._held[at]
        return left

    def unused(self, executors: Collection[str]) -> list[str]:
        """Those of these executors on which no worker of any query of this application sits."""
        mine = [each for each in Seats.everywhere if each.gateway.context is self.gateway.context]
        used = {place.executor for each in mine for place in each.now.values()}
        return sorted(set(executors) - used)

    def leave(self) -> None:
        """Remove what the workers keep beside the executors; best effort, for the executors may be gone."""
        with suppress(Exception):
            self.places.clear(self._every_home)
        self.now = {}


def _cores(places: Sequence[Place] | set[Place]) -> int:
    return sum(place.cores for place in places)
