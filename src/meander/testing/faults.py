"""What can go wrong in a simulation, and how likely it is. One source of chance decides about everything."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, fields

from meander.engine.driver.ports import JobLost
from meander.errors import MeanderError


class Crashed(MeanderError):
    """The driver is gone."""


@dataclass(frozen=True)
class FaultRates:
    """How likely things are at each moment at which they can happen.

    Args:
        task_lost: a Python process ends before or after its task, and the job with it.
        torn: it ends in the middle of a change of its state.
        zombie: tasks of a lost job run later, when the driver has long gone on.
        doubled: a task reports twice.
        crash: the driver ends: before or after the sink, before or after the manifest.
        executor_lost: an executor is gone before a batch, and another one comes.
        executor_gone: it does not come back.
        usurp: another driver takes over, and the old one does not know.
        restart: the query is stopped and started again.
    """

    task_lost: float = 0.01
    torn: float = 0.01
    zombie: float = 0.5
    doubled: float = 0.01
    crash: float = 0.005
    executor_lost: float = 0.02
    executor_gone: float = 0.005
    usurp: float = 0.01
    restart: float = 0.01

    @classmethod
    def none(cls) -> FaultRates:
        """Nothing goes wrong."""
        return cls(**{each.name: 0.0 for each in fields(cls)})


class Chance:
    """Decides by a seed whether a fault happens, and counts those that did."""

    def __init__(self, seed: int, rates: FaultRates) -> None:
        self.rng = random.Random(seed)
        self.rates = rates
        self.counts: Counter[str] = Counter()

    def happens(self, fault: str) -> bool:
        """Whether this fault happens now."""
        rate = float(getattr(self.rates, fault))
        if rate and self.rng.random() < rate:
            self.counts[fault] += 1
            return True
        return False

    def lose_task(self) -> None:
        """Raise `JobLost` by chance."""
        if self.happens("task_lost"):
            raise JobLost("a Python process is gone")

    def crash(self) -> None:
        """Raise `Crashed` by chance."""
        if self.happens("crash"):
            raise Crashed("the driver is gone")

    def stop(self) -> None:
        """From here on nothing goes wrong."""
        self.rates = FaultRates.none()
