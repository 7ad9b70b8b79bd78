"""Everything holds while the state moves; no process ends (Ding 5.1)."""

from __future__ import annotations

from dataclasses import replace

from meander.engine.driver.run import QueryRun
from meander.migration.handle import Migration
from meander.migration.request import Request
from meander_lab.modes.at_once import AtOnce, copy_budget, rows_of_first_batch


class Pause(AtOnce):
    """Hold all rows, let the new owners read the bins in a version of its own, and go on."""

    name = "pause"
    forced = True

    def adapt(self, request: Request) -> Request:
        """The request in one step, of which no copy is kept."""
        request = super().adapt(request)
        return replace(request, budget=replace(copy_budget(request, self.name), release_after=0))

    def move(self, migration: Migration, run: QueryRun) -> None:
        """Make versions without rows until the bins have moved."""
        driver = run.driver
        with driver.loop.lock:
            began_s = driver.clock.now_s()
            migration.plan_again()
            migration.mark_running()
            number = driver.coordinator.begin(migration.steps, copy_budget(migration.request, self.name))
            migration.know_as(number)
            while driver.coordinator.protocol.migration == number:
                driver.loop.tick()
            held_ms = (driver.clock.now_s() - began_s) * 1000
            version = driver.loop.version
        migration.note_hold(0, held_ms)
        migration.note_hold(rows_of_first_batch(run, version) or 0)
