"""What the modes share that move all bins at once: the request they carry out, and the rows that waited for it."""

from __future__ import annotations

from dataclasses import replace

from meander.engine.driver.run import QueryRun
from meander.errors import InvalidOption, MigrationFailed
from meander.migration.handle import Migration
from meander.migration.request import Request
from meander.migration.steps import CopyBudget

LOOK_EVERY_S = 0.01
QUIET_S = 3.0
"""Nothing has waited where a stream has nothing to do for so long."""
LOOKED_S = 30.0
"""Nor where no version is made for so long: on a busy machine Spark looks for rows nearly all the time."""


class AtOnce:
    """A mode that moves all bins at once."""

    name: str
    forced = False

    def adapt(self, request: Request) -> Request:
        """The request in one step."""
        copy_budget(request, self.name)
        if request.at_batch is not None:
            raise InvalidOption(
                f"mode {self.name} moves bins as soon as it begins and cannot wait for batch {request.at_batch}; give "
                "`at` as a time, or use live"
            )
        return replace(request, schedule="all_at_once", schedule_options={})

    def run(self, migration: Migration) -> None:
        """Carry the migration out; before the first version there is no state, and nothing has to wait."""
        run = run_of(migration)
        if run.driver.loop.version < 0:
            migration.submit()
        else:
            self.move(migration, run)

    def move(self, migration: Migration, run: QueryRun) -> None:
        """Move the bins of a query that has state."""
        raise NotImplementedError

    def ended(self, migration: Migration) -> None:
        """There is nothing to clean up."""


def run_of(migration: Migration) -> QueryRun:
    """The query that a migration is of; `copy_budget` has refused those of the native engine."""
    run = migration.engine
    assert isinstance(run, QueryRun)
    return run


def copy_budget(request: Request, mode: str) -> CopyBudget:
    """The budget of a request; refuses one to the native engine, whose state Spark itself moves."""
    if not isinstance(request.budget, CopyBudget):
        raise InvalidOption(f"mode {mode} moves bins of Meander's own operators, not partitions of Spark's; use live")
    return request.budget


def rows_of_first_batch(run: QueryRun, version: int) -> int | None:
    """Wait for the first batch after a version, which has the rows that waited; None where the stream is quiet."""
    clock = run.driver.clock
    busy_s = made_s = clock.now_s()
    while clock.now_s() - busy_s < QUIET_S and clock.now_s() - made_s < LOOKED_S:
        if not run.is_active:
            raise MigrationFailed("the query ended before it had made a version on the new assignment")
        for each in list(run.driver.loop.progress):
            if each.version > version and each.tick == 0:
                return each.rows
        if not run.stream.is_quiet:
            busy_s = clock.now_s()
        if run.driver.loop.lock.locked():
            made_s = clock.now_s()
        clock.sleep(LOOK_EVERY_S)
    return None
