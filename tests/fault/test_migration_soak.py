"""Random rescales under load, for ten minutes: results equal a recount, nothing is left over, memory is flat.

MEANDER_SOAK_S says for how many seconds.
"""

from __future__ import annotations

import os
import re
import statistics
import time
from pathlib import Path

import pytest

from flow import Flow
from meander.checkpoint.files import attempt_of
from meander.checkpoint.location import Location
from meander.checkpoint.manifest import Log
from meander.checkpoint.retention import sweep
from meander.checkpoint.verify import verify
from streams import PATIENCE_S, below

pytestmark = [pytest.mark.spark, pytest.mark.fault, pytest.mark.soak]

SECONDS = float(os.environ.get("MEANDER_SOAK_S", "600"))
LONG_ENOUGH_S = 300
"""A younger JVM has not filled its heap yet: whether its memory is flat cannot be told."""

RETAIN, SNAPSHOT_EVERY, SWEEP_EVERY, BINS, MOST = 10, 8, 16, 64, 4
GROWTH = 1.25

ROLES = {
    "driver's JVM": r"org\.apache\.spark\.deploy\.SparkSubmit",
    "executor": "CoarseGrainedExecutorBackend",
    "Python worker": r" -m meander\.engine\.spark\.daemon\b",
}


@pytest.fixture
def flow(tmp_path):
    made = Flow(tmp_path, 301, rows=3000, keys=20_000)
    yield made
    made.end()


def test_random_rescales_under_load(flow):
    program = flow.start(
        [], quick=True, seconds=SECONDS, seed=302, most=MOST, bins=BINS, master=f"local-cluster[{MOST},1,1024]",
        # With all of a small heap touched early, what grows is a leak.
        spark={"spark__driver__memory": "600m", "spark__executor__memory": "500m"},
        settings={"bins": BINS, "retain": RETAIN, "snapshot_every": SNAPSHOT_EVERY, "executors_within_s": 300},
    )  # fmt: skip
    program.wait_for("started")
    sampled = sampled_memory(program)
    (moved,) = program.told("moved")
    ended = program.told("migrated")
    assert [each for each in ended if each["status"] != "done" or not each["at_goal"]] == []
    assert len(ended) >= SECONDS / 60
    assert len(moved["folders"]) == len(moved["seats"]), "a worker that is gone has left its folder"
    done = flow.finish(program)
    assert done["folders"] == []
    check_nothing_is_left(Location.of(flow.checkpoint))
    grown = growth(sampled)
    sizes = {
        "versions": done["version"], "migrations": len(ended), "let go": sum(each["let_go"] for each in ended),
        "came": sum(each["came"] for each in ended), "growth": grown,
    }  # fmt: skip
    print(sizes)
    if SECONDS >= LONG_ENOUGH_S:
        assert {role for role, ratio in grown.items() if ratio > GROWTH} == set(), sizes


def sampled_memory(program) -> dict[str, list[int]]:
    """Until the program has moved everything: by role, every two seconds, the KiB that its largest process has."""
    found: dict[str, list[int]] = {role: [] for role in ("driver's Python", *ROLES)}
    deadline = time.monotonic() + SECONDS + PATIENCE_S
    while not program.told("moved"):
        assert not program.ended, f"{program.told('failed')}\n{program.text()}"
        assert time.monotonic() < deadline, f"it does not end:\n{program.text()}"
        children = below(program.pid)
        found["driver's Python"].append(rss_kib(program.pid))
        for role, pattern in ROLES.items():
            sizes = [rss_kib(pid) for pid, (_, command) in children.items() if re.search(pattern, command)]
            found[role].append(max(sizes, default=0))
        time.sleep(2)
    return found


def rss_kib(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4
    except (OSError, IndexError):
        return 0


def growth(sampled: dict[str, list[int]]) -> dict[str, float]:
    """The median of the last third of the samples over that of the second, by role."""
    found = {}
    for role, sizes in sampled.items():
        third = len(sizes) // 3
        assert third > 0, "there was no time to look at the memory"
        found[role] = round(statistics.median(sizes[2 * third :]) / statistics.median(sizes[third : 2 * third]), 3)
    return found


def check_nothing_is_left(location: Location) -> None:
    """The checkpoint is whole, and its last sweep has left nothing that was not needed then."""
    assert verify(location).damaged == []
    log = Log.open(location)
    assert log.last is not None
    # What became superfluous since the last sweep was needed by a version that was kept then, or failed since.
    oldest = log.last.version - SWEEP_EVERY - RETAIN - SNAPSHOT_EVERY - 1
    swept = [attempt for path in sweep(location, log, RETAIN) if (attempt := attempt_of(path))]
    assert [attempt for attempt in swept if attempt.version < oldest] == []
    assert sweep(location, log, RETAIN) == []
    assert verify(location).damaged == []
    named = {path.relative_to(location.root).parts[0] for path in Path(location.root).rglob("*") if path.is_file()}
    assert named <= {"manifests", "deltas", "snapshots", "side", "spark", "meander.json"}
    assert [path for path in Path(location.root).rglob("*.tmp") if "spark" not in path.parts] == []
