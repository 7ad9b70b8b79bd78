"""A clock that goes on only when a test says so."""

from __future__ import annotations

START_MS = 1_700_000_000_000


class ManualClock:
    """Time that stands still until it is advanced; sleeping advances it."""

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
