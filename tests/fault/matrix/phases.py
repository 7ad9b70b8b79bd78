"""The phases of a query, and the hooks that hold a driver in one: they are put around methods of the product.

A driver that reaches the phase it was told to be held in says so on its output, and waits until a file appears. All of
this happens in the driver's process; nothing sleeps to hit a moment.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from streams import wait_until

MIGRATION = ("planned", "copying", "ready", "flip", "first batch after", "released", "cancel")
"""Those that a query reaches because its bins move."""
PHASES = ("steady", "idle tick", *MIGRATION, "takeover", "claim", "sweep", "sink")
SETTLED = 2
"""A query is steady once it has committed this version."""


class Gate:
    """Holds the driver once, where it reaches a phase, until a file is there."""

    def __init__(self, tell: Callable[..., None]) -> None:
        self._tell = tell
        self._lock = threading.Lock()
        self._phase: str | None = None
        self._go: Path = Path()
        self.facts: Callable[[], dict[str, Any]] = dict
        self.coordinator: Any = None
        """That of the query which runs, as soon as it has done anything."""

    def arm(self, phase: str | None, go: Path) -> None:
        """Hold the driver in this phase, or in none."""
        with self._lock:
            self._phase, self._go = phase, go

    def reach(self, phase: str, **facts: Any) -> None:
        """The driver is in this phase."""
        with self._lock:
            if phase != self._phase:
                return
            self._phase = None
        self._tell("held", phase=phase, **facts, **self.facts())
        wait_until(self._go.exists, str(self._go))


def around(owner: Any, name: str, hook: Callable[..., Any]) -> None:
    """Put a hook around a method: it gets the method, and what that is called with."""
    method = getattr(owner, name)

    @wraps(method)
    def hooked(*args: Any, **options: Any) -> Any:
        return hook(method, *args, **options)

    setattr(owner, name, hooked)


def install(gate: Gate, is_before_job: Callable[[], bool]) -> None:
    """Put the hooks in place.

    An idle tick is held before its job where workers are to be hurt, and otherwise right before its manifest, when the
    sink has heard of it.
    """
    from meander.engine.driver.batch_loop import BatchLoop
    from meander.migration.coordinator import Coordinator
    from meander.store import retention
    from meander.store.manifest import Log

    flipped: set[int] = set()

    def advance(method: Any, loop: Any, batch: Any) -> None:
        gate.coordinator = loop.coordinator
        gate.reach("takeover")
        if loop.version >= SETTLED:
            gate.reach("steady")
        if batch.tick > 0 and is_before_job():
            gate.reach("idle tick")
        if id(loop) in flipped and batch.tick == 0:
            gate.reach("first batch after")
        method(loop, batch)
        if loop.coordinator.orders.flips:
            flipped.add(id(loop))

    def append(method: Any, log: Any, commit: Any) -> None:
        if commit.tick > 0 and not is_before_job():
            gate.reach("idle tick")
        method(log, commit)

    def on(method: Any, coordinator: Any, event: Any) -> Any:
        gate.coordinator = coordinator
        instructions = method(coordinator, event)
        for phase in dict.fromkeys(str(each.phase) for each in instructions if hasattr(each, "phase")):
            gate.reach(phase)
        return instructions

    def open_version(method: Any, coordinator: Any, *args: Any) -> None:
        method(coordinator, *args)
        if coordinator.orders.flips:
            gate.reach("flip")

    def cancel(method: Any, coordinator: Any, migration: int, reason: str) -> None:
        is_under_way = coordinator.protocol.migration == migration
        method(coordinator, migration, reason)
        if is_under_way:
            gate.reach("cancel")

    def claim(method: Any, log: Any, *args: Any) -> int:
        epoch: int = method(log, *args)
        gate.reach("claim")
        return epoch

    def sweep(method: Any, location: Any, *args: Any, **options: Any) -> list[str]:
        return method(Halting(location, gate), *args, **options)

    around(BatchLoop, "advance", advance)
    around(Log, "append", append)
    around(Log, "claim", claim)
    around(Coordinator, "_on", on)
    around(Coordinator, "open", open_version)
    around(Coordinator, "cancel", cancel)
    around(retention, "sweep", sweep)


class Halting:
    """A checkpoint in which deleting is held half-way."""

    def __init__(self, location: Any, gate: Gate) -> None:
        self._location, self._gate = location, gate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._location, name)

    def delete(self, paths: list[str]) -> None:
        """Delete the first half, and then the others."""
        half = len(paths) // 2
        self._location.delete(paths[:half])
        if paths:
            self._gate.reach("sweep")
        self._location.delete(paths[half:])
