"""The balancer of a running query: it looks at every batch, decides with its reason, and moves bins while rows flow."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from meander.control.straggler import Straggler, Straggling, Verdict
from meander.control.view import Sample
from meander.errors import InvalidOption, MeanderError
from meander.planning import planners
from meander.spark.backlog import rows_behind
from meander.spark.request import Request, made, stages_of

if TYPE_CHECKING:
    from meander.spark.running import Query

logger = logging.getLogger("meander")

POLICIES = ("straggler",)
LOOK_EVERY_S = 0.5
REMEMBERED = 1000


@dataclass(frozen=True)
class Decision:
    """What was decided at a batch: to stay, to balance or to rescale; why; and what was moved for it.

    Args:
        version: the version after which it was decided.
        operator: which operator it is about, as in `query.assignment`.
        action: stay, balance or rescale.
        reason: in one sentence, with the figures.
        imbalance: the load imbalance degree LI that was seen.
        workers: how many workers are wanted.
        bins: how many bins the plan moves.
    """

    version: int
    operator: str
    action: str
    reason: str
    imbalance: float
    workers: int
    bins: int = 0


@dataclass(frozen=True)
class Choice:
    """What a balancer was asked for: which operators, by which rules, and how bins are to be moved."""

    stages: tuple[int, ...]
    rules: Straggling
    options: Mapping[str, Any]

    @classmethod
    def of(cls, query: Query, policy: str, operator: str | int | None, given: Mapping[str, Any]) -> Choice:
        """Check everything that was given; what is not a rule is for the planner or the schedule."""
        if policy not in POLICIES:
            raise InvalidOption(f"there is no policy {policy!r}; there is: {', '.join(POLICIES)}")
        options = {"planner": "annealing", **given}
        rules = Straggling(**{each.name: options.pop(each.name) for each in fields(Straggling) if each.name in options})
        stages = stages_of(operator, query.operators)
        rules.limit(len(query.workers))
        made("rebalance", query._engine.settings, stages, options)
        for unfit in ("at", "mode", "operator"):
            if unfit in options:
                raise InvalidOption(f"keep_balanced has no option {unfit!r}: it moves bins live, when it is time to")
        return cls(stages, rules, options)


class Balancer:
    """Keeps one query balanced, in a thread of its own, until it is stopped or the query ends."""

    def __init__(self, query: Query, choice: Choice) -> None:
        self._query, self._choice = query, choice
        self._stragglers = {stage: Straggler(choice.rules) for stage in choice.stages}
        self._decisions: deque[Decision] = deque(maxlen=REMEMBERED)
        self._lock = threading.Lock()
        self._news, self._stopped = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="meander-balancer", daemon=True)

    @property
    def decisions(self) -> list[Decision]:
        """What it has decided, oldest first; the last thousand."""
        return list(self._decisions)

    @property
    def decision(self) -> Decision | None:
        """What it decided last."""
        return self._decisions[-1] if self._decisions else None

    @property
    def is_active(self) -> bool:
        """Whether it still looks."""
        return self._thread.is_alive()

    def start(self) -> Balancer:
        """Begin to look."""
        self._query._engine.monitor.watchers.append(self._note)
        self._query._engine.rows_behind = self._rows_behind
        self._thread.start()
        return self

    def stop(self) -> None:
        """Look no more; a migration that is under way goes on."""
        self._stopped.set()
        self._news.set()
        watchers = self._query._engine.monitor.watchers
        if self._note in watchers:
            watchers.remove(self._note)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _note(self, stage: int, sample: Sample) -> None:
        if stage in self._stragglers:
            with self._lock:
                self._stragglers[stage].note(sample)
            self._news.set()

    def _rows_behind(self) -> int:
        """How far the sources are ahead; what goes wrong with asking must not hurt the batch."""
        try:
            progress = self._query._inner.lastProgress
            return 0 if progress is None else rows_behind(json.loads(progress.json))
        except Exception:
            logger.debug("the sources did not tell how far they are", exc_info=True)
            return 0

    def _run(self) -> None:
        while not self._stopped.is_set():
            if not self._news.wait(LOOK_EVERY_S):
                if not self._query.is_active:
                    return
                continue
            self._news.clear()
            for stage in self._choice.stages:
                try:
                    self._look(stage)
                except MeanderError as problem:
                    self._tell(stage, "stay", f"it could not be done: {problem}", 0.0, 0, 0)
                    self._came(stage, found=False)
                except Exception:
                    logger.exception("the balancer could not look; it tries again")

    def _look(self, stage: int) -> None:
        query, straggler = self._query, self._stragglers[stage]
        moving = query.migration is not None and not query.migration.is_over
        with self._lock:
            verdict = straggler.decide(query._engine.ledger.workers_of(stage), moving)
        if verdict.action == "stay" or self._stopped.is_set():
            self._tell(stage, "stay", verdict.reason, verdict.imbalance, verdict.workers, 0)
            return
        request = self._request(stage, verdict)
        proposal = query._proposed(request)
        found = bool(proposal.bins)
        self._tell(
            stage, verdict.action, verdict.reason if found else f"{verdict.reason}; the planner found nothing to move",
            verdict.imbalance, verdict.workers, proposal.bins,
        )  # fmt: skip
        if found:
            migration = query._move(request, proposal)
            while not migration.is_over and not self._stopped.is_set() and query.is_active:
                time.sleep(0.05)
        self._came(stage, found)

    def _came(self, stage: int, found: bool) -> None:
        with self._lock:
            self._stragglers[stage].balanced(found)

    def _request(self, stage: int, verdict: Verdict) -> Request:
        """What is to move, planned with the figures that the verdict was made of."""
        view = verdict.view
        assert view is not None
        options = dict(self._choice.options)
        known = planners()[str(options["planner"])].options
        figures = view.options(self._choice.rules.target(verdict.workers))
        options |= {name: value for name, value in figures.items() if name in known and value is not None}
        kind = "rescale" if verdict.action == "rescale" else "rebalance"
        if kind == "rescale":
            options["workers"] = verdict.workers
        return made(kind, self._query._engine.settings, (stage,), {**options, "load": view.load.tolist()})

    def _tell(self, stage: int, action: str, reason: str, imbalance: float, workers: int, bins: int) -> None:
        query = self._query
        before = next((each for each in reversed(self._decisions) if each.operator == query.operators[stage]), None)
        now = Decision(query.version, query.operators[stage], action, reason, imbalance, workers, bins)
        if before is not None and (before.version, before.action) == (now.version, action):
            return
        self._decisions.append(now)
        if action != "stay":
            query._engine.moves.happenings.tell(
                "balancer", operator=now.operator, action=action, reason=reason, imbalance=imbalance,
                workers=workers, bins=bins,
            )  # fmt: skip
