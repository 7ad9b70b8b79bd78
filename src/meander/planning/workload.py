"""What Ls-Stream's planner knows of bins and workers: the problem, and what was measured beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import starmap

import numpy as np

from meander.errors import InvalidOption
from meander.measure.load import check_gamma, computing_load, resource
from meander.options import amount, listed, positive, worker_id
from meander.pictures import many
from meander.planning.handover import Sums
from meander.planning.problem import LARGEST_NUMBER, Problem
from meander.types import WorkerId

BUSIEST = 0.9
"""How busy the busiest worker is taken to be where the service rates are not given."""


@dataclass(frozen=True)
class Workload:
    """Loads, work and rates of bins, and the speed of workers.

    Attributes:
        parts: what each bin amounts to.
        speeds: work each worker can do per second, for everyone who is there or will be.
        row_work: work of a mean row.
        least_tuples: what counts as moved where nothing is: 1, or the smallest bin's tuples if fewer.
    """

    parts: tuple[Sums, ...]
    speeds: Mapping[WorkerId, float]
    row_work: float
    least_tuples: float

    @classmethod
    def of(
        cls,
        problem: Problem,
        stored: Sequence[float] | None,
        queued: Sequence[float] | None,
        computing: Sequence[float] | None,
        gamma: float,
        arrivals: Sequence[float] | None,
        service: Mapping[int, float] | float | None,
    ) -> Workload:
        """Put together what is given and what follows from it; see the options of `annealing`."""
        arguments = {"stored": stored, "queued": queued, "computing": computing, "arrivals": arrivals}
        columns = {
            name: _per_bin(name, values, problem.bins) for name, values in arguments.items() if values is not None
        }
        load = work = [float(x) for x in problem.load]
        gamma = check_gamma(gamma)
        if "stored" in columns and "queued" in columns:
            with np.errstate(over="ignore"):
                load = resource(columns["stored"], columns["queued"], gamma).tolist()
                work = computing_load(columns["stored"], columns["queued"]).tolist()
            too_large = np.flatnonzero(~np.isfinite(work))
            if too_large.size:
                raise InvalidOption(f"stored times queued of bin {too_large[0]} is too large for a 64-bit float")
        work = columns.get("computing", work)
        rows = columns.get("arrivals", columns.get("queued", load))
        tuples = columns.get("stored", [float(x) for x in problem.state])
        parts = tuple(starmap(Sums, zip(load, work, rows, tuples, strict=True)))
        everything = Sums.of(parts)
        row_work = everything.work / everything.rows if everything.work > 0 and everything.rows > 0 else 1.0
        least_tuples = min([1.0, *(size for size in tuples if size > 0)])
        return cls(parts, _speeds(problem, parts, row_work, service), row_work, least_tuples)


def _speeds(
    problem: Problem, parts: Sequence[Sums], row_work: float, service: Mapping[int, float] | float | None
) -> dict[WorkerId, float]:
    """Work each worker can do per second: the rows it serves times the work its present rows make."""
    everyone = (*problem.current, *problem.newcomers)
    capacity = {w: problem.capacity(w) for w in everyone}
    has = {w: Sums.of(part for part, owner in zip(parts, problem.owner, strict=True) if owner == w) for w in everyone}
    if service is None:
        pace = max(has[w].work / capacity[w] for w in everyone) / BUSIEST or 1.0
        return {w: pace * capacity[w] for w in everyone}
    if isinstance(service, Mapping):
        rates = _rates(service, everyone)
    else:
        rate = _rate("service", service)
        rates = {w: rate * capacity[w] for w in everyone}
    known = {
        w: rate * (has[w].work / has[w].rows if has[w].work > 0 and has[w].rows > 0 else row_work)
        for w, rate in rates.items()
    }
    pace = math.fsum(known.values()) / math.fsum(capacity[w] for w in known)
    return {w: known.get(w, pace * capacity[w]) for w in everyone}


def _rates(service: Mapping[int, float], everyone: Sequence[WorkerId]) -> dict[WorkerId, float]:
    if not service:
        raise InvalidOption("service names no worker; give rows per second for at least one, or leave it out")
    rates = {}
    for key, value in service.items():
        worker = worker_id("a worker in service", key)
        if worker not in everyone:
            raise InvalidOption(f"service names worker {worker}, which is neither there nor wanted")
        rates[WorkerId(worker)] = _rate(f"service of worker {worker}", value)
    return dict(sorted(rates.items()))


def _per_bin(name: str, values: object, bins: int) -> list[float]:
    entries = listed(name, values)
    if len(entries) != bins:
        raise InvalidOption(
            f"{name} has {many(len(entries), 'entry', 'entries')} but there are {many(bins, 'bin')}; give one for each"
        )
    return [float(amount(f"{name} of bin {j}", x, most=LARGEST_NUMBER)) for j, x in enumerate(entries)]


def _rate(name: str, value: object) -> float:
    return float(amount(name, positive(name, value), most=LARGEST_NUMBER))
