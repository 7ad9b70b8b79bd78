"""./dev bench native: a query of Spark's own on 3 -> 4 -> 3 executors, steered from outside, beside a restart.

`groupBy(key).count()` with the same number of rows in every batch, one batch after the other, on separate executor
processes of one core each. Spark itself was seen to leave 9 of 12 state partitions on one of three executors; so that
every run begins alike, three quarters are put on one with `move()`, and that is the skew everything begins with. Then:

    spread()            as many partitions on every executor
    rescale(4)          one more executor is asked for, warmed, and given its share
    rescale(3)          one executor gives its partitions away and is let go: a drained removal
    undrained removal   one that holds its share is let go by Spark's own call, without any of this

The peer is what Spark has for another number of partitions, on RocksDB, since it needs that: stop, repartition, start.
Stopped in a batch, it refuses until a run with `availableNow` has ended that batch; stopped in between, it does not.

Every run is a driver process of its own, and at its end the counts in the state are compared with the rows that were
given out. Exit code 1 where they differ or a phase has failed. Run it on a quiet machine. Records, logs and the plot go
to the folder of --out; --again makes the table and the plot of records once more.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from time import perf_counter

from rich.console import Console
from rich.table import Table

from meander_lab.benchmarks import native_measure as m
from meander_lab.benchmarks import native_plot as plot
from meander_lab.benchmarks.migrate import numbers
from meander_lab.benchmarks.native_measure import FiguresByPhase, NativeCase, NativeFigures, NativeRecord

CONSOLE = Console(highlight=False, width=None if sys.stdout.isatty() else 170)
COLUMNS = (
    "phase", "partitions", "on executors", "batches", "median ms", "p99 ms", "worst ms", "worst / median before",
    "slow batches", "withheld s", "moved", "seconds",
)  # fmt: skip


def cases_of(options: argparse.Namespace) -> list[NativeCase]:
    """Every case that is asked for; the peer, and what stands beside it, with the fewest partitions."""
    few = min(options.partitions)
    cases = [NativeCase(m.LIVE, each, options.store) for each in options.partitions]
    if not options.quick:
        cases.append(NativeCase(m.LIVE, few, m.ROCKSDB))
    cases.append(NativeCase(m.PEER, few, m.ROCKSDB))
    return [
        replace(each, keys=options.keys, rows=options.rows, batches=options.batches, repeat=turn)
        for turn in range(options.repeats)
        for each in dict.fromkeys(cases)
        if options.only in (None, each.kind)
    ]


# --- one run ---------------------------------------------------------------------------------


@contextmanager
def driver(case: NativeCase, log: Path) -> Iterator[subprocess.Popen[str]]:
    """A driver process that runs a case; it and all it has started are gone afterwards."""
    # Whoever ends this process means those it has started as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    command = [sys.executable, "-u", "-m", "meander_lab.benchmarks.native", "--case", json.dumps(asdict(case))]
    with log.open("wb") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
        )  # fmt: skip
    overdue = threading.Timer(300 + 120 * case.batches, _end, [process])
    overdue.start()
    try:
        yield process
    finally:
        overdue.cancel()
        _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def run(case: NativeCase, log: Path) -> NativeRecord:
    """Run one case, say what happens meanwhile, and return what came of it, as far as it went."""
    record = NativeRecord(case)
    CONSOLE.print(f"{case}: starts", markup=False, soft_wrap=True)
    with driver(case, log) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                event = json.loads(line)
                record.hear(event)
                if event["event"] == "phase":
                    CONSOLE.print(f"  {_said(record)}", markup=False, soft_wrap=True)
        status = process.wait()
    if status:
        record.failed = f"its process ended with {status}: {_last_words(log)}"
    return record


def _said(record: NativeRecord) -> str:
    phase = record.phases[-1]
    placed = f", {' + '.join(map(str, phase.placed))} partitions" if phase.placed else ""
    said = f"failed: {phase.failed}" if phase.failed else f"{phase.ended_s - phase.began_s:.1f} s{placed}"
    return f"{phase.name}: {phase.last - phase.first + 1} batches, {said}"


def _last_words(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line and not line.startswith("\t")]
    said = [line for line in lines if "Error" in line or "Exception" in line] or lines or ["nothing was said"]
    return f"{said[-1][:300]} (see {log})"


# --- telling ---------------------------------------------------------------------------------


def number(value: float, digits: int = 0) -> str:
    """A figure for people; a hyphen where there is none."""
    return "-" if math.isnan(value) else f"{value:,.{digits}f}"


def table(records: Sequence[NativeRecord], figures: FiguresByPhase) -> Table:
    """One line for each phase of each query."""
    first = records[0].case
    title = (
        f"{first.keys:,} keys, {first.rows:,} rows a batch, {first.batches} batches in a steady phase; the skew is "
        f"made by move(); slow: more than {m.BACK:g} x the median before; withheld: longest time between results, "
        f"less the usual"
    )
    grid = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for at, column in enumerate(COLUMNS):
        grid.add_column(column, justify="right" if at else "left", no_wrap=not at)
    for kind, partitions, store in figures:
        placed = _placed(records, (kind, partitions, store))
        for name, each in figures[kind, partitions, store].items():
            of = f"{partitions}" if store == m.DEFAULT else f"{partitions} {store}"
            grid.add_row(
                name, of, placed.get(name) or "-", number(each.batches), number(each.median_ms), number(each.p99_ms),
                number(each.worst_ms), number(each.worst_of_before, 2), number(each.slow), number(each.withheld_s, 2),
                number(each.moved), number(each.seconds, 1),
            )  # fmt: skip
        grid.add_row("")
    return grid


def _placed(records: Sequence[NativeRecord], query: tuple[str, int, str]) -> dict[str, str]:
    """The places at the end of each phase, of the first run."""
    first = next(each for each in records if each.case.query == query)
    return {each.name: " + ".join(map(str, each.placed)) for each in first.phases}


def ratios(figures: FiguresByPhase) -> list[str]:
    """What the figures come to, a sentence for each query, and one for native against repartition."""
    said = []
    for (kind, partitions, store), phases in figures.items():
        if kind != m.LIVE:
            continue
        drained, undrained = (phases.get(name, NativeFigures()) for name in (m.DRAINING, m.LOSING))
        said.append(
            f"{partitions} partitions, {store} store: "
            f"attached / not attached {number(m.ratio(phases, m.WATCHED, m.BARE, _median), 2)}, "
            f"spread / skewed {number(m.ratio(phases, m.SPREAD, m.SKEWED, _median), 2)} of the median; worst batch "
            f"/ median before: drained removal {number(drained.worst_of_before, 2)}, "
            f"undrained {number(undrained.worst_of_before, 2)}, back after {number(undrained.until_back)} batches"
        )
    said += [_against(figures, query) for query in figures if query[0] == m.PEER]
    return said


def _against(figures: FiguresByPhase, query: tuple[str, int, str]) -> str:
    """Results withheld by what is steered, and by the peer beside it."""
    _, partitions, store = query
    beside = (m.LIVE, partitions, store)
    if beside not in figures:
        beside = next((each for each in figures if each[:2] == beside[:2]), beside)
    ours, theirs = figures.get(beside, {}), figures[query]
    named = {m.SPREADING: "spread()", m.GROWING: "rescale(4)", m.DRAINING: "rescale(3)", m.LOSING: "undrained removal"}
    left = [f"{said} {number(ours.get(name, NativeFigures()).withheld_s, 2)} s" for name, said in named.items()]
    right = []
    for name, said in ((m.REFUSED, "stopped in a batch"), (m.QUIET, "stopped in between")):
        each = theirs.get(name, NativeFigures())
        whole = f"{number(each.stopped_s, 1)} s from the last result to the next run's first"
        right.append(f"{said} {number(each.withheld_s, 2)} s, {whole}")
    return (
        f"results withheld beyond the usual, {partitions} partitions: native ({beside[2]} store) {', '.join(left)}; "
        f"repartition ({store} store) {'; '.join(right)}"
    )


def _median(each: NativeFigures) -> float:
    return each.median_ms


def report(records: Sequence[NativeRecord], out: Path) -> int:
    """Print the table and what it comes to, draw the plot, and return 1 where something has failed."""
    figures = m.figures_in(records)
    CONSOLE.print("", table(records, figures))
    for line in ratios(figures):
        CONSOLE.print(line, markup=False, soft_wrap=True)
    failures = 0
    for record in records:
        for phase in record.phases:
            for remark in phase.remarks:
                CONSOLE.print(f"remark, {record.case}, {phase.name}: {remark}", markup=False, soft_wrap=True)
            if phase.failed:
                failures += 1
                CONSOLE.print(f"failed, {record.case}, {phase.name}: {phase.failed}", markup=False, soft_wrap=True)
        if record.failed:
            CONSOLE.print(f"failed, {record.case}: {record.failed}", markup=False, soft_wrap=True)
        word = "verified" if record.is_right else "NOT VERIFIED"
        rows, counted = ("-" if each is None else f"{each:,}" for each in (record.rows, record.counted))
        CONSOLE.print(f"{record.case}: {word}, {rows} rows given out, {counted} counted", markup=False, soft_wrap=True)
        failures += bool(record.failed) + (not record.is_right)
    main = records[0].case.store
    first = [each for each in records if not each.case.repeat]
    drawn = [each for each in first if each.case.kind == m.PEER or each.case.store == main]
    title = f"{records[0].case.keys:,} keys, {records[0].case.rows:,} rows a batch"
    CONSOLE.print(f"drawn: {plot.over_time(drawn, out / 'native.png', title)}", soft_wrap=True)
    return int(failures > 0)


# --- the command -----------------------------------------------------------------------------


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=numbers, metavar="N,..", help="state partitions (default 12,48)")
    parser.add_argument("--keys", type=int, metavar="N", help="how many keys (default 200000)")
    parser.add_argument("--rows", type=int, metavar="N", help="rows in a batch (default 50000)")
    parser.add_argument("--batches", type=int, metavar="N", help="batches in a steady phase (default 15)")
    parser.add_argument("--store", choices=(m.DEFAULT, m.ROCKSDB), default=m.DEFAULT, help="Spark's state store")
    parser.add_argument("--repeats", type=int, default=1, metavar="N", help="runs of each case; figures are medians")
    parser.add_argument("--only", choices=(m.LIVE, m.PEER), help="only the steered queries, or only the peer")
    parser.add_argument("--quick", "--short", dest="quick", action="store_true",
                        help="12 partitions, few keys and batches; RocksDB for the peer only")  # fmt: skip
    parser.add_argument("--out", type=Path, help="folder for plot, records and logs (default: a new temporary one)")
    parser.add_argument("--again", type=Path, metavar="FOLDER", help="run nothing: table and plot of these records")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    full = {"partitions": [12, 48], "keys": 200_000, "rows": 50_000, "batches": 15}
    quick = {"partitions": [12], "keys": 20_000, "rows": 10_000, "batches": 5}
    for name, value in (quick if options.quick else full).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    return options


def main() -> int:
    """Run the cases, each in a process of its own, and report."""
    options = parsed()
    if options.case:
        from meander_lab.benchmarks.native_phases import carry_out

        carry_out(NativeCase(**json.loads(options.case)))
        return 0
    out: Path = options.again or options.out or Path(tempfile.mkdtemp(prefix="meander-native-"))
    out.mkdir(parents=True, exist_ok=True)
    kept = out / "records.jsonl"
    if options.again:
        return report([NativeRecord.from_dict(json.loads(line)) for line in kept.read_text().splitlines()], out)
    records = []
    for case in cases_of(options):
        started = perf_counter()
        records.append(run(case, out / f"{case.kind}-{case.partitions}-{case.store}-{case.repeat}.log"))
        with kept.open("a") as file:
            file.write(json.dumps(records[-1].to_dict()) + "\n")
        CONSOLE.print(
            f"{case}: {records[-1].failed or 'done'}, {perf_counter() - started:.0f} s", markup=False, soft_wrap=True
        )
    return report(records, out)


if __name__ == "__main__":
    sys.exit(main())
