"""The arithmetic, the picking, the table and the drawing of ./dev bench native, on made-up records."""

import json
import math
import statistics
from collections import Counter
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meander_lab.benchmarks import native as bench
from meander_lab.benchmarks import native_measure as measure

ROWS = 100


def a_record(*parts, kind="live", partitions=12, store="default", repeat=0, counted=None):
    """A run of phases, each given as its name and how long its batches took, in ms, and more about it."""
    record = measure.NativeRecord(measure.NativeCase(kind, partitions, store, 1000, ROWS, 5, repeat))
    at, number = 1000.0, 3
    for name, took, *more in parts:
        began, first = at, number
        for each in took:
            at += each / 1000
            record.batches.append(measure.NativeBatch(number, at, each, ROWS))
            number += 1
        made = measure.NativePhase(name, first, number - 1, began, at, steady=name in STEADY)
        record.phases.append(replace(made, **(more[0] if more else {})))
    record.rows = len(record.batches) * ROWS
    record.counted = record.rows if counted is None else counted
    return record


STEADY = {
    measure.BARE, measure.WATCHED, measure.SKEWED, measure.SPREAD, measure.GROWN, measure.DRAINED, measure.GROWN_AGAIN,
    measure.LOST, measure.BEFORE, measure.ONE, measure.TWO,
}  # fmt: skip


def a_live_run(skewed=900.0, spread=600.0, lost=4000.0, **more):
    return a_record(
        (measure.BARE, [500.0] * 3),
        (measure.WATCHED, [550.0] * 5),
        (measure.BARE, [500.0] * 3),
        (measure.MADE, [700.0] * 5, {"moved": 8, "seconds": 2.5}),
        (measure.SKEWED, [skewed] * 5, {"placed": [9, 2, 1]}),
        (measure.SPREADING, [skewed, 1200.0, spread], {"moved": 5, "seconds": 2.0}),
        (measure.SPREAD, [spread] * 5, {"placed": [4, 4, 4]}),
        (measure.GROWN_AGAIN, [spread] * 5),
        (measure.LOSING, [spread, lost, lost, spread, spread], {"seconds": 6.0}),
        **more,
    )


# --- the skew --------------------------------------------------------------------------------


@given(st.integers(1, 200), st.integers(1, 6))
def test_the_first_executor_gets_three_quarters_and_the_others_share_the_rest(partitions, executors):
    names = [str(each) for each in range(executors)]
    found = measure.skewed(partitions, names)
    assert list(found) == list(range(partitions))
    held = Counter(found.values())
    if executors > 1:
        assert held["0"] == partitions * 3 // 4
        rest = [held[each] for each in names[1:]]
        assert max(rest) - min(rest) <= 1


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40))
def test_who_is_let_go_has_about_as_many_as_the_others(owners):
    names = ["0", "1", "2", "3"]
    found, held = measure.typical([str(each) for each in owners], names)
    assert held == owners.count(int(found))
    assert abs(held - len(owners) / 4) == min(abs(owners.count(each) - len(owners) / 4) for each in range(4))


# --- figures ---------------------------------------------------------------------------------

times = st.lists(st.floats(10.0, 5000.0), min_size=1, max_size=20)


@given(times, times)
def test_a_phase_in_figures_is_what_its_batches_took(before, during):
    record = a_record((measure.SKEWED, before), (measure.SPREADING, during))
    found = measure.figures(record)[measure.SPREADING]
    usual = statistics.median(before)
    assert found.batches == len(during)
    assert found.median_ms == statistics.median(during)
    assert (found.worst_ms, found.worst_of_before) == (max(during), max(during) / usual)
    assert found.p99_ms == max(during)  # fewer than a hundred
    assert found.slow == sum(each > measure.BACK * usual for each in during)
    if len(before) > 1:
        # Batches follow one another, so the time between two results is what the later one took.
        usually = statistics.median(before[1:]) / 1000
        assert found.withheld_s == pytest.approx(max(0.0, max(during) / 1000 - usually), abs=1e-4)


