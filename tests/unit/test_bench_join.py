"""The schemes of ./dev bench join against a nested loop, with moves on the way, and the ramp on a fake."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest

from meander.operators.custom import SIDES
from meander_lab.apps.rides import Rides, distance_km
from meander_lab.apps.zipf import ZipfStreams
from meander_lab.benchmarks import join as bench
from meander_lab.benchmarks import join_cluster as harness
from meander_lab.benchmarks import join_plots as plots
from meander_lab.benchmarks import join_ramp as ramp
from meander_lab.benchmarks import join_schemes as schemes

RATE, BATCHES = 4000.0, 14
SETTING = harness.JoinSetting(
    workers=4, bins=32, within_s=0.15, interval_s=0.1, overhead_s=0.0, alpha=0.05, window=2, step_bins=5
)


def joined(name, feed, setting=SETTING, batches=BATCHES):
    """The cluster after its batches, and what each batch was."""
    with harness.cluster(schemes.SCHEMES[name](feed, setting), feed, setting, keep=True) as made:
        ran = made.run(RATE, batches)
        stored = np.array([[each.sum() for each in worker.stored()] for worker in made.workers])
    return made, ran, stored


def read(feed, ran):
    """The rows of both sides that the batches had."""
    last_us = round(ran[-1].until_s * 1e6)
    table, _ = feed.rows(0, last_us, RATE)
    sides = []
    for side, name in enumerate(SIDES):
        mine = table.filter(np.equal(table["__input"].to_numpy(), side))
        sides.append({each: mine[f"{name}.{each}"].to_numpy() for each in feed.schemas[side].names})
    return sides


def nested_loop(feed, ran):
    """The ids of all pairs, by looking at every row of one side with every row of the other."""
    left, right = read(feed, ran)
    within = np.timedelta64(round(SETTING.within_s * 1e6), "us")
    who = ("id", "id") if feed.key == "key" else ("order_id", "taxi_id")
    found = Counter()
    for at in range(len(left["ts"])):
        near = (right[feed.key] == left[feed.key][at]) & (abs(right["ts"] - left["ts"][at]) <= within)
        if feed.key == "key":
            near &= abs(right["x"] - left["x"][at]) < harness.NEAR
        else:
            place = left["lon"][at], left["lat"][at]
            near &= distance_km(*place, right["lon"], right["lat"]) < harness.NEAR_KM
        found.update(
            (left[who[0]][at], other, t) for other, t in zip(right[who[1]][near], right["ts"][near], strict=True)
        )
    return found


def told(feed, made):
    """The ids of the pairs that came out."""
    who = ("id", "id_right") if feed.key == "key" else ("order_id", "taxi_id")
    found = Counter()
    for table in made.kept:
        found.update(zip(*(table[name].to_numpy() for name in (*who, "ts_right")), strict=True))
    return found


@pytest.mark.parametrize("name", schemes.SCHEMES)
def test_every_pair_comes_out_once_while_things_move(name):
    feed = harness.JoinFeed(ZipfStreams(1.0, keys=60, seed=3))
    made, ran, _ = joined(name, feed)
    expected = nested_loop(feed, ran)
    assert sum(expected.values()) > 1000
    assert told(feed, made) == expected
    if name != "Meander":  # it goes by busy times, which are chance where there is so little to do
        assert (made.scheme.moved_rows > 0) == (name in ("FastJoin", "Ls-Stream"))
    assert sum(each.looked_at for each in ran) > 10 * sum(expected.values())


@pytest.mark.parametrize("name", ["ContRand", "Meander"])
def test_rides_are_matched_once(name):
    feed = harness.JoinFeed(Rides(seed=1, order=4, fleet=300, moves_s=1.0, trip_s=1.0))
    made, ran, _ = joined(name, feed, batches=8)
    expected = nested_loop(feed, ran)
    assert sum(expected.values()) > 100
    assert told(feed, made) == expected


def test_only_fastjoin_has_a_routing_table_that_grows():
    feed = harness.JoinFeed(ZipfStreams(1.0, keys=60, seed=3))
    fast, fast_ran, _ = joined("FastJoin", feed)
    ours, ours_ran, _ = joined("Ls-Stream", feed)
    assert fast_ran[0].table == 0
    assert fast.scheme.table > 3
    assert {each.table for each in ours_ran} == {32} == {ours.scheme.table}
    assert len(set(ours.scheme.owner.tolist())) > 1
    assert len(ours.scheme.reasons) >= 1


def test_a_subgroup_stores_each_row_once():
    feed = harness.JoinFeed(ZipfStreams(0.5, keys=60, seed=3))
    _, _, hashed = joined("BiStream", feed, batches=5)
    _, _, shared = joined("ContRand", feed, batches=5)
    assert hashed.sum(axis=0).tolist() == shared.sum(axis=0).tolist()
    assert hashed.sum(axis=0).min() > 100
    for member in range(0, 4, 2):
        assert shared[member].sum() == pytest.approx(shared[member + 1].sum(), rel=0.3)
    with pytest.raises(ValueError, match="subgroups of 3"):
        schemes.ContRand(feed, harness.JoinSetting(workers=4, subgroup=3))


def test_balancing_lowers_the_imbalance():
    feed = harness.JoinFeed(ZipfStreams(0.8, keys=400, seed=5))
    li = {}
    for name in ("BiStream", "FastJoin", "Ls-Stream"):
        _, ran, _ = joined(name, feed, batches=20)
        li[name] = harness.imbalance(ran[-4:])
    assert li["FastJoin"] < 0.7 * li["BiStream"]
    assert li["Ls-Stream"] < 0.7 * li["BiStream"]


@dataclass
class Fake:
    """A cluster whose batches take what is read at a known speed, and an overhead."""

    per_s: float
    overhead_s: float = 0.01
    interval_s: float = 0.1
    clock_s: float = 0.0
    read_s: float = 0.0
    skipped: int = 0

    def run(self, rate, batches, interval_s=None):
        ran = []
        for _ in range(batches):
            begin = self.clock_s
            rows = (begin - self.read_s) * rate
            end = begin + self.overhead_s + rows / self.per_s
            ran.append(
                harness.JoinBatch(0, begin, end, self.read_s, begin, rows, 0, 0.0, np.zeros(1), np.zeros(1), 0, 0)
            )
            self.read_s, self.clock_s = begin, max(end, begin + self.interval_s)
        return ran

    def skip(self):
        self.read_s = self.clock_s - self.interval_s
        self.skipped += 1


@pytest.mark.parametrize("per_s", [900.0, 20_000.0, 3e6])
def test_the_ramp_finds_the_rate_of_a_known_capacity(per_s):
    fake = Fake(per_s)
    found = ramp.highest_rate(fake, 10_000.0, fake.interval_s)
    # At the highest rate, the rows of an interval take what the overhead leaves of it.
    assert found.rate == pytest.approx(per_s * 0.9, rel=0.08)
    assert fake.skipped >= 1
    held = [rate for rate, took_s in found.tried if took_s <= fake.interval_s]
    assert max(held) <= found.rate * 1.001


def test_latency_is_from_arrival_to_the_end():
    batch = harness.JoinBatch(0, 1.0, 1.5, 0.0, 1.0, 100, 0, 0.0, np.zeros(1), np.zeros(1), 0, 0)
    found = harness.latencies([batch])
    assert found["mean_s"] == pytest.approx(1.0)
    assert found["max_s"] == pytest.approx(1.5)
    assert found["p99_s"] == pytest.approx(1.49, abs=0.011)


def point(dataset, scheme, highest, max_s, **others):
    return ramp.Point(**{
        "dataset": dataset, "scheme": scheme, "workers": 8, "alpha": 1.0, "seed": 0, "highest": highest, "rate": 1.0,
        "begin_li": 2.0, "li": 1.0, "busy_li": 0.5, "mean_s": max_s / 2, "p99_s": max_s, "max_s": max_s,
        "looked_at": 1.0, "busy_share": 0.5, "moved_rows": 1, "table": 256, **others,
    })  # fmt: skip


def test_targets_are_judged_by_what_was_found():
    points = [point("zipf1.0", name, rate, s) for name, rate, s in [
        ("BiStream", 10.0, 1.0), ("ContRand", 12.0, 0.9), ("FastJoin", 19.0, 0.7),
        ("Ls-Stream", 19.5, 0.7), ("Meander", 20.0, 0.6)]]  # fmt: skip
    assert [met for _, met in bench.judged(points).values()] == [True, False, True]
    assert not bench.judged(points[:2])


def test_the_middle_of_repetitions_and_the_files(tmp_path):
    several = [point("zipf0.2", "Meander", rate, 1.0, seed=at) for at, rate in enumerate((3.0, 9.0, 4.0))]
    assert bench.middle(several).highest == 4.0
    bench.write(tmp_path / "points.csv", several)
    assert (tmp_path / "points.csv").read_text().count("\n") == 4
    made = [
        *plots.of_datasets(several, tmp_path),
        *plots.of_workers(several, tmp_path),
        *plots.of_alpha(several, tmp_path),
    ]
    assert all(path.stat().st_size > 1000 for path in made)
    assert {path.name[:5] for path in made} == {f"fig{n}" for n in ("07", "08", "09", "12", "10", "13", "14", "15")}


def test_the_command_line():
    assert bench.parsed([]).only == list(bench.PARTS)
    assert bench.parsed(["--quick"]).only == ["datasets"]
    assert bench.parsed(["--only", "alpha,spark"]).only == ["alpha", "spark"]
    assert bench.parsed(["--repeats", "3"]).repeats == 3
