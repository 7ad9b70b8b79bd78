"""That the simulation sees what is wrong: drivers and workers that are broken in one way each are found out."""

from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest

from meander.engine.driver.attempts import Attempts
from meander.engine.driver.batch_loop import BatchLoop
from meander.engine.driver.commit import VersionReports
from meander.engine.driver.version import Version
from meander.engine.worker import catch_up
from meander.engine.worker.task import AttemptFiles
from meander.migration import protocol
from meander.migration.control_rows import ControlRows
from meander.migration.coordinator import Coordinator
from meander.migration.ledger import BinRecord, Holdings
from meander.migration.orders import Planned
from meander.migration.protocol import Protocol
from meander.migration.steps import NO_LIMIT
from meander.state.holding import Holding
from meander.store import retention
from meander.store.entries import SnapshotRef
from meander.store.manifest import Log
from meander.testing import model
from meander.testing.simulation import Simulation, Violation

MOST_SEEDS = 1000
"""Within so many seeds whatever is broken must be found out; most are within ten."""

Patch = Callable[[Any, str, object], None]
Mutant = Callable[[Patch], None]
MUTANTS: list[tuple[Mutant, bool, int]] = []
"""How to break something, whether only the real worker code shows it, and the seed to begin with."""


def mutant(break_it: Mutant) -> Mutant:
    MUTANTS.append((break_it, False, 0))
    return break_it


def mutant_from(first: int) -> Callable[[Mutant], Mutant]:
    """One that takes a rare story: seeds from here on, where one is known to be near."""

    def add(break_it: Mutant) -> Mutant:
        MUTANTS.append((break_it, False, first))
        return break_it

    return add


def mutant_of_files(break_it: Mutant) -> Mutant:
    MUTANTS.append((break_it, True, 0))
    return break_it


@pytest.fixture(autouse=True)
def _quiet(caplog):
    """Losses are what a simulation is about: nobody wants to read of each of them."""
    caplog.set_level("CRITICAL", logger="meander")


@pytest.mark.parametrize(("break_it", "real", "first"), MUTANTS, ids=lambda each: getattr(each, "__name__", None))
def test_whatever_is_broken_is_found_out(monkeypatch, break_it, real, first):
    break_it(monkeypatch.setattr)
    assert killed_by(real, first).startswith("seed ")


def killed_by(real: bool, first: int) -> str:
    """What is said of the first seed at which something broken comes to grief."""
    for seed in range(first, first + MOST_SEEDS):
        try:
            Simulation(seed, real).run()
        except Violation as violation:
            return str(violation)
    return "nothing"


# --- the driver: versions ------------------------------------------------------------------------


@mutant_from(25)
def does_not_announce_ticks(patch):
    patch(Log, "announce", lambda self, _: self.check())


@mutant_from(19)
def makes_a_new_tick_before_a_batch_that_was_begun(patch):
    patch(BatchLoop, "owes_batch", False)


@mutant
def doubles_ticks(patch):
    real = BatchLoop.tick

    def twice(self):
        real(self)
        real(self)

    patch(BatchLoop, "tick", twice)


@mutant
def takes_any_reports_for_all(patch):
    patch(Attempts, "_is_whole", lambda self, result, version: not any(each.fault for each in result.reports))


@mutant
def forgets_the_delta_of_the_last_worker(patch):
    real = VersionReports.__init__

    def careless(self, reports, *rest):
        real(self, reports, *rest)
        for mine in self.by_operator:
            mine[-1:] = [mine[-1]._replace(delta=None)]

    patch(VersionReports, "__init__", careless)


@mutant
def takes_snapshots_for_newer_than_they_are(patch):
    real = SnapshotRef.from_json
    patch(SnapshotRef, "from_json", lambda fields: replace(real(fields), version=fields["version"] + 1))


# --- the driver: others, and what was before ------------------------------------------------------


@mutant
def does_not_see_that_it_is_replaced(patch):
    def regardless(self, entry, *_):
        return None

    patch(Log, "_refuse", regardless)


@mutant
def sweeps_what_is_needed(patch):
    real = retention.garbage
    patch(
        retention,
        "garbage",
        lambda paths, **rest: [each for each in paths if each.startswith("deltas/")] or real(paths, **rest),
    )


