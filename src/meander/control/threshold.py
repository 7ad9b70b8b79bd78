"""When to rebalance: not at the first bad look, not again at once, and not where there is nothing to win."""

from __future__ import annotations

from dataclasses import dataclass

from meander.errors import InvalidOption
from meander.options import amount, whole
from meander.pictures import many


@dataclass(frozen=True)
class Look:
    """What is seen of a query at one tick.

    Args:
        batch: the last batch that ended; -1: none.
        imbalance: how far the busiest worker is above the mean, as a share of the mean (`measure.spread(...)[0]`).
        idle_workers: workers that could take part and hold nothing.
        batch_ms: how long that batch took.
        trigger_ms: the trigger's interval; 0: as fast as it goes.
        straggler_ms: what perfect balance would save of a batch.
        moving: a migration is under way.
    """

    batch: int
    imbalance: float
    idle_workers: int
    batch_ms: float
    trigger_ms: float
    straggler_ms: float
    moving: bool


@dataclass(frozen=True)
class Advice:
    """Whether to move, and why or why not, in one sentence."""

    move: bool
    reason: str


@dataclass(frozen=True)
class ThresholdRules:
    """What a rebalance must be good for.

    Args:
        tau: the busiest worker may be this share above the mean.
        slack: and this share of tau more before anything is done. What is out of balance stays so until it is within
            tau again.
        looks: so many bad looks in a row make a decision.
        rest_batches: so many batches are left alone after a migration.
        gain: the share of a batch's time that a migration must promise to save, from 0 to 1.
    """

    tau: float = 0.2
    slack: float = 0.25
    looks: int = 3
    rest_batches: int = 10
    gain: float = 0.1

    def __post_init__(self) -> None:
        amount("tau", self.tau)
        amount("slack", self.slack)
        whole("looks", self.looks, 1)
        whole("rest_batches", self.rest_batches, 0)
        if amount("gain", self.gain) > 1:
            raise InvalidOption(f"gain is {self.gain}; it is a share of a batch's time and lies between 0 and 1")


class Threshold:
    """Decides at every look whether it is time to rebalance, by rules and by what it has seen before.

    A bad look is one that is out of balance and where balance would pay. Any other look at a new batch begins the row
    again. A yes begins the rest as well: a plan that finds nothing to move is not asked for at every batch.

    >>> from dataclasses import replace
    >>> policy = Threshold(ThresholdRules(looks=2))
    >>> look = Look(1, imbalance=0.5, idle_workers=0, batch_ms=400, trigger_ms=0, straggler_ms=90, moving=False)
    >>> policy.decide(look).reason
    'out of balance for 1 of 2 looks'
    >>> policy.decide(replace(look, batch=2)).reason
    'the busiest worker is 50% above the mean, and balance would save 90 ms of 400 ms'
    """

    def __init__(self, rules: ThresholdRules | None = None) -> None:
        self.rules = rules or ThresholdRules()
        self._seen = -1
        self._rest_from: int | None = None
        self._is_out = False
        self._bad_looks = 0

    def decide(self, look: Look) -> Advice:
        """Return whether to move now. Looks at a batch that was seen before change nothing."""
        is_new = look.batch > self._seen
        self._seen = max(self._seen, look.batch)
        if look.moving:
            return Advice(False, "a migration is under way")
        if not is_new:
            return Advice(False, "no batch has ended yet" if look.batch < 0 else f"no new batch since {self._seen}")
        if self._rest_from is not None and look.batch - self._rest_from < self.rules.rest_batches:
            rested = look.batch - self._rest_from
            return Advice(
                False,
                f"{rested} of {many(self.rules.rest_batches, 'batch', 'batches')} of rest after the last migration",
            )
        refusal = self._balanced(look) or self._pointless(look)
        if refusal:
            self._bad_looks = 0
            return Advice(False, refusal)
        self._bad_looks += 1
        if self._bad_looks < self.rules.looks:
            return Advice(False, f"out of balance for {self._bad_looks} of {self.rules.looks} looks")
        self._rest(look.batch)
        saved = f"balance would save {look.straggler_ms:.0f} ms of {look.batch_ms:.0f} ms"
        return Advice(True, f"{_uneven(look)}, and {saved}")

    def moved(self, look: Look) -> None:
        """Note that a migration has ended, however it did, at this look: the rest begins."""
        self._seen = max(self._seen, look.batch)
        self._rest(look.batch)

    def _rest(self, batch: int) -> None:
        self._rest_from = batch if self._rest_from is None else max(batch, self._rest_from)
        # Threshold is judged anew: a plan aims at tau, and to end a little above it must not make the next one.
        self._is_out, self._bad_looks = False, 0

    def _balanced(self, look: Look) -> str | None:
        limit = self.rules.tau if self._is_out else self.rules.tau * (1 + self.rules.slack)
        self._is_out = look.imbalance > limit
        if self._is_out or look.idle_workers > 0:
            return None
        return f"balanced: the busiest worker is {look.imbalance:.0%} above the mean, up to {limit:.0%} is left alone"

    def _pointless(self, look: Look) -> str | None:
        """Why balance would not pay, or None where it would.

        It pays to save the share `gain` of a batch. A query that is behind its trigger falls back further with every
        batch: for that one it pays as well to win back the whole overrun, however small. Where it would win back less
        than either, something else is the reason to be behind, and a migration would only add to it.
        """
        overrun_ms = look.batch_ms - look.trigger_ms if look.trigger_ms > 0 else 0.0
        enough_ms = self.rules.gain * look.batch_ms
        if overrun_ms > 0:
            enough_ms = min(enough_ms, overrun_ms)
        if look.straggler_ms > 0 and look.straggler_ms >= enough_ms:
            return None
        if overrun_ms > 0:
            took = f"batch {look.batch} took {look.batch_ms:.0f} ms of its {look.trigger_ms:.0f} ms"
            return f"{took} and balance would win back only {look.straggler_ms:.0f} ms"
        return f"balance would save {look.straggler_ms:.0f} ms of {look.batch_ms:.0f} ms"


def _uneven(look: Look) -> str:
    uneven = f"the busiest worker is {look.imbalance:.0%} above the mean"
    if look.idle_workers == 0:
        return uneven
    return f"{uneven}, {'1 worker is' if look.idle_workers == 1 else f'{look.idle_workers} workers are'} idle"
