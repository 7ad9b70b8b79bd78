"""The whole soak: rows come, something is killed, samples are taken, and in the end everything is checked."""

from __future__ import annotations

import random
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fault.soak.audit import QUERIES, Audit
from fault.soak.samples import Growth, Samples, Series, files_below, of_heaps, of_processes, worker_folders
from streams import PATIENCE_S, Program, executors, kill, processes, python_workers, wait_until

PROGRAM = Path(__file__).parent / "program.py"
KINDS = ("executor", "Python worker", "driver")
BATCH_EVERY_S, SAMPLE_EVERY_S, HEAPS_EVERY_S = 2.0, 5.0, 60.0
JUDGED_MINUTES = 20
"""The growth of a shorter run is printed and not judged: its processes are all young."""
ORPHANS_S = 60
"""So long may what belongs to a killed driver take to end by itself."""


@dataclass(frozen=True)
class Plan:
    """How long at least, until each kind of process was killed; how often; and by which seed."""

    minutes: float
    seed: int
    rescale_s: float = 20
    kill_s: float = 60


def victims(rng: random.Random) -> Iterator[str]:
    """Who is killed next. Each kind comes among the first three, and of each fifteen after that one is the driver.

    A driver that were killed more often would never be old enough to show what grows.
    """
    deck = list(KINDS)
    while True:
        rng.shuffle(deck)
        yield from deck
        deck = ["executor"] * 7 + ["Python worker"] * 7 + ["driver"]


@dataclass
class Outcome:
    """What a soak has seen."""

    plan: Plan
    seconds: float = 0.0
    kills: Counter[str] = field(default_factory=Counter)
    migrations: list[dict[str, Any]] = field(default_factory=list)
    busy: int = 0
    compared: dict[str, dict[str, int]] = field(default_factory=dict)
    longest_pause_s: dict[str, float] = field(default_factory=dict)
    growth: dict[tuple[str, str], Growth] = field(default_factory=dict)


