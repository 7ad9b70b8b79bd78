"""The arithmetic, the picking and the drawing of ./dev bench migrate and disturb, on made-up records."""

import argparse
import itertools
import json
import math
import os
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meander_lab.benchmarks import disturb_measure as disturb
from meander_lab.benchmarks import migrate as bench
from meander_lab.benchmarks import migrate_measure as measure
from meander_lab.benchmarks import migrate_memory as memory
from meander_lab.benchmarks import migrate_plots as plots

RATE = 100


def batches_at(ends, load_s=0.0, rate=RATE):
    """Batches that end at these times, each with the rows that were created until it began, when the last one ended."""
    found, first, began = [], 0, load_s
    for number, ended in enumerate(ends):
        end = int((began - load_s) * rate) if number else 1
        found.append(measure.CommittedBatch(number, began, ended, first, max(end, first)))
        first, began = max(end, first), ended
    return found


# --- latencies and gaps ----------------------------------------------------------------------


def test_the_latency_of_rows_runs_from_their_creation_to_the_commit():
    batch = measure.CommittedBatch(3, 10.0, 12.0, 500, 600)
    assert measure.latency_ms(batch, 5.0, RATE) == pytest.approx(2000)  # row 500 was created at 10 s
    rows = measure.row_latencies_ms([batch, measure.CommittedBatch(4, 0.0, 99.0, 0, 0)], 5.0, RATE)
    assert len(rows) == 100
    assert rows.max() == pytest.approx(2000)
    assert rows.min() == pytest.approx(1010)  # row 599


def test_of_a_high_rate_one_row_for_each_millisecond_is_looked_at():
    rows = measure.row_latencies_ms([measure.CommittedBatch(0, 0.0, 2.0, 0, 50_000)], 0.0, 50_000)
    assert len(rows) == 1000
    assert rows.max() == pytest.approx(2000)


gap_lists = st.lists(st.floats(0.1, 5.0), min_size=3, max_size=30)


@given(gap_lists, st.floats(0.0, 20.0), st.floats(0.1, 20.0))
def test_gaps_are_those_that_touch_the_time(gaps, start, length):
    ends = [sum(gaps[:at]) for at in range(len(gaps) + 1)]
    batches = [measure.CommittedBatch(at, 0.0, end, at, at + 1) for at, end in enumerate(ends)]
    wanted = [
        after - before for before, after in itertools.pairwise(ends) if not (after <= start or before >= start + length)
    ]
    assert measure.gaps_s(batches, start, start + length) == wanted


def test_a_batch_without_rows_is_no_result():
    batches = [measure.CommittedBatch(at, 0.0, end, at, at + (end != 2.0)) for at, end in enumerate([1.0, 2.0, 3.0])]
    assert measure.gaps_s(batches, 0.0, 9.0) == [2.0]


def test_time_without_results_is_the_longest_gap_less_the_usual_one():
    ends = [1.0, 1.5, 2.0, 2.5, 3.0, 7.0, 7.5, 12.0]
    batches = [measure.CommittedBatch(at, 0.0, end, at, at + 1) for at, end in enumerate(ends)]
    assert measure.without_results_s(batches, (0.0, 2.9), (3.1, 7.2)) == pytest.approx(3.5)
    assert measure.without_results_s(batches, (0.0, 2.9), (1.0, 2.0)) == 0.0
    assert math.isnan(measure.without_results_s(batches, (0.0, 2.9), (20.0, 30.0)))


# --- which bins move -------------------------------------------------------------------------


@given(st.sampled_from([4, 16, 64, 256]), st.integers(1, 4), st.floats(0.05, 0.5))
def test_an_even_part_of_every_workers_bins_moves_to_a_new_worker(bins, workers, share):
    owner = [at * workers // bins for at in range(bins)]
    moved = measure.quarter(owner, share)
    for worker in range(workers):
        mine = [bin_ for bin_ in moved if owner[bin_] == worker]
        assert len(mine) == max(1, round(owner.count(worker) * share))
        assert {moved[bin_] for bin_ in mine} == {workers + worker}


@given(st.integers(1, 31), st.integers(2, 6), st.integers(0, 100))
def test_random_groups_move_whole_to_others_and_leave_nobody_empty(count, workers, seed):
    owner = [at // 4 * workers // 32 for at in range(128)]
    moved = disturb.random_groups(owner, 32, count, workers, random.Random(seed))
    assert moved == disturb.random_groups(owner, 32, count, workers, random.Random(seed))
    groups = {bin_ // 4 for bin_ in moved}
    assert len(moved) == 4 * len(groups)
    assert len(groups) == min(count, len(groups))
    assert len(groups) == count or workers > 2  # only many owners of few groups can stand in the way
    assert all(owner[bin_] != target < workers for bin_, target in moved.items())
    after = [moved.get(bin_, owner[bin_]) for bin_ in range(128)]
    assert set(after) == set(range(workers))


# --- throughput ------------------------------------------------------------------------------


def level_at(batches, slot, at):
    """Rows whose slot holds this time, by looking at every batch."""
    return sum(each.rows for each in batches if each.ended_s - slot <= at < each.ended_s)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), max_size=12), st.integers(1, 8))
