"""The auto-pilot: looks every so often, and rebalances when the rules of `meander.control` say that it is worth it."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from meander.control import Balance, Decision, Look, Rules
from meander.errors import Infeasible, MeanderError
from meander.measure import spread
from meander.native.observation import Observation

if TYPE_CHECKING:
    from meander.native.attached import Attached

logger = logging.getLogger("meander")


class Pilot:
    """Keeps one attached query balanced, in a thread of its own, until it is stopped."""

    def __init__(self, attached: Attached, rules: Rules, every_s: float) -> None:
        self._attached, self._rules, self._every_s = attached, rules, every_s
        self._balance = Balance(rules)
        self._stopped = threading.Event()
        self.decision = Decision(False, "it has not looked yet")
        """What it decided last, with the reason."""
        self._thread = threading.Thread(target=self._run, name="meander-pilot", daemon=True)

    def start(self) -> Pilot:
        """Begin to look."""
        self._thread.start()
        return self

    @property
    def is_active(self) -> bool:
        """Whether it still looks."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Look no more; a migration that is under way goes on."""
        self._stopped.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self._every_s):
            try:
                self.look()
            except MeanderError as problem:
                self.decision = Decision(False, f"it has ended: {problem}")
                self._attached._happenings.tell("pilot", move=False, reason=self.decision.reason)
                return
            except Exception:
                logger.exception("the pilot could not look; it tries again")

    def look(self) -> Decision:
        """Look once, decide, and act on it."""
        attached = self._attached
        running = attached.migration is not None and not attached.migration.is_over
        look = look_of(attached.observe(), running)
        before, self.decision = self.decision, self._balance.decide(look)
        if self.decision != before:
            attached._happenings.tell("pilot", move=self.decision.move, reason=self.decision.reason)
        if self.decision.move:
            self._move()
            self._balance.moved(look_of(attached.observe(), False))
        return self.decision

    def _move(self) -> None:
        attached = self._attached
        try:
            proposal = attached.rebalance(self._rules.tau, dry_run=True)
            tau: float | None = self._rules.tau
        except Infeasible:
            # With partitions as they are nobody can keep it; the smallest that can be kept is the next best.
            proposal, tau = attached.rebalance(dry_run=True), None
        if not proposal.bins:
            self.decision = Decision(False, "the partitions as they are cannot be spread any better")
            attached._happenings.tell("pilot", move=False, reason=self.decision.reason)
            return
        migration = attached.rebalance(tau)
        while not self._stopped.is_set() and not migration.is_over:
            self._stopped.wait(0.2)


def look_of(seen: Observation, moving: bool) -> Look:
    """What the rules want to know of an observation."""
    cores = {each.executor: float(each.cores) for each in seen.executors}
    over, idle = 0.0, 0
    for group in seen.groups:
        loads = seen.loads(group)
        over = max(over, spread(list(loads.values()), [cores.get(each, 1.0) for each in loads])[0])
        holding = {each.executor for each in seen.partitions if each.group == group}
        idle = max(idle, sum(1 for each in seen.executors if not each.draining and each.executor not in holding))
    return Look(
        batch=seen.batch, imbalance=over, idle_workers=idle, batch_ms=seen.batch_ms, trigger_ms=seen.trigger_ms,
        straggler_ms=seen.straggler_ms(), moving=moving,
    )  # fmt: skip
