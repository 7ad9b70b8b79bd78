"""`meander mtm`: from the past of a stream to worker counts and their transition matrix. Without Spark."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from meander.cli import show
from meander.errors import InvalidOption
from meander.outlook.transitions import SMOOTHING, Judgement, Transitions, tally
from meander.pictures import many
from meander.store.uri import scheme_of

if TYPE_CHECKING:
    from meander.outlook import Series

LO, HI = 8, 16
HOUR_S = 3600
SHADES = " ░▒▓█"


def mtm(
    series: Annotated[
        str, typer.Argument(help="CSV or Parquet with times and amounts; or events as JSON, or a checkpoint's folder")
    ],
    lo: Annotated[int | None, typer.Option("--lo", help="the fewest workers; 8, or the fewest recorded")] = None,
    hi: Annotated[int | None, typer.Option("--hi", help="the most workers; 16, or the most recorded")] = None,
    time: Annotated[str | None, typer.Option("--time", metavar="COLUMN", help="the column with the times")] = None,
    value: Annotated[str | None, typer.Option("--value", metavar="COLUMN", help="the column with the amounts")] = None,
    fill: Annotated[
        float | None,
        typer.Option("--fill", help="how much there is in an hour without rows; by default it is left out"),
    ] = None,
    keep_equal: Annotated[
        bool, typer.Option("--keep-equal", help="count hours that need as many workers as the one before, too")
    ] = False,
    smoothing: Annotated[
        float,
        typer.Option("--smoothing", min=0.0, help="how many migrations' worth of what is expected to add to a row"),
    ] = SMOOTHING,
    everything: Annotated[
        bool, typer.Option("--all", help="learn from all of it, and judge nothing; by default from the first month")
    ] = False,
    out: Annotated[str | None, typer.Option("--out", metavar="FILE", help="write the matrix as JSON, too")] = None,
    format: show.FORMAT = None,
) -> None:
    """Learn how often so many workers become so many others.

    Amounts are summed into hours, clipped at their 1st and 99th percentile and scaled to --lo and --hi workers. The
    matrix is learned from the first 30 days and judged on what comes after them; where less than a week would be left,
    from the first half. Two hours that need the same number of workers are no migration.

    Of a query's own past, its events or its checkpoint, the worker counts are taken as they were.

    For example

    \b
      meander mtm arrivals.csv --lo 8 --hi 16
      meander mtm arrivals.parquet --time ts --value requests --out matrix.json
      meander mtm events.jsonl
    """
    counts, lo, hi = _counts(series, lo, hi, time, value, fill, keep_equal)
    learned, judged = (counts, None) if everything else counts.learn_and_judge()
    seen = tally(learned.values, lo, hi, keep_equal=keep_equal)
    transitions = Transitions.of(learned.values, lo, hi, keep_equal=keep_equal, smoothing=smoothing)
    verdict = None if judged is None else transitions.judge(judged.values, keep_equal=keep_equal)
    left = seen.sum(axis=1).tolist()
    answer = {
        "steps": len(counts),
        "unit": "hours" if counts.interval_s == HOUR_S else "steps",
        "from": str(counts.times[0]),
        "to": str(counts.times[-1]),
        "learned": {"steps": len(learned), "migrations": sum(left), "by_workers": left, "smoothing": smoothing},
        "judged": None if judged is None or verdict is None else _figures(judged, verdict),
        "notes": list(learned.notes),
        **transitions.to_dict(),
        "fingerprint": transitions.fingerprint(),
    }
    if out is not None:
        try:
            Path(out).write_text(json.dumps(transitions.to_dict()) + "\n", encoding="utf-8")
        except OSError as error:
            raise InvalidOption(f"cannot write {out}: {(error.strerror or str(error)).lower()}") from None
    if show.wants_json(format):
        show.print_json(answer)
    else:
        _print(show.console(), answer, transitions)


def _counts(
    place: str, lo: int | None, hi: int | None, time: str | None, value: str | None, fill: float | None, equal: bool
) -> tuple[Series, int, int]:
    """The worker counts over time and their range."""
    from meander.outlook import counts_from_checkpoint, read_counts, read_series

    if not (is_checkpoint := _is_checkpoint(place)) and not _is_json(place):
        lo, hi = LO if lo is None else lo, HI if hi is None else hi
        return read_series(place, time, value).hourly(fill).workers(lo, hi), lo, hi
    if time or value or fill is not None or equal:
        raise InvalidOption(
            "--time, --value, --fill and --keep-equal are for a series of arrivals; a query's own past has none of it"
        )
    counts = counts_from_checkpoint(place) if is_checkpoint else read_counts(place)
    if len(counts) < 2:
        number = int(counts.values[0])
        there = f"there {'is' if number == 1 else 'are'} {many(number, 'worker')} all the time"
        raise InvalidOption(f"{place} tells of no migration: {there}")
    least, most = (int(end) for end in (counts.values.min(), counts.values.max()))
    return counts, least if lo is None else lo, most if hi is None else hi


def _is_checkpoint(place: str) -> bool:
    folder = Path(place)
    return scheme_of(place) is not None or (folder / "meander.json").is_file() or (folder / "manifests").is_dir()


def _is_json(place: str) -> bool:
    try:
        with Path(place).open("rb") as file:
            return file.read(64).removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"[", b"{")
    except OSError:
        return False


def _figures(judged: Series, verdict: Judgement) -> dict[str, Any]:
    return {
        "steps": len(judged),
        "migrations": verdict.migrations,
        "log_likelihood": verdict.log_likelihood if math.isfinite(verdict.log_likelihood) else None,
        "perplexity": verdict.perplexity if math.isfinite(verdict.perplexity) else None,
        "perplexity_uniform": verdict.uniform,
        "among_3_likeliest": verdict.among_likely,
    }


def _print(console: Console, answer: dict[str, Any], transitions: Transitions) -> None:
    learned, judged, unit = answer["learned"], answer["judged"], answer["unit"]
    console.print(
        f"{answer['steps']} {unit} from {answer['from']} to {answer['to']}, "
        f"{transitions.lo} to {many(transitions.hi, 'worker')}"
    )
    console.print(
        f"learned from {many(learned['migrations'], 'migration')} in {learned['steps']} {unit}, with "
        f"{learned['smoothing']:g} expected ones added to each row"
    )
    if judged is not None and judged["migrations"]:
        console.print(f"judged by the {many(judged['migrations'], 'migration')} in the {judged['steps']} {unit} after:")
        unsure = (
            "it held one of them to be impossible" if judged["perplexity"] is None else f"{judged['perplexity']:.2f}"
        )
        console.print(f"  perplexity {unsure}; knowing nothing: {judged['perplexity_uniform']:g}")
        console.print(f"  {judged['among_3_likeliest']:.0%} went to one of the 3 likeliest")
    elif judged is not None:
        console.print(f"in the {judged['steps']} {unit} after there is no migration to judge it by")
    for note in answer["notes"]:
        console.print(note, markup=False)
    console.print()
    console.print(matrix_table(transitions, learned["by_workers"], console.width))
    if not all(learned["by_workers"]):
        console.print("a row with 0 seen was never left: it is what the other rows let expect", style="dim")


def matrix_table(transitions: Transitions, seen: list[int], width: int) -> Table:
    """The matrix in per cent, shaded by probability; only shades where it is too wide for numbers."""
    columns = range(transitions.lo, transitions.hi + 1)
    is_wide = 12 + 4 * transitions.size > width
    title = "from (down) to (across)" if is_wide else "from (down) to (across), in per cent"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 0 if is_wide else 1, 0, 0))
    table.add_column("", justify="right")
    for workers in [] if is_wide else columns:
        table.add_column(str(workers), justify="right", min_width=3)
    if is_wide:
        table.add_column(f" {transitions.lo} to {transitions.hi}", no_wrap=True)
    table.add_column("seen", justify="right")
    for workers, count in zip(columns, seen, strict=True):
        cells = [_cell(float(p), is_wide) for p in transitions.row(workers)]
        shown = [Text(" ").append_text(Text.assemble(*cells)).append(" ")] if is_wide else cells
        table.add_row(str(workers), *shown, str(count))
    return table


def _cell(probability: float, is_wide: bool) -> Text:
    if is_wide:
        return Text(SHADES[min(4, math.ceil(probability * 8))] if probability >= 0.005 else SHADES[0])
    text = f"{100 * probability:.0f}" if probability >= 0.005 else "·"
    depth = math.sqrt(probability)
    style = (
        f"white on rgb({round(20 * depth)},{round(110 * depth)},{round(140 * depth)})"
        if probability >= 0.005
        else "dim"
    )
    return Text(f"{text:>3}", style=style)
