"""Executors that come before workers need them, and go when no worker is on them any more."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

from meander.clock import Clock
from meander.engine.driver.ports import Cluster
from meander.errors import MigrationFailed
from meander.migration.movable import Recruits

LOOK_EVERY_S = 0.2


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
            f"came within {within_s:g} s, and there are {cores} cores; nothing was moved. Give Spark more room, or "
            f"rescale to at most {max(1, sum(place.cores for place in there if place.executor in known))}"
        )
    return Recruits(wanted, arrived)
