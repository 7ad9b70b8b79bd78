"""Ending an attempt that cannot succeed: executors that are gone, and what a failed job failed of."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable

_LOSSES = re.compile(
    r"ExecutorLostFailure|[Ee]xecutor lost|Lost executor|FetchFailed|Worker exited unexpectedly|worker exited"
    r"|crashed|cancelled|Connection reset|Broken pipe|MetadataFetchFailed|Could not recover from a failed barrier"
    r"|BarrierJob|EOFException",
)


def is_loss(problem: BaseException) -> bool:
    """Whether a job failed because a process or its files were lost, so that running the batch again can help."""
    return bool(_LOSSES.search(str(problem)[:20_000]))


def in_short(problem: BaseException) -> str:
    """The sentence of a Spark failure that a person wants to read, without the stacks of the JVM and of Python."""
    text = str(problem)
    if "No module named 'meander'" in text:
        return (
            "the executors' Python has no meander: install it there, and set PYSPARK_PYTHON to that Python before "
            "Spark starts (me.session does)"
        )
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    raised = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Interrupt)\b.*: ", line)]
    others = [line for line in lines if not line.startswith(("at ", "...", "Driver stacktrace", "An error occurred"))]
    return (raised[0] if raised else others[0] if others else type(problem).__name__)[:500]


class Watchdog:
    """Looks every now and then, while a job runs, whether an executor it needs is gone, and then cancels the job.

    Without it a lost executor's task waits out Spark's locality timer.
    """

    def __init__(self, gone: Callable[[], bool], cancel: Callable[[], None], every_s: float = 0.25) -> None:
        self._gone, self._cancel, self._every_s = gone, cancel, every_s
        self._ended = threading.Event()
        self.barked = False

    def __enter__(self) -> Watchdog:
        self._thread = threading.Thread(target=self._look, name="meander-watchdog", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(self._every_s):
            # Again and again: the job may not have been submitted when the executor went.
            if self._gone():
                self.barked = True
                self._cancel()
