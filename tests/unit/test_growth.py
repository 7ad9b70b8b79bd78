"""Nothing grows with the age of a query: objects of the driver, files of checkpoint and workers, time per version.

MEANDER_SOAK_VERSIONS says how many versions the long run makes.
"""

from __future__ import annotations

import gc
import os
import resource
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

import meander as me
from meander.engine.driver import batch_loop
from meander.migration import events
from meander.progress import progress_bars

VERSIONS = int(os.environ.get("MEANDER_SOAK_VERSIONS", "100000"))
PERIOD = 60
"""After so many versions the same has happened again: a rescale up and down, a lost executor, an idle time."""
SECOND = 1_000_000


class Measured(NamedTuple):
    """What there is at some age of a query."""

    objects: int
    rss_mib: float
    files: int
    folders: Counter[str]


class Life:
    """A query whose every version has rows in time, late ones and dead ones, and whose workers come and go."""

    def __init__(self, folder: Path, **settings: int) -> None:
        stream = me.stream(me.testing.source("word string, ts timestamp"))
        stream = stream.key_by("word").window("ts", "10s", emit="final").count()
        self.folder = folder
        self.harness = me.testing.harness(stream, workers=1, bins=4, checkpoint=folder / "ck", **settings)
        self.batches = 0

    def live(self, versions: int) -> None:
        """Make so many batches, and what happens beside them."""
        harness = self.harness
        for _ in range(versions):
            self.batches += 1
            now = self.batches * SECOND
            harness.batch([{"word": word, "ts": at} for word, at in (("duck", now), ("goose", 0), (None, now))])
            turn = self.batches % PERIOD
            if turn in (10, 30):
                harness.rescale(2 if turn == 10 else 1)
            elif turn == 40:
                harness.lose(min(harness.query.workers))
            elif turn == 50:
                harness.idle()
            elif turn == 55:
                harness.query.on_event(print)
                harness.query.off_event(print)
            harness.sink.versions.clear()

    def measure(self) -> Measured:
        """Count what there is right after a sweep."""
        while self.harness.query.version % batch_loop.SWEEP_EVERY != batch_loop.SWEEP_EVERY - 1:
            self.live(1)
        gc.collect()
        paths = [path.relative_to(self.folder).parts for path in self.folder.rglob("*") if path.is_file()]
        folders = Counter("/".join(parts[:2]) for parts in paths if len(parts) > 2)
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return Measured(len(gc.get_objects()), pages * resource.getpagesize() / 2**20, len(paths), folders)

    def late_rows(self) -> int:
        return self.harness.query.late_rows().num_rows


@pytest.fixture
def life(tmp_path, monkeypatch):
    # The driver looks back on a thousand versions and events; here on fewer, so that a short run fills them.
    monkeypatch.setattr(batch_loop, "MAX_PROGRESS", PERIOD)
    monkeypatch.setattr(events, "MAX_ENTRIES", PERIOD)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    life = Life(tmp_path, retain_side=PERIOD)
    with life.harness:
        yield life


def test_twice_as_old_a_query_has_as_many_objects_and_files(life):
    life.live(3 * PERIOD)
    young = life.measure()
    life.live(3 * PERIOD)
    old = life.measure()
    assert old.objects <= young.objects + 1.5 * PERIOD, "less than one more for every two versions"
    assert old.files <= young.files + PERIOD, f"{young.folders} became {old.folders}"
    assert 0.8 * PERIOD <= life.late_rows() <= 3 * PERIOD, "some versions are ticks"


@pytest.mark.soak
def test_the_time_of_a_version_does_not_depend_on_its_age(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    life = Life(tmp_path)
    every = max(1000, VERSIONS // 20) // PERIOD * PERIOD
    ages: list[tuple[Measured, float]] = []
    with life.harness, capsys.disabled(), progress_bars() as tell:
        while life.batches < VERSIONS:
            began, before = time.process_time(), life.batches
            while life.batches < before + every:
                life.live(PERIOD)
                tell(life.batches, VERSIONS, "versions")
            ms = (time.process_time() - began) / every * 1000
            measured = life.measure()
            ages.append((measured, ms))
            print(
                f"\n{life.batches} batches: {ms:.1f} ms of CPU each, {measured.objects} objects, "
                f"{measured.rss_mib:.0f} MiB, {measured.files} files {dict(measured.folders)}", end="", flush=True,
            )  # fmt: skip
    (first, first_ms), (last, last_ms) = ages[len(ages) // 3], ages[-1]
    assert last.objects <= first.objects * 1.01
    assert last.rss_mib <= first.rss_mib * 1.05
    assert last.files <= first.files + 300, "a few more levels of merged files, and what is between two sweeps"
    assert last_ms <= first_ms * 1.5, "time of a version"
