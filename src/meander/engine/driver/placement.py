"""Which worker is on which executor, and the folder it has there; and executors that come before workers need them."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import ClassVar
from weakref import WeakSet

from meander.clock import Clock
from meander.engine.driver.ports import Cluster, Place
from meander.errors import InvalidOption, MigrationFailed
from meander.logs import logger
from meander.migration.ledger import Holdings
from meander.migration.movable import Recruits
from meander.types import WorkerId

LOOK_EVERY_S = 0.2
MAX_LEFT = 64
"""So many folders that workers have left are removed together."""


class Placement:
    """The workers of one run of a query and their places."""

    everywhere: ClassVar[WeakSet[Placement]] = WeakSet()
    """Those of all queries of this process: an executor is let go only if no worker is on it."""

    def __init__(self, cluster: Cluster, holdings: Holdings, run: str, clock: Clock) -> None:
        self.cluster, self.holdings, self.run = cluster, holdings, run
        self.places: dict[WorkerId, Place] = {}
        self._clock = clock
        self._homes: dict[WorkerId, str] = {}
        self._home_count = 0
        self._left: set[str] = set()
        """Folders that workers have left on executors that may still be there."""
        Placement.everywhere.add(self)

    def settle(self, workers: Sequence[WorkerId], wait_s: float, owners: Collection[WorkerId] = ()) -> list[WorkerId]:
        """Give every worker a place, and return those for which none came within the time.

        Workers that have one keep it: the watchdog and the tasks themselves notice when a place is gone. Where there
        are too few, `owners` come first: a worker that only copies bins can wait, one that owns them cannot.
        """
        if self.places.keys() >= set(workers):
            return []
        cluster = self.cluster
        there = cluster.executors()
        deadline = self._clock.now_s() + wait_s
        while not cluster.is_local and _cores(there) < len(workers) and self._clock.now_s() < deadline:
            self._clock.sleep(LOOK_EVERY_S)
            there = cluster.executors()
        if cluster.is_local:
            places = dict.fromkeys(workers, there[0])
        else:
            processes = {place.process for place in there}
            stay = {each for each in workers if each in self.places and self.places[each].process in processes}
            order = sorted(workers, key=lambda each: (each not in owners, each not in stay, each))
            places = place_workers(order[: _cores(there)], there, self.places)
        for worker, place in places.items():
            if self.places.get(worker) != place:
                self._move_in(worker)
        if places != self.places:
            logger.info("workers are on executors %s", {int(w): place.executor for w, place in places.items()})
        self.places = places
        return [worker for worker in workers if worker not in places]

    def _move_in(self, worker: WorkerId) -> None:
        # A worker that comes back to a place starts anew there: what it left behind is out of date.
        if worker in self._homes:
            self._left.add(self._homes[worker])
            if len(self._left) >= MAX_LEFT:
                self._clear(self._left)
                self._left = set()
        self._homes[worker] = f"meander-{self.run}-{self._home_count}"
        self._home_count += 1
        self.holdings.forget({worker})

    @property
    def cores(self) -> int:
        """How many tasks the executors in use can run at once."""
        return _cores(set(self.places.values()))

    @property
    def processes(self) -> tuple[str, ...]:
        """The executors' processes that workers are on: host and process id."""
        return tuple(sorted({":".join(place.process.split(":")[:2]) for place in self.places.values()}))

    def home(self, worker: WorkerId) -> str:
        """The name of a worker's folder at its place."""
        return self._homes[worker]

    def lost(self) -> set[str]:
        """The executors in use that are gone."""
        return {place.executor for place in self.places.values()} - self.cluster.ids()

    def misplaced(self, worker: WorkerId) -> None:
        """A task of this worker ran elsewhere: forget who the executors are, and where the worker is."""
        self.cluster.forget(self.cluster.ids())
        self.places.pop(worker, None)

    def forget_lost(self) -> None:
        """Forget the places that are gone."""
        self._clock.sleep(LOOK_EVERY_S)  # word of a lost executor comes a moment after its tasks have failed
        lost = self.lost()
        self.cluster.forget(lost)
        self.places = {worker: place for worker, place in self.places.items() if place.executor not in lost}

    def dismiss(self, workers: Collection[WorkerId]) -> dict[str, str]:
        """Take workers off their places, and return the executor of each folder they leave behind."""
        left = {self._homes[worker]: self.places[worker].executor for worker in workers if worker in self.places}
        self.places = {worker: place for worker, place in self.places.items() if worker not in workers}
        self.holdings.forget(workers)
        return left

    def unused(self, executors: Collection[str]) -> list[str]:
        """Those of these executors on which no worker of any query of this application is."""
        return sorted(set(executors) - occupied(self.cluster))

    def leave(self) -> None:
        """Remove what the workers keep beside the executors."""
        self._clear({*self._left, *self._homes.values()})
        self.places = {}

    def _clear(self, homes: Collection[str]) -> None:
        """Remove folders wherever they are; best effort, for the executors may be gone."""
        with suppress(Exception):
            self.cluster.clear(homes)


