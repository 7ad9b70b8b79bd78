"""How many workers a query has when nobody says: a core each of the executors that the application is to have."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Protocol

from meander.clock import Clock, SystemClock
from meander.engine.spark.gateway import Executor
from meander.logs import logger

LOOK_EVERY_S = 0.1

UNASKED_EXECUTORS = 2
"""What YARN and Kubernetes give to an application that does not say how many executors it wants."""


class Application(Protocol):
    """What is asked of a Spark application; the `Gateway` is one."""

    def executors(self) -> Sequence[Executor]:
        """The executors that are there now."""

    def settings(self) -> Mapping[str, str]:
        """The settings it was started with."""

    @property
    def started_ms(self) -> int:
        """When it was started, in milliseconds since 1970."""


def configured_cores(settings: Mapping[str, str]) -> int | None:
    """How many cores the executors have when all have come; None where the settings do not say."""
    master = settings.get("spark.master", "")
    cores_max = settings.get("spark.cores.max")
    limit = int(cores_max) if cores_max else None
    local_cluster = re.fullmatch(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*\]", master)
    if local_cluster:
        cores = int(local_cluster[1]) * int(local_cluster[2])
        return cores if limit is None else min(cores, limit)
    if master.startswith(("yarn", "k8s")):
        executors = int(settings.get("spark.executor.instances", UNASKED_EXECUTORS))
        return executors * int(settings.get("spark.executor.cores", 1))
    return limit if master.startswith("spark:") else None


def default_workers(application: Application, within_s: float, clock: Clock | None = None) -> int:
    """One worker for each core of the executors.

    Executors register one after the other, and a query that counted too soon would have too few workers for ever. So
    this waits for those that the settings promise, until the application is `within_s` old; later, whoever is missing
    was lost or let go.
    """
    clock = clock or SystemClock()
    expected = configured_cores(application.settings()) or 1
    deadline_ms = application.started_ms + within_s * 1000
    has_waited = False
    while (cores := _cores(application)) < expected and clock.wall_ms() < deadline_ms:
        has_waited = True
        clock.sleep(LOOK_EVERY_S)
    if has_waited and cores < expected:
        logger.warning(
            "the executors were to have %d cores and have %d after %g s: the query starts with as many workers; "
            "rescale it when the others have come",
            expected, cores, within_s,
        )  # fmt: skip
    return max(1, cores)


def _cores(application: Application) -> int:
    return sum(each.cores for each in application.executors())
