"""What can be chosen about a query."""

from __future__ import annotations

from dataclasses import dataclass

from meander.errors import InvalidOption
from meander.options import amount, positive

DIALECTS = ("flink", "beam")


@dataclass(frozen=True)
class Options:
    """How a query is asked.

    Args:
        window_s: how long its windows are, or for query 11 the gap that ends a session; None: as NEXMark has it.
        slide_s: how far apart windows begin, in query 5; None: as NEXMark has it.
        lateness_s: how far behind the newest event others may come and still count, whatever they are.
        dialect: whose definition: Flink's SQL, or Beam's.
    """

    window_s: float | None = None
    slide_s: float | None = None
    lateness_s: float = 4.0
    dialect: str = "flink"

    def __post_init__(self) -> None:
        for what, value in (("window_s", self.window_s), ("slide_s", self.slide_s)):
            if value is not None:
                positive(what, value)
        amount("lateness_s", self.lateness_s)
        if self.dialect not in DIALECTS:
            raise InvalidOption(f"there is no dialect {self.dialect!r}; there are: {', '.join(DIALECTS)}")

    def window(self, usual_s: float) -> float:
        """The length of windows in seconds, `usual_s` where nothing was chosen."""
        return usual_s if self.window_s is None else self.window_s

    def slide(self, usual_s: float) -> float:
        """How far apart windows begin in seconds, `usual_s` where nothing was chosen."""
        return usual_s if self.slide_s is None else self.slide_s
