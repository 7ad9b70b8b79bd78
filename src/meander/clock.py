"""Time, as everything that decides gets it: from outside, so that a test or a simulation can bring its own."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What a driver knows of time."""

    def now_s(self) -> float:
        """Seconds since some moment; never goes back."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


class SystemClock:
    """The machine's own time."""

    def now_s(self) -> float:
        """Seconds since some moment; never goes back."""
        return time.monotonic()

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        return int(time.time() * 1000)

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)