@pytest.mark.parametrize(
    ("during", "back"),
    [
        ([100.0, 100.0], 0.0),
        ([100.0, 400.0, 400.0, 110.0, 400.0], 3.0),
        ([400.0, 100.0], 1.0),
        ([100.0, 400.0], math.nan),
    ],
)
def test_it_is_back_with_the_first_usual_batch_after_a_slow_one(during, back):
    record = a_record((measure.GROWN_AGAIN, [100.0] * 3), (measure.LOSING, during))
    assert measure.figures(record)[measure.LOSING].until_back == pytest.approx(back, nan_ok=True)


def test_batches_without_rows_and_those_of_other_phases_do_not_count():
    record = a_record((measure.SKEWED, [100.0] * 3), (measure.SPREADING, [200.0] * 3))
    record.batches += [measure.NativeBatch(7, 2000.0, 9e9, 0), measure.NativeBatch(0, 1.0, 9e9, ROWS)]
    assert measure.figures(record)[measure.SPREADING].worst_ms == 200.0


def test_what_comes_after_several_things_is_held_against_the_last_steady_phase():
    record = a_record((measure.SKEWED, [100.0]), (measure.SPREAD, [200.0]), (measure.GROWING, [400.0]),
                      (measure.DRAINING, [600.0]))  # fmt: skip
    found = measure.figures(record)
    assert found[measure.GROWING].worst_of_before == 2.0
    assert found[measure.DRAINING].worst_of_before == 3.0


def test_phases_of_one_name_are_one():
    found = measure.figures(a_live_run())
    assert found[measure.BARE].batches == 6
    assert measure.ratio(found, measure.WATCHED, measure.BARE, lambda each: each.median_ms) == pytest.approx(1.1)


def test_a_stop_lasts_from_the_last_result_before_to_the_first_after():
    record = a_record((measure.BEFORE, [500.0] * 4), (measure.REFUSED, [], {}), kind="peer")
    last = record.batches[-1]
    stopped, started = last.ended_s + 0.3, last.ended_s + 7.0
    record.phases[1] = replace(record.phases[1], last=last.number + 3, stopped_s=stopped, started_s=started)
    # One batch comes out while the interrupted one is ended, the next after the start.
    record.batches += [
        measure.NativeBatch(last.number + 1, stopped + 2.0, 900.0, ROWS),
        measure.NativeBatch(last.number + 3, started + 1.0, 800.0, ROWS),
    ]
    found = measure.figures(record)[measure.REFUSED]
    assert found.stopped_s == pytest.approx(8.0)
    assert found.withheld_s == pytest.approx(8.0 - 2.3 - 0.5)


def test_what_was_not_measured_is_nan_and_shown_as_a_hyphen():
    record = a_record((measure.SPREADING, []))
    found = measure.figures(record)[measure.SPREADING]
    assert found.batches == 0
    assert all(math.isnan(getattr(found, each.name)) for each in fields(found) if each.name != "batches")
    assert bench.number(found.median_ms) == "-"
    assert math.isnan(measure.ratio({}, measure.SPREAD, measure.SKEWED, lambda each: each.median_ms))


def test_medians_over_runs_leave_out_what_is_missing():
    runs = [a_live_run(spread=each) for each in (400.0, 500.0, 900.0)]
    found = measure.figures_in(runs)["live", 12, "default"]
    assert found[measure.SPREAD].median_ms == 500.0
    assert list(found) == [name for name in measure.PHASES["live"] if name in found]
    runs[2].phases = [each for each in runs[2].phases if each.name != measure.SPREAD]
    assert measure.figures_in(runs)["live", 12, "default"][measure.SPREAD].median_ms == 450.0


# --- records ---------------------------------------------------------------------------------


def test_a_record_survives_being_written():
    record = a_live_run()
    record.events.append({"event": "arrived", "partitions": [[0, 1, 2, 3]]})
    assert measure.NativeRecord.from_dict(json.loads(json.dumps(record.to_dict()))) == record


