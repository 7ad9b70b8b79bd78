"""What has to move is stopped, and started elsewhere: the whole query, or the executors whose bins change."""

from __future__ import annotations

from meander.engine.driver.run import QueryRun
from meander.errors import InvalidOption
from meander.migration.handle import Migration
from meander_lab.modes.at_once import AtOnce, rows_of_first_batch, run_of

LOOK_EVERY_S = 0.05


class Restart(AtOnce):
    """Stop the query, and start it again with the bins where they shall be (Storm's rebalance)."""

    name = "restart"

    def move(self, migration: Migration, run: QueryRun) -> None:
        """Relaunch the query."""
        began_s = run.driver.clock.now_s()
        migration.plan_again()
        migration.mark_running()
        migration.know_as(run.relaunch(migration.steps))
        _conclude(migration, run, began_s)


class RestartWorkers(AtOnce):
    """Restart the executors whose bins change, and only these; their bins are read where they shall be (Storm*)."""

    name = "restart_workers"

    def run(self, migration: Migration) -> None:
        """Carry the migration out; refuses where there are no executors."""
        if run_of(migration).driver.cluster.is_local:
            raise InvalidOption("mode restart_workers restarts executors, and in local mode there are none; use live")
        super().run(migration)

    def move(self, migration: Migration, run: QueryRun) -> None:
        """Let executors go and ask for as many new ones."""
        driver = run.driver
        cluster, placement, clock = driver.cluster, driver.placement, driver.clock
        with driver.loop.lock:
            began_s = clock.now_s()
            migration.plan_again()
            migration.mark_running()
            workers = {worker for step in migration.steps for worker in step.workers}
            executors = {placement.places[worker].executor for worker in workers if worker in placement.places}
            total = len(cluster.executors())
            migration.know_as(driver.coordinator.take_over(migration.steps))
            cluster.release(sorted(executors))
            cluster.request(total)
            deadline = clock.now_s() + driver.settings.executors_within_s
            while not executors <= placement.lost() and clock.now_s() < deadline:
                clock.sleep(LOOK_EVERY_S)
            driver.attempts.forget_lost()
        _conclude(migration, run, began_s)


def _conclude(migration: Migration, run: QueryRun, began_s: float) -> None:
    """Wait for the first batch on the new assignment, and be done; where none comes, none had to wait for it."""
    clock = run.driver.clock
    assert migration.number is not None
    version = run.state(migration.number).last_version
    assert version is not None
    ready_s = clock.now_s()
    rows = rows_of_first_batch(run, version)
    migration.note_hold(rows or 0, ((ready_s if rows is None else clock.now_s()) - began_s) * 1000)
    migration.conclude()
