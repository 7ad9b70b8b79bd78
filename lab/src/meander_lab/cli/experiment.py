"""`meander experiment`: an experiment of the papers, run again. Spark only where one needs it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from meander.cli import show
from meander.errors import InvalidOption
from meander.progress import progress_bars

if TYPE_CHECKING:
    from meander_lab.experiments.finding import Finding
    from meander_lab.experiments.setting import History, Setting

OUT = "results"
GENERATED = "generated"


def experiment(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="which one; without a name they are listed")
    ] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[INPUT...]",
            help="CSV or Parquet with times and amounts, for ding-window and ding-live a text; else one is made up",
        ),
    ] = None,
    out: Annotated[str, typer.Option("--out", metavar="DIR", help="where CSV and PNG go")] = OUT,
    outlooks: Annotated[
        str | None,
        typer.Option("--outlooks", metavar="DIR", help="where outlooks are kept; by default in DIR/outlooks of --out"),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="few cases, little practice, short times: only to see it work")
    ] = False,
    scale: Annotated[
        float | None,
        typer.Option("--scale", metavar="X", help="multiply all times with this; for ding-window and ding-live"),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option("--rate", metavar="N", help="tweets a second; by default as many as leave room, tried out before"),
    ] = None,
    master: Annotated[
        str | None, typer.Option("--master", help="Spark's master for ding-window and ding-live, by default local[2]")
    ] = None,
) -> None:
    """Run an experiment of the papers again.

    Each writes a CSV and a PNG and says how it compares with the paper. Most replay a series of arrivals in the papers'
    setting: 64 bins, 8 to 16 workers, tau 1.2, gamma 0.8, up to 100 migrations after the first month. Of several series
    the mean is drawn. ding-window and ding-live run a query on Spark, over the lines of a text or over made-up tweets.

    For example

    \b
      meander experiment
      meander experiment ding-cost arrivals.csv --out results
      meander experiment ding-live shakespeare.txt --quick
    """
    from meander_lab.experiments import EXPERIMENTS, LIVE

    console = show.console()
    if name is None:
        functions = {**EXPERIMENTS, **{each: live.run for each, live in LIVE.items()}}
        width = max(map(len, functions))
        for each, function in functions.items():
            about = (function.__doc__ or "").partition("\n")[0].rstrip(".")
            console.print(f"{each:{width}}  {about}", markup=False, soft_wrap=True)
        return
    if name in LIVE:
        if outlooks is not None:
            raise InvalidOption(f"--outlooks is not for {name}: it makes its own of the query that runs; leave it out")
        finding = on_a_query(name, inputs or [], console, quick=quick, scale=scale, rate=rate, master=master)
    elif name in EXPERIMENTS:
        for option, value in {"--scale": scale, "--rate": rate, "--master": master}.items():
            if value is not None:
                raise InvalidOption(f"{option} is for {' and '.join(LIVE)}, not for {name}; leave it out")
        finding = on_a_history(name, inputs or [], outlooks or Path(out) / "outlooks", console, quick=quick)
    else:
        names = ", ".join([*EXPERIMENTS, *LIVE])
        raise InvalidOption(f"there is no experiment {name!r}; the experiments are {names}")
    files = finding.write(out)
    if quick:
        console.print(
            "With --quick there are few cases and little practice, and these figures mean little.", soft_wrap=True
        )
    console.print(finding.says, markup=False, soft_wrap=True)
    console.print(f"written: {', '.join(map(str, files))}", markup=False, soft_wrap=True)


def on_a_history(name: str, series: list[str], outlooks: str | Path, console: Any, *, quick: bool) -> Finding:
    """Run an experiment over histories."""
    from meander_lab.experiments import EXPERIMENTS
    from meander_lab.experiments.setting import Lab, Outlooks, Setting

    setting = Setting.quick() if quick else Setting()
    histories = histories_of(series, setting)
    for history in histories:
        for note in history.notes:
            console.print(f"{history.name}: {note}", markup=False, soft_wrap=True)
    with progress_bars() as tell:
        kept = Outlooks(outlooks, effort=setting.effort, tell=tell)
        return EXPERIMENTS[name](Lab(setting, histories, kept, tell))


def on_a_query(
    name: str,
    texts: list[str],
    console: Any,
    *,
    quick: bool,
    scale: float | None,
    rate: float | None,
    master: str | None,
) -> Finding:
    """Run an experiment on a query, with a Spark of its own."""
    import meander as me
    from meander.options import positive
    from meander_lab.apps.source import lines_of
    from meander_lab.experiments import LIVE, Live, LiveTiming

    if len(texts) > 1:
        raise InvalidOption(f"{name} takes one text, not {len(texts)}; join them into one file")
    text = Path(texts[0]) if texts else None
    if text is not None:
        lines_of(text)
    timing = (LiveTiming.quick() if quick else LiveTiming()).scaled(scale)
    if rate is not None:
        positive("--rate", rate)

    def say(sentence: str) -> None:
        console.print(sentence, markup=False, soft_wrap=True)

    spark = me.session(master, app="meander-experiment")
    spark.sparkContext.setLogLevel("ERROR")
    try:
        live = Live(spark, timing, text, rate, say=say)
        times = "" if timing.scale == 1 else f" All times are {timing.scale:g} of the papers'."
        say(f"{name} takes about {LIVE[name].minutes(live):.0f} minutes on {spark.sparkContext.master}.{times}")
        with progress_bars() as tell:
            live.tell = tell
            return LIVE[name].run(live)
    finally:
        spark.stop()


def histories_of(series: list[str], setting: Setting) -> list[History]:
    """The histories of the series given; without any, of one that is made up."""
    from meander_lab.experiments.arrivals import arrivals
    from meander_lab.experiments.setting import History

    return [History.read(path, setting) for path in series] or [History.of(GENERATED, arrivals(), setting)]
