"""Progress of long work: reported to a callback, or shown as bars on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Tell = Callable[[int, int | None, str], None]
"""Called with how much is done, how much there is in all (None if unknown), and the name of the work."""


def nobody(done: int, total: int | None, what: str) -> None:
    """Ignore the report."""


@contextmanager
def progress_bars(tell: Tell | None = None) -> Iterator[Tell]:
    """Yield the given callback, else one that draws a bar for each part of the work if standard error is a terminal."""
    if tell is not None or not sys.stderr.isatty():
        yield tell or nobody
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        known: dict[str, Any] = {}

        def show(done: int, total: int | None, what: str) -> None:
            if what not in known:
                known[what] = progress.add_task(what, total=total)
            progress.update(known[what], completed=done, total=total)

        yield show
