"""The soak can be trusted: its audit notices what is wrong, forgets what it has seen, and slopes find what grows."""

from __future__ import annotations

import random

import pyarrow.parquet as pq
import pytest

import meander as me
from fault.soak import audit as audits
from fault.soak.audit import QUERIES, Audit
from fault.soak.samples import Samples, Series
from fault.soak.slope import seasonal_kendall
from fault.soak.soak import victims

SETTINGS = {"retain": audits.RETAIN, "snapshot_every": audits.SNAPSHOT_EVERY, "retain_side": audits.RETAIN_SIDE}


class Audited:
    """A query in this process whose output is written as a files sink writes it."""

    def __init__(self, name, root):
        self.audit = Audit(name, root, seed=1)
        workload = QUERIES[name]
        streams = [me.stream(me.testing.source(schema)) for schema in workload.inputs]
        self.harness = me.testing.harness(
            workload.describe(*streams), workers=2, bins=16, checkpoint=self.audit.checkpoint, **SETTINGS
        )
        self.written = 0

    def feed(self):
        self.audit.feed()
        sides = [feed.folder / f"{self.audit.fed - 1:06d}.parquet" for feed in self.audit.feeds]
        batch = [pq.read_table(each) for each in sides]
        self.harness.batch(batch[0]) if len(batch) == 1 else self.harness.batch(left=batch[0], right=batch[1])
        for number in range(self.written, self.harness.query.version + 1):
            self.write(number, self.harness.sink.versions[number])
        self.written = self.harness.query.version + 1

    def write(self, number, rows):
        folder = self.audit.out / f"batch={number}"
        folder.mkdir(parents=True)
        pq.write_table(rows, folder / "part.parquet")
        (folder / "_SUCCESS").touch()


@pytest.fixture(params=QUERIES)
def audited(request, tmp_path, monkeypatch):
    monkeypatch.setattr(audits, "KEPT", 5)
    audited = Audited(request.param, tmp_path)
    with audited.harness:
        yield audited


def test_a_query_that_is_left_alone_passes_and_is_forgotten(audited):
    for _ in range(25):
        audited.feed()
        assert audited.audit.look() == 1
    audited.harness.idle()
    audited.audit.check_end()
    assert audited.audit.rows > 1000
    assert len(list(audited.audit.out.glob("batch=*"))) == 5
    assert all(len(list(feed.folder.iterdir())) == 5 for feed in audited.audit.feeds)
    assert not audited.audit.due


def lose_a_row(audited):
    file = audited.audit.out / "batch=3" / "part.parquet"
    pq.write_table(pq.read_table(file).slice(1), file)


def repeat_a_version(audited):
    audited.write(4, audited.harness.sink.versions[3])


@pytest.mark.parametrize(
    ("harm", "words"), [(lose_a_row, "1 rows are missing|1 rows of 1 batches"), (repeat_a_version, "too many|no batch")]
)
def test_the_audit_notices(audited, harm, words):
    for _ in range(4):
        audited.feed()
    harm(audited)
    with pytest.raises(AssertionError, match=words):
        audited.audit.check_end()


def test_the_audit_notices_a_version_that_is_written_again(audited):
    for _ in range(4):
        audited.feed()
    audited.audit.look()
    (audited.audit.out / "batch=2" / "more").touch()
    with pytest.raises(AssertionError, match="version 2 was written again"):
        audited.audit.check_end()


def test_the_audit_notices_a_version_that_appears_late(audited):
    for _ in range(10):
        audited.feed()
    audited.audit.look()
    audited.write(1, audited.harness.sink.versions[1])
    with pytest.raises(AssertionError, match="version 1 appears after version 9"):
        audited.audit.look()


def test_the_audit_notices_a_batch_that_the_state_lacks(audited):
    audited.feed()
    audited.audit.look()
    audited.audit.recount.add(audited.audit.workload.batch(random.Random(2), 1))
    with pytest.raises(AssertionError, match="state"):
        audited.audit.check_end()


def sampled(hours, *, life_minutes, per_hour_of_age=0.0, per_hour_of_soak=0.0):
    """A role whose processes live so long and warm up, with noise of half a percent."""
    rng, samples = random.Random(3), Samples()
    for minute in range(int(hours * 60)):
        for second in range(0, 60, 5):
            now = minute * 60 + second
            age = now % (life_minutes * 60)
            warm = min(1.0, age / 120)
            grown = 1 + per_hour_of_age * age / 3600 + per_hour_of_soak * now / 3600
            value = 400 * (0.5 + 0.5 * warm) * grown * rng.gauss(1, 0.005)
            samples.add(now, {Series("executor", "MiB", str(now // (life_minutes * 60))): value})
    return samples.growth("executor", "MiB")


@pytest.mark.parametrize("life_minutes", [12, 600])
def test_what_does_not_grow_is_flat_whatever_it_is_while_it_is_young(life_minutes):
    growth = sampled(5, life_minutes=life_minutes)
    assert growth.verdict == "flat", growth
    assert growth.incarnations == max(1, 300 // life_minutes)


def test_what_grows_with_the_age_of_a_process_or_of_the_soak_is_found():
    by_age = sampled(3, life_minutes=15, per_hour_of_age=0.2)
    assert (by_age.verdict, by_age.by_soak.low < 1) == ("grows", True)
    assert by_age.by_age.percent == pytest.approx(20, abs=8)
    by_soak = sampled(3, life_minutes=6, per_hour_of_soak=0.05)
    assert (by_soak.verdict, by_soak.by_age) == ("grows", None)
    assert by_soak.by_soak.percent == pytest.approx(5, abs=2)


def test_what_was_seen_for_too_short_a_time_is_open():
    assert sampled(0.1, life_minutes=60).verdict == "open"
    assert seasonal_kendall([[(0, 1.0), (60, 2.0)]]) is None


def test_each_kind_is_killed_soon_and_the_driver_seldom():
    kills = victims(random.Random(1))
    first = [next(kills) for _ in range(3)]
    assert set(first) == {"executor", "Python worker", "driver"}
    assert [next(kills) for _ in range(30)].count("driver") == 2
