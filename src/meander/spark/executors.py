"""Executors that come before workers need them, and go when no worker sits on them any more."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from meander.errors import MigrationFailed
from meander.spark.gateway import Gateway
from meander.spark.places import Places

LOOK_EVERY_S = 0.2


@dataclass(frozen=True)
class Brought:
    """How many executors were there, how many were asked for, and which have come."""

    before: int
    asked: int
    came: tuple[str, ...]


def await_executors(enough: Callable[[], bool], within_s: float, given_up: Callable[[], bool]) -> None:
    """Wait until there are enough, or the time is over, or nobody wants them any more."""
    deadline = time.monotonic() + within_s
    while not enough() and time.monotonic() < deadline and not given_up():
        time.sleep(LOOK_EVERY_S)


def bring(gateway: Gateway, places: Places, workers: int, within_s: float, given_up: Callable[[], bool]) -> Brought:
    """See that there is a core for each of so many workers; asks the cluster manager for executors where not.

    They are warm when this returns: each has run a task that loads everything. Raises `MigrationFailed` when they do
    not come in time; then the cluster manager is told to forget about them.
    """
    there = places.now()
    cores = sum(place.cores for place in there)
    if gateway.local or cores >= workers:
        return Brought(len(there), 0, ())
    known = {place.executor for place in there}
    each = gateway.cores_of_executor() or max((place.cores for place in there), default=1)
    asked = math.ceil((workers - cores) / each)
    gateway.request_executors(len(there) + asked)
    await_executors(lambda: sum(place.cores for place in places.now()) >= workers, within_s, given_up)
    there = places.now()
    cores = sum(place.cores for place in there)
    came = tuple(place.executor for place in there if place.executor not in known)
    if cores < workers:
        gateway.request_executors(len(known))
        if came:
            gateway.release_executors(came)
        raise MigrationFailed(
            f"{workers} workers need as many cores: asked for {asked} more executors of {each} cores, {len(came)} came "
            f"within {within_s:g} s, and there are {cores} cores; nothing was moved. Give Spark more room, or rescale "
            f"to at most {max(1, sum(place.cores for place in there if place.executor in known))}"
        )
    return Brought(len(known), asked, came)
