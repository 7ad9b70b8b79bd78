"""Bins whose load and state change from migration to migration, the same for every planner that is replayed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meander.errors import InvalidOption, InvalidProblem
from meander.options import amount, kind, listed, whole
from meander.planning.problem import LARGEST_NUMBER, Problem

Floats = NDArray[np.float64]

SKEW = 0.5
"""With 64 bins and 16 workers the smallest tau that intervals can keep is then about 0.15; at 0.7 it is 0.8."""

DRIFT = 0.05
"""A bin's load then changes by about 5 % from one migration to the next, and wanders within a factor of 1.3 or so."""

BYTES_PER_BIN = 2**24

PULL = 0.02
"""How much of its way back a bin goes at each migration. Without it, in the end one bin would outweigh all others."""

BURST_CHANCE = 0.1
BURST_STEPS = 20.0
BURST_LEFT = 0.6
"""At one migration in ten a bin's load is 20 steps higher than usual; 0.6 of that is left at each next one."""

LARGEST_DRIFT = 0.5
LARGEST_SKEW = 10.0
MOST_BINS = 1 << 20
LARGEST_SEED = 2**63 - 1

_START, _STEP = 0, 1


class Bins:
    """Load and state of bins at each of a series of migrations.

    Make one with `Bins.synthetic` or `Bins.measured`; `at(k)` is what the k-th migration finds.

    Attributes:
        bins: how many there are, m.
        drift: how much loads change from one migration to the next, as the standard deviation of the logarithm of
            their ratio; 0: they stay.
        seed: of the random numbers.
    """

    def __init__(self, load: Iterable[float], state: Iterable[float], drift: float = 0.0, seed: int = 1) -> None:
        self._load, self._state = _measures("load", load), _measures("state", state)
        if self._load.size != self._state.size or not self._load.size:
            raise InvalidOption(
                f"load has {self._load.size} entries and state {self._state.size}; give one of each for every bin"
            )
        if not self._load.any():
            raise InvalidOption("no bin has any load; give the work of each bin in any unit, such as rows per second")
        self.bins = int(self._load.size)
        self.drift = float(amount("drift", drift))
        if self.drift > LARGEST_DRIFT:
            raise InvalidOption(f"drift is {self.drift:g}; it must be from 0 to {LARGEST_DRIFT:g}, such as {DRIFT}")
        self.seed = whole("seed", seed, 0, LARGEST_SEED)
        self._walked = [np.zeros((4, self.bins))]
        self._cache: dict[int, tuple[Floats, Floats]] = {}

    @classmethod
    def synthetic(cls, bins: int = 64, *, skew: float = SKEW, drift: float = DRIFT, seed: int = 1) -> Bins:
        """Return bins with Zipf loads in random order, and sizes that go with the loads but are not the same.

        Args:
            bins: how many.
            skew: the exponent of Zipf's law: the i-th heaviest bin has a load in proportion to i ** -skew.
            drift: how much they change from one migration to the next; 0: not at all.
            seed: of the random numbers.

        Raises:
            InvalidOption: an argument is out of range.

        Mean load is 1, mean state 16 MiB. With drift, the logarithm of each load takes a normal step at each
        migration and is slowly pulled back to where it began; that of the state follows, with steps of its own.
        Sometimes the load of one bin bursts, and the burst fades.
        """
        m = whole("bins", bins, 1, MOST_BINS)
        skew = float(amount("skew", skew))
        if skew > LARGEST_SKEW:
            raise InvalidOption(f"skew is {skew:g}; it must be from 0 to {LARGEST_SKEW:g}, such as {SKEW}")
        rng = np.random.default_rng([whole("seed", seed, 0, LARGEST_SEED), _START])
        load = rng.permutation(np.arange(1, m + 1) ** -skew)
        load *= m / load.sum()
        state = load**0.8 * np.exp(0.4 * rng.standard_normal(m))
        return cls(load, np.rint(state * (m * BYTES_PER_BIN / state.sum())), drift, seed)

    @classmethod
    def measured(cls, load: Iterable[float], state: Iterable[float], *, drift: float = 0.0, seed: int = 1) -> Bins:
        """Return bins as they were measured: work of each bin in any unit, and bytes of its state.

        Raises:
            InvalidOption: the lists differ in length, are empty or hold what is no amount.

        Example:
            >>> load, state = Bins.measured([3.0, 1.0], [64, 32]).at(7)
            >>> load.tolist(), state.tolist()
            ([3.0, 1.0], [64.0, 32.0])
        """
        return cls(load, state, drift, seed)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], *, drift: float = 0.0, seed: int = 1) -> Bins:
        """Return the bins of {"load": [...], "state": [...]}, as read from JSON; a whole problem will do as well."""
        if not isinstance(data, Mapping) or "load" not in data or "state" not in data:
            what = "one without them" if isinstance(data, Mapping) else kind(data)
            raise InvalidOption(f"measured bins are a JSON object with the lists load and state, not {what}")
        if set(data) != {"load", "state"}:
            try:
                problem = Problem.from_dict(data)
            except InvalidProblem as error:
                raise InvalidOption(
                    f"measured bins must be load and state alone, or a whole problem: {error}"
                ) from None
            return cls(problem.load, problem.state, drift, seed)
        return cls(data["load"], data["state"], drift, seed)

    def at(self, k: int) -> tuple[Floats, Floats]:
        """Return load and state of each bin at the k-th migration, counted from 0; in any order."""
        k = whole("the number of a migration", k, 0)
        if self.drift == 0:
            k = 0
        if k not in self._cache:
            load, state, load_burst, state_burst = self._walk(k)
            measures = self._load * np.exp(load + load_burst), self._state * np.exp(state + state_burst)
            for each in measures:
                each.flags.writeable = False
            self._cache[k] = measures
        return self._cache[k]

    def _walk(self, k: int) -> Floats:
        """How far each bin is from where it began, as logarithms: load, state, bursts of load, bursts of state."""
        while len(self._walked) <= k:
            # A generator for each step: what is drawn at one does not depend on how much the others draw.
            rng = np.random.default_rng([self.seed, _STEP, len(self._walked)])
            load, state, load_burst, state_burst = self._walked[-1]
            own, other = rng.standard_normal((2, self.bins)) * self.drift
            burst = np.zeros(self.bins)
            if rng.random() < BURST_CHANCE:
                burst[rng.integers(self.bins)] = BURST_STEPS * self.drift
            self._walked.append(
                np.stack(
                    [
                        load * (1 - PULL) + own,
                        state * (1 - PULL) + (own + other) / 2,
                        load_burst * BURST_LEFT + burst,
                        state_burst * BURST_LEFT + burst / 4,
                    ]
                )
            )
        return self._walked[k]


def _measures(name: str, values: Iterable[float]) -> Floats:
    amounts = [amount(f"{name} of bin {j}", value) for j, value in enumerate(listed(name, values))]
    for j, value in enumerate(amounts):
        if value > LARGEST_NUMBER / 1e20:
            raise InvalidOption(f"{name} of bin {j} is {value:g}; use a larger unit")
    return np.array(amounts, dtype=np.float64)
