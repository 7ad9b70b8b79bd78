"""Which cells there are, their results in a file, one a line, and the table of them."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

from fault.matrix.cell import Cell
from fault.matrix.faults import Fault
from fault.matrix.on_disks import DamagedFile, FullDisk, FullLocalDisk, flipped, torn
from fault.matrix.on_drivers import KillDriver, OpenFiles, SinkFails, StopDriver
from fault.matrix.on_executors import (
    IMPATIENT,
    MOUNTED,
    NETWORKED,
    OnExecutor,
    TornKernel,
    cut_off,
    hide_checkpoint,
    kill_executor,
    kill_python_workers,
    outlast,
    stop_executor,
)
from fault.matrix.phases import PHASES
from fault.matrix.workloads import WORKLOADS

SINKS = ("files", "callable")
Result = dict[str, Any]


FAULTS: dict[str, Fault] = {
    each.name: each
    for each in (
        OnExecutor("kill -9 source executor", "sources", kill_executor),
        OnExecutor("kill -9 target executor", "targets", kill_executor),
        OnExecutor("kill -9 Python worker", "sources", kill_python_workers),
        TornKernel("kill -9 Python worker in a kernel"),
        KillDriver("kill -9 driver"),
        KillDriver("kill -9 driver's JVM", is_jvm=True),
        StopDriver("SIGSTOP driver 20 s", is_replaced=False),
        StopDriver("SIGSTOP driver, another takes over", is_replaced=True),
        OnExecutor("SIGSTOP source executor 20 s", "sources", stop_executor),
        OnExecutor("SIGSTOP target executor 20 s", "targets", stop_executor),
        OnExecutor("SIGSTOP source executor past the network timeout", "sources", outlast, IMPATIENT),
        OnExecutor("SIGSTOP target executor past the network timeout", "targets", outlast, IMPATIENT),
        OnExecutor("network cut, source executor 20 s", "sources", cut_off, NETWORKED, "ip"),
        OnExecutor("network cut, target executor 20 s", "targets", cut_off, NETWORKED, "ip"),
        OnExecutor("checkpoint cut, source executor", "sources", hide_checkpoint, MOUNTED, "unshare nsenter"),
        SinkFails("sink fails"),
        DamagedFile("torn file", torn),
        DamagedFile("flipped file", flipped),
        FullDisk("checkpoint disk full"),
        FullLocalDisk("executor disk full"),
        OpenFiles("too many open files"),
    )
}


def cells() -> Iterator[Cell]:
    """Every cell: operators and sinks take turns, so that each meets each fault and each phase."""
    variants = list(product(WORKLOADS, SINKS))
    for row, fault in enumerate(FAULTS):
        for column, phase in enumerate(PHASES):
            if FAULTS[fault].why_not(phase) is None:
                yield Cell(fault, phase, *variants[(3 * row + 5 * column) % len(variants)])


def left_out() -> Iterator[tuple[str, str]]:
    """The faults that cannot be done on this machine in any phase, and why."""
    for name, fault in FAULTS.items():
        reasons = [fault.why_not(phase) for phase in PHASES]
        if reasons[0] is not None and None not in reasons:
            yield name, reasons[0]


class Results:
    """The results of cells, as they were run; the last one of a cell counts."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def all(self) -> dict[tuple[str, str], Result]:
        """The last result of each fault and phase."""
        if not self.path.exists():
            return {}
        lines = [json.loads(line) for line in self.path.read_text().splitlines()]
        return {(each["fault"], each["phase"]): each for each in lines}

    def add(self, cell: Cell, result: Result) -> None:
        """Put down how a cell went, with the date and the commit it was run on."""
        line = {"date": time.strftime("%Y-%m-%d"), "commit": _commit(), **asdict(cell), **result}
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def held_cells(self) -> list[Cell]:
        """Those that have held."""
        held = {at for at, each in self.all().items() if each["result"] == "held"}
        return [each for each in cells() if (each.fault, each.phase) in held]

    def open_cells(self) -> list[Cell]:
        """Those that have not held yet."""
        held = {*self.held_cells()}
        return [each for each in cells() if each not in held]


def _commit() -> str:
    asked = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    return subprocess.run(asked, capture_output=True, text=True).stdout.strip()


def as_markdown(results: dict[tuple[str, str], Result]) -> str:
    """The table: `held` with its operator and sink below, `broken`, `-` for not run yet, a number for the reason."""
    reasons: list[str] = []
    lines = [_line(["", *PHASES]), _line(["---"] * (len(PHASES) + 1))]
    for fault, each in FAULTS.items():
        shown = []
        for phase in PHASES:
            reason = each.why_not(phase)
            shown.append(_number(reasons, reason) if reason else results.get((fault, phase), {}).get("result", "-"))
        lines.append(_line([fault, *shown]))
    dates = sorted({each["date"] for each in results.values()})
    counts = {what: sum(each["result"] == what for each in results.values()) for what in ("held", "broken")}
    period = " to ".join(dict.fromkeys([dates[0], dates[-1]])) if dates else "never"
    summary = f"Run {period}: {counts['held']} of {len(list(cells()))} cells held, {counts['broken']} broken."
    notes = [f"({number}) {reason}." for number, reason in enumerate(reasons, 1)]
    return "\n".join([summary, "", *lines, "", *notes, ""])


def _line(words: Sequence[str]) -> str:
    return f"| {' | '.join(words)} |"


def _number(reasons: list[str], reason: str) -> str:
    if reason not in reasons:
        reasons.append(reason)
    return f"({reasons.index(reason) + 1})"