class Soak:
    """A soak while it runs."""

    def __init__(self, plan: Plan, root: Path) -> None:
        self.plan, self.root = plan, root
        self.audits = [Audit(name, root, plan.seed) for name in QUERIES]
        self.outcome = Outcome(plan)
        self.samples = Samples()
        self.programs: list[Program] = []
        self._rng = random.Random(f"{plan.seed}/kills")
        self._victims = victims(self._rng)
        self._victim = next(self._victims)
        self._heaps: dict[Series, float] = {}
        self._heaps_s = 0.0
        self._kill_times_s: list[float] = []
        self._began_s = time.monotonic()
        self._progress_s = {each.name: self._began_s for each in self.audits}

    @property
    def program(self) -> Program:
        """The driver that runs now."""
        return self.programs[-1]

    def run(self) -> Outcome:
        """Run it to its end, and return what was seen; raises AssertionError where something is wrong."""
        try:
            for each in self.audits:
                each.feed()
            self._start()
            self.program.wait_for("ready")
            self._live()
            self._finish()
        finally:
            for program in self.programs:
                program.end()
        return self.outcome

    # --- while it runs ---------------------------------------------------------------------

    def _start(self) -> None:
        number = len(self.programs)
        folder = self.root / f"driver-{number}"
        folder.mkdir()
        options = {
            "root": str(self.root), "seed": self.plan.seed, "run": number, "rescale_s": self.plan.rescale_s,
        }  # fmt: skip
        self.programs.append(Program(PROGRAM, options, folder / "log"))

    def _live(self) -> None:
        began = self._began_s = time.monotonic()
        self._progress_s = dict.fromkeys(self._progress_s, began)
        feed_s = sample_s = began
        kill_s = began + self.plan.kill_s
        while (now := time.monotonic()) < began + 60 * self.plan.minutes or len(self.outcome.kills) < len(KINDS):
            self._check_alive()
            if now >= feed_s:
                # The pace is kept, not made up for: what a slow machine cannot take is not fed.
                feed_s = max(feed_s + BATCH_EVERY_S, now)
                for each in self.audits:
                    if not each.is_behind:
                        each.feed()
            self._look(now)
            if now >= sample_s:
                sample_s = now + SAMPLE_EVERY_S
                self._sample(now - began)
            if now >= kill_s and self.program.told("ready") and self._kill(self._victim):
                # Whoever is next has its minute, also if it took a driver longer to start.
                kill_s, self._victim = now + self.plan.kill_s, next(self._victims)
            time.sleep(0.1)
        self.outcome.seconds = time.monotonic() - began

    def _look(self, now: float) -> None:
        for each in self.audits:
            pause = now - self._progress_s[each.name]
            if each.look() or not each.due:
                self._progress_s[each.name] = now
            longest = self.outcome.longest_pause_s
            longest[each.name] = max(pause, longest.get(each.name, 0.0))
            assert pause < PATIENCE_S, f"{each.name} has shown nothing for {pause:.0f} s:\n{self.program.text()}"

    def _check_alive(self) -> None:
        program = self.program
        assert not program.told("failed"), f"{program.told('failed')}\n{program.text()}"
        assert not program.ended, f"the driver has ended:\n{program.text()}"

    def _sample(self, soak_s: float) -> None:
        found = of_processes(self.program.pid)
        if soak_s >= self._heaps_s:
            self._heaps, self._heaps_s = of_heaps(self.samples), soak_s + HEAPS_EVERY_S
        alive = {series.incarnation for series in found}
        found |= {series: heap for series, heap in self._heaps.items() if series.incarnation in alive}
        for each in self.audits:
            found[Series(f"{each.name}: checkpoint", "files", "")] = files_below(each.checkpoint)
            found[Series(f"{each.name}: .prepared", "files", "")] = files_below(each.out / ".prepared")
        homes = worker_folders(self.program.log.parent / "local")
        found[Series("workers' folders", "files", str(len(self.programs)))] = sum(map(files_below, homes))
        self.samples.add(soak_s, found)

    def _kill(self, what: str) -> bool:
        """Kill one of these, and return whether there was any."""
        pid = self.program.pid
        pids = {"executor": executors(pid), "Python worker": python_workers(pid), "driver": [pid]}[what]
        if not pids:
            return False
        victim = self._rng.choice(pids)
        self._kill_times_s.append(time.time())
        self.outcome.kills[what] += 1
        if what == "driver":
            self._replace_driver()
        else:
            kill(victim)
        return True

    def _replace_driver(self) -> None:
        """Kill the driver and start another one at once; what belongs to the first must end by itself."""
        program = self.program
        orphans = set(program.tree()) - {program.pid}
        kill(program.pid)
        program.wait()
        self._take_events(program)
        self._start()
        wait_until(lambda: not orphans & processes().keys(), "a killed driver's processes to end", ORPHANS_S)
        shutil.rmtree(program.log.parent / "local", ignore_errors=True)

    def _take_events(self, program: Program) -> None:
        self.outcome.migrations += program.told("migrated")
        self.outcome.busy += len(program.told("busy"))

    # --- in the end ------------------------------------------------------------------------

    def _finish(self) -> None:
        program = self.program
        wait_until(lambda: program.told("ready") or program.ended, "the last driver to be ready")
        (self.root / "finish").touch()

        def is_over() -> bool:
            self._look(time.monotonic())
            return program.ended

        wait_until(is_over, "the end", 2 * PATIENCE_S)
        assert program.wait() == 0, f"{program.told('failed')}\n{program.text()}"
        self._take_events(program)
        (moved,), (done,) = program.told("moved"), program.told("done")
        assert moved["folders"] == moved["places"], "workers are elsewhere than their folders"
        assert not done["folders"], f"local folders are left over: {done['folders']}"
        for each in self.audits:
            assert done["queries"][each.name]["misrouted"] == 0
            each.check_end()
            self.outcome.compared[each.name] = {
                "batches": each.fed, "versions": each.version + 1, "rows": each.rows, "late": each.late,
            }  # fmt: skip
        self._check_migrations()
        names = {(series.role, series.measure) for series in self.samples.minutes}
        self.outcome.growth = {name: self.samples.growth(*name) for name in sorted(names)}
        self._check_growth()

    def _check_migrations(self) -> None:
        """Each has done what it should, or has ended with a reason, and then something was killed meanwhile."""
        assert self.outcome.migrations, "nothing was ever rescaled"
        for each in self.outcome.migrations:
            if each["status"] == "done":
                assert each["is_at_goal"], each
            else:
                assert each["reason"], each
                assert any(each["began_s"] <= time_s <= each["ended_s"] for time_s in self._kill_times_s), each

    def _check_growth(self) -> None:
        grows = {name: growth for name, growth in self.outcome.growth.items() if growth.verdict == "grows"}
        assert not grows or self.plan.minutes < JUDGED_MINUTES, grows