def occupied(cluster: Cluster) -> set[str]:
    """The executors of a cluster on which workers of any query of this process are."""
    mine = [each for each in Placement.everywhere if each.cluster == cluster]
    return {place.executor for each in mine for place in each.places.values()}


def place_workers(
    workers: Sequence[WorkerId], places: Sequence[Place], now: Mapping[WorkerId, Place]
) -> dict[WorkerId, Place]:
    """Give every worker a place, at most as many to an executor as it has cores; those that can stay, stay.

    Raises `InvalidOption` when there are more workers than cores.
    """
    cores = _cores(places)
    if len(workers) > cores:
        raise InvalidOption(
            f"{len(workers)} workers need as many cores and the executors have {cores}; start with workers={cores} "
            "or give Spark more executors"
        )
    by_process = {place.process: place for place in places}
    placed = {w: by_process[now[w].process] for w in workers if w in now and now[w].process in by_process}
    used = dict.fromkeys(by_process, 0)
    for place in placed.values():
        used[place.process] += 1
    for worker in workers:
        if worker not in placed:
            best = min(places, key=lambda place: (used[place.process] / place.cores, place.executor))
            placed[worker] = best
            used[best.process] += 1
    return placed


def _cores(places: Collection[Place]) -> int:
    return sum(place.cores for place in places)


def await_executors(enough: Callable[[], bool], within_s: float, given_up: threading.Event, clock: Clock) -> None:
    """Wait until there are enough, or the time is over, or nobody wants them any more."""
    deadline = clock.now_s() + within_s
    while not enough() and clock.now_s() < deadline and not given_up.is_set():
        clock.sleep(LOOK_EVERY_S)


def recruit(cluster: Cluster, workers: int, within_s: float, given_up: threading.Event, clock: Clock) -> Recruits:
    """See that there is a core for each of so many workers; asks the cluster manager for executors where not.

    They are warm when this returns: each has run a task that loads everything. Raises `MigrationFailed` when they do
    not come in time; then the cluster manager is told to forget about them.
    """
    there = cluster.executors()
    cores = sum(place.cores for place in there)
    if cluster.is_local or cores >= workers:
        return Recruits()
    known = {place.executor for place in there}
    each = cluster.cores_per_executor() or max((place.cores for place in there), default=1)
    wanted = math.ceil((workers - cores) / each)
    cluster.request(len(there) + wanted)
    await_executors(
        lambda: sum(place.cores for place in cluster.executors()) >= workers, within_s, given_up, clock
    )  # fmt: skip
    there = cluster.executors()
    cores = sum(place.cores for place in there)
    arrived = tuple(place.executor for place in there if place.executor not in known)
    if cores < workers:
        cluster.request(len(known))
        if arrived:
            cluster.release(arrived)
        raise MigrationFailed(
            f"{workers} workers need as many cores: asked for {wanted} more executors of {each} cores, {len(arrived)} "
            f"came within {within_s:g} s, and there are {cores}; nothing was moved. Give Spark more room, or "
            f"rescale to at most {max(1, sum(place.cores for place in there if place.executor in known))}"
        )
    return Recruits(wanted, arrived)
