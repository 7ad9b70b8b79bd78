"""The ways in which bins can be moved, behind one interface: the live one, and the others to compare it with.

live              copied ahead, flipped at a version, released later (N-Storm, and with a delay N-Storm+)
pause             everything holds while the state moves, no process ends (Ding 5.1)
pause_bins        only rows of bins that move wait, and go first once the state is there (Ding's wait buffers)
restart           the query is stopped and started on the new assignment (Storm's rebalance)
restart_workers   only executors whose bins change are restarted (Storm*)
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from meander.errors import InvalidOption, MigrationFailed
from meander.spark.migrating import Migration, unlimited

UNHURRIED_MS = 1e9
"""A budget that is never used up."""


def live(migration: Migration) -> None:
    """Let the engine do it, version by version."""
    migration.submit()


def pause(migration: Migration) -> None:
    """Hold all rows, let the new owners read the bins in a version of its own, and go on."""
    query = migration._query
    engine = query._engine
    with engine.lock:
        began = time.perf_counter()
        migration._proposal = migration._propose()
        rules = replace(migration._request.rules, release_after=0)
        migration._begin(engine, rules, migration._request.copy_ms)
        while engine.moves.protocol.migration == migration.number and engine.log.last is not None:
            query._runner.tick()
        migration.longest_hold_ms = (time.perf_counter() - began) * 1000
        version = engine.version
    migration.rows_held = _rows_after(migration, version)


def pause_bins(migration: Migration) -> None:
    """Let each batch go on without the rows of the bins that move; those follow once the state has been read."""
    runner = migration._query._runner
    runner.rows_held, runner.longest_hold_ms, runner.holds_back = 0, 0.0, True
    migration.submit(unlimited(migration._request.rules), UNHURRIED_MS)


def restart(migration: Migration) -> None:
    """Stop the query, and start it again with the bins where they shall be."""
    query = migration._query
    migration._status = "running"
    migration._first_version = query.version + 1
    migration._proposal = migration._propose()
    began = time.perf_counter()
    query._relaunch(migration.steps)
    version = query.version
    _wait_for_version(migration, version + 1)
    migration.longest_hold_ms = (time.perf_counter() - began) * 1000
    migration.rows_held = _rows_after(migration, version)
    migration.conclude()


def restart_workers(migration: Migration) -> None:
    """Restart the executors whose bins change, and only these; their bins are read where they shall be."""
    query = migration._query
    engine = query._engine
    if engine.gateway.local:
        raise InvalidOption("mode restart_workers restarts executors, and in local mode there are none; use live")
    with engine.lock:
        migration._status = "running"
        migration._first_version = engine.version + 1
        migration._proposal = migration._propose()
        began = time.perf_counter()
        changed = {worker for step in migration.steps for worker in step.workers}
        hit = {engine.seats.now[worker].executor for worker in changed if worker in engine.seats.now}
        total = len(engine.seats.places.now())
        engine.moves.take_over(migration.steps)
        engine.gateway.release_executors(sorted(hit))
        engine.gateway.request_executors(total)
        deadline = time.monotonic() + engine.settings.executors_within_s
        while engine.seats.places.gone(engine.seats.now) < hit and time.monotonic() < deadline:
            time.sleep(0.05)
        version = engine.version
        engine.seats.forget_lost()
    _wait_for_version(migration, version + 1)
    migration.longest_hold_ms = (time.perf_counter() - began) * 1000
    migration.rows_held = _rows_after(migration, version)
    migration.conclude()


def _wait_for_version(migration: Migration, version: int) -> None:
    while migration._query.version < version:
        if not migration._query.is_active:
            raise MigrationFailed("the query ended before it had made a version on the new assignment")
        time.sleep(0.01)


def _rows_after(migration: Migration, version: int) -> int:
    """The rows of the first version after one: those that had come meanwhile, and waited."""
    deadline = time.monotonic() + migration._request.executors_within_s
    while time.monotonic() < deadline and migration._query.is_active:
        found = [each for each in migration._query.recent_progress if each["version"] > version and each["tick"] == 0]
        if found:
            return int(np.int64(found[0]["rows"]))
        time.sleep(0.02)
    return 0


MODES: dict[str, Callable[[Migration], None]] = {
    each.__name__: each for each in (live, pause, pause_bins, restart, restart_workers)
}