def test_a_record_is_put_together_from_what_is_told():
    record = measure.NativeRecord(measure.NativeCase("live", 12))
    wanted = a_record((measure.SKEWED, [100.0, 200.0], {"placed": [2, 1]}))
    assert not record.is_right
    told = wanted.to_dict()
    for event in (
        {"event": "phase", "phase": told["phases"][0]},
        {"event": "batches", "batches": told["batches"][:1]},
        {"event": "batches", "batches": told["batches"][1:]},
        {"event": "something else"},
        {"event": "counted", "counted": 200, "rows": 200},
    ):
        record.hear(json.loads(json.dumps(event)))
    assert (record.phases, record.batches) == (wanted.phases, wanted.batches)
    assert record.is_right


# --- cases, table, plot ----------------------------------------------------------------------


def queries(*words):
    return [each.query for each in bench.cases_of(bench.parsed(words))]


def test_the_peer_and_rocksdb_stand_beside_what_is_asked_for():
    both = [("live", 12, "rocksdb"), ("peer", 12, "rocksdb")]
    assert queries() == [("live", 12, "default"), ("live", 48, "default"), *both]
    assert queries("--store", "rocksdb") == [("live", 12, "rocksdb"), ("live", 48, "rocksdb"), both[1]]
    assert queries("--quick") == [("live", 12, "default"), both[1]]
    assert queries("--quick", "--only", "live", "--partitions", "6") == [("live", 6, "default")]
    assert queries("--only", "peer") == both[1:]


def test_options_reach_every_case_and_repeats_are_told_apart():
    cases = bench.cases_of(bench.parsed(["--keys", "7", "--rows", "3", "--batches", "2", "--repeats", "2"]))
    assert {(each.keys, each.rows, each.batches) for each in cases} == {(7, 3, 2)}
    assert [each.repeat for each in cases] == [0] * 4 + [1] * 4
    assert {each.batches for each in bench.cases_of(bench.parsed(["--quick"]))} == {5}


def test_the_table_has_every_phase_and_a_fault_does_not_hide_the_others(tmp_path, capsys):
    live = a_live_run()
    live.phases[5] = replace(live.phases[5], failed="it did not", remarks=["partition 3 is elsewhere"])
    beside = a_live_run(store="rocksdb")
    marks = {"stopped_s": 1001.6, "started_s": 1001.7}
    peer = a_record((measure.BEFORE, [500.0] * 3), (measure.REFUSED, [4000.0, 500.0], marks), kind="peer",
                    store="rocksdb")  # fmt: skip
    assert bench.report([live, beside, peer], tmp_path) == 1
    told = capsys.readouterr().out
    assert all(f"\n{name} " in told for name in {each.name for each in live.phases} | {measure.REFUSED})
    assert "it did not" in told
    assert "partition 3 is elsewhere" in told
    assert told.count(": verified") == 3
    assert "9 + 2 + 1" in told
    said = " ".join(told.split())
    assert "attached / not attached 1.10, spread / skewed 0.67" in said
    assert "undrained 6.67, back after 3 batches" in said
    assert "repartition (rocksdb store) stopped in a batch 3.50 s, 4.0 s from the last result" in said
    assert (tmp_path / "native.png").stat().st_size > 5000


def test_all_is_well_only_where_every_count_is_right(tmp_path, capsys):
    assert bench.report([a_live_run()], tmp_path) == 0
    assert bench.report([a_live_run(counted=1)], tmp_path) == 1
    assert "NOT VERIFIED" in capsys.readouterr().out
    gone = a_live_run()
    gone.failed = "its process ended with 1"
    assert bench.report([gone], tmp_path) == 1


def test_a_run_that_has_told_nothing_is_reported_too(tmp_path, capsys):
    nothing = measure.NativeRecord(measure.NativeCase("live", 12), failed="it did not start")
    assert bench.report([nothing], tmp_path) == 1
    assert "it did not start" in capsys.readouterr().out
