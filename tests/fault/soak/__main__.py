"""`python -m fault.soak`: run two queries under rescales and kills, recount everything, and print a table.

--minutes N          how long; 1440 is a day
--seed N             of rows, rescales and kills
--folder FOLDER      where it works; of a soak that fails it stays
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

from fault.soak.samples import LIMIT_PERCENT
from fault.soak.soak import JUDGED_MINUTES, Outcome, Plan, Soak


def main() -> int:
    parser = argparse.ArgumentParser(prog="fault.soak", description="rescale and kill two queries for a while")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    folder = Path(options.folder or tempfile.mkdtemp(prefix="soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"{options.minutes:g} minutes, seed {options.seed}, in {folder}", flush=True)
    soak = Soak(Plan(options.minutes, options.seed), folder)
    try:
        soak.run()
    except AssertionError as problem:
        print(f"{as_text(soak.outcome)}\nbroken: {problem}")
        return 1
    print(as_text(soak.outcome))
    if not options.folder:
        shutil.rmtree(folder)
    return 0


def as_text(outcome: Outcome) -> str:
    """What a soak has seen, in a few lines and a table."""
    ends = [f"{status} {sum(each['status'] == status for each in outcome.migrations)}" for status in _statuses(outcome)]
    lines = [
        f"{outcome.seconds / 60:.1f} minutes; killed: {_listing(outcome.kills)}",
        f"migrations: {', '.join(ends) or 'none'}; {outcome.busy} not begun, as another was under way",
    ]
    for name, compared in outcome.compared.items():
        pause = outcome.longest_pause_s[name]
        lines.append(f"{name}: {_listing(compared)}; all as recounted; longest pause {pause:.0f} s")
    if outcome.growth:
        is_judged = outcome.plan.minutes >= JUDGED_MINUTES
        lines.append(
            f"growth, % an hour (95 % interval); {LIMIT_PERCENT:g} is allowed"
            + ("" if is_judged else f"; not judged below {JUDGED_MINUTES} minutes")
        )
        row = "{:22} {:12} {:>4} {:>7} {:>7}  {:28} {:28} {}"
        lines.append(row.format("what", "measure", "runs", "median", "most", "with its age", "with the soak's age", ""))
    for (role, measure), each in outcome.growth.items():
        slopes = [str(slope) if slope else "-" for slope in (each.by_age, each.by_soak)]
        lines.append(
            row.format(
                role, measure, each.incarnations, f"{each.median:.0f}", f"{each.largest:.0f}", *slopes, each.verdict
            )
        )
    return "\n".join(lines)


def _statuses(outcome: Outcome) -> list[str]:
    return sorted({each["status"] for each in outcome.migrations})


def _listing(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "nothing"


if __name__ == "__main__":
    sys.exit(main())
