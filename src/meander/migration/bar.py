"""A progress bar of a migration in a terminal; nothing elsewhere."""

from __future__ import annotations

from meander.migration.report import Progress


class ProgressBar:
    """Draws how far a migration is, where that is wanted."""

    def __init__(self, show: bool) -> None:
        self._show = show

    def __enter__(self) -> ProgressBar:
        if self._show:
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn
            from rich.progress import Progress as Bars

            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}"))
            self._bars = Bars(*columns, console=Console(stderr=True), transient=False)
            self._bars.start()
            self._task = self._bars.add_task("moving state", total=1, text="")
        return self

    def draw(self, progress: Progress) -> None:
        """Show how far it is now."""
        if self._show:
            total = max(1, progress.of_bins)
            self._bars.update(self._task, total=total, completed=progress.bins, text=str(progress))

    def __exit__(self, *_: object) -> None:
        if self._show:
            self._bars.stop()