def test_pieces_say_at_every_time_what_comes_out(made, slot):
    batches = [measure.CommittedBatch(at, 0.0, end / 2, 0, rows) for at, (end, rows) in enumerate(sorted(made))]
    found = disturb.pieces(batches, slot / 2, 2.0, 15.0)
    assert found[0].start_s == 2.0
    assert found[-1].stop_s == 15.0
    assert all(left.stop_s == right.start_s for left, right in itertools.pairwise(found))
    for each in found:
        for share in (0.25, 0.75):
            at = each.start_s + (each.stop_s - each.start_s) * share
            assert each.rows == level_at(batches, slot / 2, at)


def test_a_stop_counts_as_long_as_it_was_less_a_slot():
    ends = [at / 2 for at in range(1, 21)] + [at / 2 for at in range(40, 61)]  # nothing from 10 s to 20 s
    batches = [measure.CommittedBatch(at, 0.0, end, 50 * at, 50 * at + 50) for at, end in enumerate(ends)]
    found = disturb.degraded(batches, 0.0, 8.0, 28.0)
    assert found.slot_s == 0.5
    assert found.below_s == pytest.approx((9.5,) * 5)
    assert found.rows == 50 * sum(end <= 28.0 for end in ends)


def test_slow_batches_are_below_by_as_much_as_they_are_slow():
    ends = [float(at) for at in range(1, 11)] + [11.0, 15.0, 19.0, 23.0]
    batches = [measure.CommittedBatch(at, 0.0, end, 0, 100 if end <= 11 else 70) for at, end in enumerate(ends)]
    below = disturb.degraded(batches, 0.0, 10.0, 23.0).below_s
    assert below == pytest.approx((12.0, 9.0, 9.0, 9.0, 9.0))  # 3 s of 70 %, 9 s of nothing


def test_a_steady_stream_is_never_below():
    batches = batches_at([at * 0.5 for at in range(1, 60)])
    assert disturb.degraded(batches, 2.0, 10.0, 28.0).below_s == (0.0,) * 5


def test_the_mean_of_every_second_keeps_all_rows():
    batches = [measure.CommittedBatch(0, 0.0, 2.5, 0, 30), measure.CommittedBatch(1, 0.0, 4.0, 30, 90)]
    line = disturb.per_second(disturb.pieces(batches, 1.0, 0.0, 6.0), 1.0)
    assert [at for at, _ in line] == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert [value for _, value in line] == pytest.approx([0, 15, 15, 60, 0, 0])
    assert disturb.per_second([], 1.0) == []


def test_too_few_batches_are_told():
    with pytest.raises(ValueError, match="--every"):
        disturb.degraded(batches_at([1.0]), 0.0, 2.0, 4.0)


# --- records ---------------------------------------------------------------------------------


def a_record(mode="batched", stop_s=0.0, keys=1000, bins=64):
    """Steady batches of half a second, with a stop when the move begins at 20 s; it is over at 24 s."""
    ends = [at * 0.5 for at in range(1, 40)]
    while ends[-1] < 40:
        ends.append(ends[-1] + 0.5 + (stop_s if 19.9 < ends[-1] < 20.1 else 0.0))
    marks = {"load": 0.0, "steady": 5.0, "move": 20.0, "moved": 24.0 + stop_s, "settled": 28.0, "end": 40.0}
    samples = []
    for at in range(80):
        for role, size in (("driver jvm", 300), ("executor 0 jvm", 100), ("executor 0 python", 50)):
            more = 60 if "python" in role and 42 <= at <= 46 else 0
            samples.append(measure.MemorySample(at / 2, role, 2 * (size + more), size + more))
    case = measure.MoveCase(mode, keys, bins, RATE)
    return measure.MoveRecord(case, batches_at(ends), marks, samples, {"bytes": 5000, "bins": 16})


def test_the_figures_of_a_run():
    found = measure.figures(a_record(stop_s=3.0))
    assert found.steady_p99_ms == pytest.approx(1000, abs=20)  # a row may wait for one batch and take part in the next
    assert found.worst_ms == pytest.approx(4000, abs=20)
    assert found.worst_batch_ms == pytest.approx(3500)
    assert found.steady_batch_p99_ms == pytest.approx(500)
    assert found.worst_batch_of_steady == pytest.approx(7)
    assert found.duration_s == pytest.approx(7)
    assert found.silent_s == pytest.approx(3.0)
    assert found.beyond_steady_s == pytest.approx(3.5 - 1.5 * 0.5)
    assert (found.steady_memory, found.peak_memory) == (150, 210)
    assert (found.steady_python, found.peak_python) == (50, 110)
    assert found.p99_ms <= found.worst_ms


def test_without_a_stop_nothing_is_beyond_steady():
    found = measure.figures(a_record())
    assert (found.silent_s, found.beyond_steady_s) == (0.0, 0.0)
    assert found.worst_of_steady == pytest.approx(1.0, abs=0.05)


