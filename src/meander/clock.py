"""Time, as everything that decides gets it: from outside, so that a test or a simulation can bring its own."""

from __future__ import annotations

import time
from typing import Protocol

START_MS = 1_700_000_000_000
"""When a clock for tests was made, in milliseconds since 1970: in November 2023."""


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


class ManualClock:
    """Time that stands still until a test advances it; sleeping advances it."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def now_s(self) -> float:
        """Seconds since the clock was made."""
        return self._now_s

    def wall_ms(self) -> int:
        """Milliseconds since 1970, as if the clock had been made in November 2023."""
        return START_MS + int(self._now_s * 1000)

    def sleep(self, seconds: float) -> None:
        """Go on by so much, at once."""
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Go on by so much."""
        self._now_s += seconds