@mutant
def forgets_the_journal(patch):
    real = Coordinator.note
    patch(Coordinator, "note", lambda self: {name: each for name, each in real(self).items() if name != "migration"})


@mutant_from(25)
def forgets_the_journal_of_control_rows(patch):
    real = Coordinator.note
    patch(Coordinator, "note", lambda self: {name: each for name, each in real(self).items() if name != "control"})


@mutant_from(172)
def drops_control_rows_for_a_plan(patch):
    real = Coordinator.begin

    def begin(self, *rest):
        self.control = ControlRows()
        return real(self, *rest)

    patch(Coordinator, "begin", begin)


@mutant
def takes_control_rows_a_batch_late(patch):
    real = protocol.due
    patch(protocol, "due", lambda steps, batch: real(steps, batch - 1))


def _writes(patch, wrong):
    real = Protocol.to_json

    def written(protocol):
        note = real(protocol)
        return note if note is None else wrong(note, protocol)

    patch(Protocol, "to_json", written)


@mutant
def forgets_a_step_of_the_journal(patch):
    _writes(patch, lambda note, _: {**note, "steps": note["steps"][1:]})


@mutant
def repeats_a_step_of_the_journal(patch):
    def wrong(note, protocol):
        return {**note, "steps": [*(step.to_json() for step in protocol.flipping), *note["steps"]]}

    _writes(patch, wrong)


# --- the driver: bins that move -------------------------------------------------------------------


@mutant
def skips_repairs(patch):
    patch(Coordinator, "repair", lambda self, lost: None)


@mutant
def flips_before_the_last_delta(patch):
    real = Version.controls

    def hasty(self, *arguments):
        controls = real(self, *arguments)
        return tuple(control._replace(advance=()) for control in controls) if self.orders.flips else controls

    patch(Version, "controls", hasty)


@mutant
def does_not_advance_copies(patch):
    """The deltas that others wrote do not reach whoever holds a copy."""
    real = Version.controls

    def own(self, *arguments):
        return tuple(
            control._replace(advance=tuple(ref for ref in control.advance if ref["worker"] == control.worker))
            for control in real(self, *arguments)
        )

    patch(Version, "controls", own)


@mutant
def keeps_released_copies(patch):
    real = Protocol.on

    def hoarding(self, event):
        if isinstance(event, Planned):
            event = replace(event, budget=replace(event.budget, release_after=1 << 20, keep_bytes=NO_LIMIT))
        return real(self, event)

    patch(Protocol, "on", hoarding)


@mutant
def flips_for_one_version_only(patch):
    patch(BinRecord, "assign", lambda self, owners: None)


@mutant
def believes_that_everyone_holds_everything(patch):
    real = Holdings.of

    def trusting(self, operator, worker):
        held = real(self, operator, worker)
        return held if held is None else np.ones_like(held)

    patch(Holdings, "of", trusting)


# --- the worker -----------------------------------------------------------------------------------

NONE = np.empty(0, np.int64)


def _updates(patch, wrong):
    real = catch_up.update
    patch(model, "update", lambda held, version, wanted: wrong(real, held, version, wanted))


@mutant
def keeps_what_it_should_release(patch):
    _updates(patch, lambda real, *given: real(*given)._replace(release=NONE))


@mutant
def takes_what_it_holds_to_be_current(patch):
    _updates(patch, lambda real, held, _, wanted: real(held, wanted.version - 1, wanted)._replace(advance=False))


@mutant
def installs_nothing(patch):
    _updates(patch, lambda real, *given: real(*given)._replace(install=NONE))


# --- the worker's files: found out by the real worker code alone --------------------------------------


@mutant_of_files
def leaves_a_bin_out_of_a_snapshot(patch):
    real = Holding.extract
    patch(Holding, "extract", lambda self, bins: real(self, bins[:-1]))


@mutant_of_files
def reads_snapshots_without_the_deltas_since(patch):
    real = Holding.install
    patch(Holding, "install", lambda self, bins, parts, version: real(self, bins, islice(parts, 1), version))


@mutant_of_files
def writes_no_delta(patch):
    patch(AttemptFiles, "delta", lambda self, tables: None)
