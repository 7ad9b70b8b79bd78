"""How far long work is: reported to a callback, or shown as bars, on a terminal or in a notebook."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from meander.pictures import progress_html

Tell = Callable[[int, int | None, str], None]
"""Called with how much is done, how much there is in all (None if unknown), and the name of the work."""

Draw = Callable[[str, int, int | None, str], None]
"""Called with the name of a bar, how much is done, how much there is in all, and what stands beside the bar."""


def nobody(done: int, total: int | None, what: str) -> None:
    """Ignore the report."""


@contextmanager
def progress_bars(tell: Tell | None = None) -> Iterator[Tell]:
    """Yield the given callback, else one that draws a bar for each part of the work where somebody can see it."""
    if tell is not None:
        yield tell
        return
    with bars(stays=False) as draw:
        if draw is None:
            yield nobody
        else:
            yield lambda done, total, what: draw(what, done, total, f"{done}/{'?' if total is None else total}")


@contextmanager
def bars(is_shown: bool | None = None, stays: bool = True) -> Iterator[Draw | None]:
    """What draws bars: below the cell of a notebook, or on standard error; None where they are not to be shown.

    Args:
        is_shown: by default in a notebook, and where standard error is a terminal.
        stays: whether bars on a terminal stay when the work is over.
    """
    display = notebook_display()
    if is_shown is None:
        is_shown = display is not None or sys.stderr.isatty()
    if not is_shown:
        yield None
    elif display is not None:
        yield _NotebookBars(display).draw
    else:
        with _terminal_bars(stays) as draw:
            yield draw


def notebook_display() -> Callable[..., Any] | None:
    """What shows a value below the cell that runs, where this process is the kernel of a notebook."""
    # Who runs a kernel has loaded IPython; nobody else has to.
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if getattr(shell, "kernel", None) is None:
        return None
    from IPython.display import display  # type: ignore[import-not-found, unused-ignore]

    return display  # type: ignore[no-any-return, unused-ignore]


class _Bar:
    """A bar as notebooks show it: a picture, or text where there are none."""

    def __init__(self, name: str, done: int, total: int | None, text: str) -> None:
        self._name, self._done, self._total, self._text = name, done, total, text

    def __repr__(self) -> str:
        return f"{self._name}: {self._text}"

    def _repr_html_(self) -> str:
        return progress_html(self._name, self._done, self._total, self._text)


class _NotebookBars:
    """Bars below a cell, each drawn over when it has changed."""

    def __init__(self, display: Callable[..., Any]) -> None:
        self._display = display
        self._shown: dict[str, tuple[Any, str]] = {}

    def draw(self, name: str, done: int, total: int | None, text: str) -> None:
        """Show one bar as it is now."""
        bar = _Bar(name, done, total, text)
        if name not in self._shown:
            self._shown[name] = self._display(bar, display_id=True), text
        elif self._shown[name][1] != text:  # a notebook keeps up with a few changes a second, not with more
            handle = self._shown[name][0]
            handle.update(bar)
            self._shown[name] = handle, text


@contextmanager
def _terminal_bars(stays: bool) -> Iterator[Draw]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=not stays) as progress:
        known: dict[str, Any] = {}

        def draw(name: str, done: int, total: int | None, text: str) -> None:
            if name not in known:
                known[name] = progress.add_task(name, total=total, text=text)
            progress.update(known[name], completed=done, total=total, text=text)

        yield draw
