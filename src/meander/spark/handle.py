"""What a user holds of a migration, whichever engine moves the bins: how far it is, waiting for it, ending it."""

from __future__ import annotations

import logging
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Self

from meander.errors import MeanderError, MigrationFailed
from meander.migration.progress import Progress, Report
from meander.migration.steps import Step
from meander.planning import Plan
from meander.spark.request import Proposal

logger = logging.getLogger("meander")

LOOK_EVERY_S = 0.05


class Handle(ABC):
    """A migration under way or ended."""

    def __init__(self, proposal: Proposal) -> None:
        self._proposal = proposal
        self._status = "waiting"
        self._reason = ""
        self._ended = threading.Event()
        self._cancelled = threading.Event()
        self._began_s = time.monotonic()
        self._ended_s: float | None = None
        self._thread = threading.Thread(target=self._run, name="meander-migration", daemon=True)

    @property
    def status(self) -> str:
        """One word: waiting (for executors or for its time), running, done, cancelled, replaced or failed."""
        return self._status

    @property
    def is_over(self) -> bool:
        """Whether it has ended, one way or the other."""
        return self._ended.is_set()

    @property
    def plans(self) -> Mapping[str, Plan]:
        """The plan for each operator."""
        return self._proposal.plans

    @property
    def steps(self) -> tuple[Step, ...]:
        """What flips together, in order."""
        return self._proposal.steps

    @property
    @abstractmethod
    def progress(self) -> Progress:
        """How far it is: bins, bytes and steps that have flipped, and how long the rest will take."""

    @property
    @abstractmethod
    def report(self) -> Report:
        """What it was and did to the stream, so far or in all."""

    @abstractmethod
    def cancel(self) -> None:
        """Move nothing more: bins that have flipped stay where they are."""

    def start(self) -> Self:
        """Begin, in a thread of its own."""
        self._thread.start()
        return self

    def wait(self, timeout_s: float | None = None, show: bool | None = None) -> bool:
        """Wait until it is over and return whether it is; raises `MigrationFailed` where it has failed.

        `show` draws a progress bar, by default where there is a terminal.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with _Bar(self, sys.stderr.isatty() if show is None else show) as bar:
            while not self._ended.wait(LOOK_EVERY_S):
                bar.draw()
                self._check_query()
                if deadline is not None and time.monotonic() >= deadline:
                    return False
            bar.draw()
        if self._status == "failed":
            raise MigrationFailed(self._reason)
        return True

    @abstractmethod
    def _check_query(self) -> None:
        """Raise `MigrationFailed` where the query has ended and nobody will go on with this."""

    @abstractmethod
    def _run(self) -> None:
        """Do it, in a thread of its own."""

    def _failure(self, problem: Exception) -> tuple[str, str]:
        """How it ended, and why, for a problem that ended it."""
        if isinstance(problem, MeanderError):
            return "failed", str(problem)
        logger.error("a migration has failed", exc_info=problem)
        return "failed", f"{type(problem).__name__}: {str(problem).partition(chr(10))[0]}"

    def _end(self, status: str, reason: str = "") -> None:
        """It is over."""
        self._status, self._reason = status, reason
        self._ended_s = time.monotonic()
        self._ended.set()

    def _spent_s(self) -> float:
        """Seconds since it began, or that it took."""
        return (time.monotonic() if self._ended_s is None else self._ended_s) - self._began_s

    def _eta_s(self, done: int) -> float | None:
        """Seconds that are left at the pace so far; None while nothing has flipped."""
        left = self._proposal.bins - done
        if not left:
            return 0.0
        return (time.monotonic() - self._began_s) / done * left if done else None


class _Bar:
    """A progress bar in a terminal; nothing elsewhere."""

    def __init__(self, handle: Handle, show: bool) -> None:
        self._handle, self._show = handle, show

    def __enter__(self) -> _Bar:
        if self._show:
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn
            from rich.progress import Progress as Bars

            console = Console(stderr=True)
            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[told]}"))
            self._bars = Bars(*columns, console=console, transient=False)
            self._bars.start()
            self._task = self._bars.add_task("moving bins", total=1, told="")
        return self

    def draw(self) -> None:
        """Show how far it is now."""
        if self._show:
            found = self._handle.progress
            self._bars.update(self._task, total=max(1, found.of_bins), completed=found.bins, told=str(found))

    def __exit__(self, *_: object) -> None:
        if self._show:
            self._bars.stop()
