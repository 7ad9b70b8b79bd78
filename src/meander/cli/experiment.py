"""`meander experiment`: an experiment of the papers, run again. Spark only where an outlook has to be made."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from meander.cli import show
from meander.errors import InvalidOption
from meander.telling import telling

if TYPE_CHECKING:
    from meander.experiments.setting import History, Setting

OUT = "results"
GENERATED = "generated"


def experiment(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="which one; without a name they are listed")
    ] = None,
    series: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SERIES...]", help="CSV or Parquet with times and amounts; else one is made up"),
    ] = None,
    out: Annotated[str, typer.Option("--out", metavar="DIR", help="where CSV and PNG go")] = OUT,
    outlooks: Annotated[
        str | None,
        typer.Option("--outlooks", metavar="DIR", help="where outlooks are kept; by default in DIR/outlooks of --out"),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="few cases and little practice: only to see it work")] = False,
) -> None:
    """Run an experiment of the papers again.

    Each writes a CSV and a PNG and says how it compares with the paper. The setting is the papers': 64 bins, 8 to 16
    workers, tau 1.2, gamma 0.8, up to 100 migrations after the first month. Of several series the mean is drawn.

    For example

    \b
      meander experiment
      meander experiment ding-cost arrivals.csv --out results
    """
    from meander.experiments import EXPERIMENTS
    from meander.experiments.setting import Lab, Outlooks, Setting

    console = show.console()
    if name is None:
        width = max(map(len, EXPERIMENTS))
        for each, function in EXPERIMENTS.items():
            about = (function.__doc__ or "").partition("\n")[0].rstrip(".")
            console.print(f"{each:{width}}  {about}", markup=False, soft_wrap=True)
        return
    if name not in EXPERIMENTS:
        raise InvalidOption(f"there is no experiment {name!r}; the experiments are {', '.join(EXPERIMENTS)}")
    setting = Setting.quick() if quick else Setting()
    histories = histories_of(series or [], setting)
    for history in histories:
        for note in history.notes:
            console.print(f"{history.name}: {note}", markup=False, soft_wrap=True)
    with telling() as tell:
        kept = Outlooks(outlooks or Path(out) / "outlooks", effort=setting.effort, tell=tell)
        found = EXPERIMENTS[name](Lab(setting, histories, kept, tell))
    files = found.write(out)
    if quick:
        console.print(
            "With --quick there are few cases and little practice, and these figures mean little.", soft_wrap=True
        )
    console.print(found.says, markup=False, soft_wrap=True)
    console.print(f"written: {', '.join(map(str, files))}", markup=False, soft_wrap=True)


def histories_of(series: list[str], setting: Setting) -> list[History]:
    """The histories of the series given; without any, of one that is made up."""
    from meander.experiments.arrivals import arrivals
    from meander.experiments.setting import History

    return [History.read(path, setting) for path in series] or [History.of(GENERATED, arrivals(), setting)]