def test_what_was_not_measured_is_nan_and_meets_no_target():
    record = a_record()
    record.batches = record.batches[:5]
    found = measure.figures(record)
    assert math.isnan(found.worst_ms)
    assert math.isnan(found.beyond_steady_s)
    targets = bench.targets_of({((1000, 64), "batched"): found}, [])
    assert not any(each.met for each in targets[:3])


def test_medians_over_runs_are_taken_for_each_figure():
    runs = [measure.figures(a_record(stop_s=stop)) for stop in (0.0, 1.0, 4.0)]
    assert measure.middle(runs).worst_ms == statistics.median(each.worst_ms for each in runs)


def test_a_record_survives_being_written():
    record = a_record()
    assert measure.MoveRecord.from_dict(json.loads(json.dumps(record.to_dict()))) == record


def test_roles_are_told_by_command_and_descent():
    every = {
        10: (1, "python migrate.py --case {}"),
        11: (10, "/usr/bin/java -cp x org.apache.spark.deploy.SparkSubmit pyspark-shell"),
        12: (11, "/usr/bin/java org.apache.spark.executor.CoarseGrainedExecutorBackend --executor-id 3 --host h"),
        13: (12, "python -m meander.engine.spark.daemon pyspark.worker"),
        14: (13, "python -m meander.engine.spark.daemon pyspark.worker"),
        15: (11, "bash launcher"),
        20: (1, "python something else"),
    }
    assert memory.roles(10, every) == {
        10: "driver python", 11: "driver jvm", 12: "executor 3 jvm", 13: "executor 3 python", 14: "executor 3 python",
    }  # fmt: skip


def test_the_memory_of_this_process_is_found():
    (mine,) = [each for each in memory.sample(os.getpid()) if each.role == "driver python"]
    assert mine.rss_bytes >= mine.pss_bytes > 1 << 20


# --- cases, tables, plots --------------------------------------------------------------------


def options(**changed):
    usual = {
        "only": list(bench.PARTS), "modes": list(bench.MODES), "keys": [1000, 10_000], "bins": [64, 256],
        "rate": RATE, "warm": 1.0, "seconds": 2.0, "repeat": 1, "options": {},
    }  # fmt: skip
    return argparse.Namespace(**usual | changed)


def test_lines_of_sizes_vary_what_they_say():
    assert bench.sizes_of("bins", [1000, 8000], [16, 1024]) == [(1000, 16), (1000, 64), (1000, 256), (1000, 1024)]
    assert bench.sizes_of("keys", [1000, 8000], [16, 1024]) == [(1000, 16), (2000, 16), (4000, 16), (8000, 16)]
    both = bench.sizes_of("both", [1000, 8000], [16, 1024])
    assert both[0] == (1000, 16)
    assert both[-1] == (8000, 128)
    assert len({keys / bins for keys, bins in both}) == 1


def test_every_case_runs_once_and_natives_once_for_each_number_of_keys():
    cases = bench.cases_of(options())
    assert len(set(map(str, cases))) == len(cases)
    natives = [(each.keys, each.mode) for each in cases if each.is_native]
    assert sorted(natives) == [(keys, mode) for keys in (1000, 10_000) for mode in ("native", "native_quiet")]
    twice = bench.cases_of(options(repeat=2))
    assert len(twice) == 2 * len(cases)


def test_numbers_may_be_short():
    assert bench.numbers("1m,256,2.5k") == [256, 2500, 1_000_000]


def test_tables_and_plots_of_made_up_records(tmp_path, capsys):
    small = [
        a_record(mode, stop_s) for mode, stop_s in (("none", 0.0), ("batched", 0.1), ("fluid", 0.2), ("native", 8.0))
    ]
    failed = measure.MoveRecord(measure.MoveCase("restart", 1000, 64, RATE), failed="it was not over")
    assert bench.report([*small, failed], ["modes"], [1000], [64], tmp_path) == 1
    told = capsys.readouterr().out
    assert "it was not over" in told
    assert all(f"\n{mode} " in told for mode in ("none", "batched", "fluid", "native"))
    large = [a_record(mode, 0.1, 4000, 256) for mode in ("none", "batched", "fluid")]
    bench.report([*small, *large], ["both"], [1000, 4000], [64, 256], tmp_path)
    assert "4,000 in 256" in capsys.readouterr().out
    drawn = {each.name: each.stat().st_size for each in tmp_path.glob("*.png")}
    assert set(drawn) == {"latency-1000-keys-64-bins.png", "memory-1000-keys-64-bins.png", "worst-both.png"}
    assert min(drawn.values()) > 5000


def test_bars_and_lines_are_drawn(tmp_path):
    groups = {"live": {"-20%": 1.0, "-100%": 0.0}, "restart": {"-20%": 9.0, "-100%": 7.0}}
    plots.bars(groups, tmp_path / "bars.png", "time below", "seconds")
    plots.throughput_over_time({"none": [(0.0, 5.0), (1.0, 5.0)], "live": []}, tmp_path / "lines.png", "rows")
    assert all((tmp_path / name).stat().st_size > 5000 for name in ("bars.png", "lines.png"))
