"""The arithmetic, the comparing and the telling of ./dev bench nexmark, on made-up batches and rows."""

import csv
import json
import math
import statistics
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meander_lab.benchmarks import nexmark as bench
from meander_lab.benchmarks import nexmark_figures as figures
from meander_lab.benchmarks import nexmark_peers as peers
from meander_lab.benchmarks import nexmark_throughput as throughput
from meander_lab.benchmarks import nexmark_timelines as timelines
from meander_lab.benchmarks.engine_measure import Measured
from meander_lab.benchmarks.migrate_measure import CommittedBatch
from meander_lab.nexmark.generator.config import Config
from meander_lab.nexmark.model import KINDS
from meander_lab.nexmark.queries import QUERIES

# --- what is read, and how fast --------------------------------------------------------------


def test_every_query_of_the_paper_is_there_with_columns_that_events_have():
    assert list(figures.READS) == [f"q{number}" for number in range(1, 9)]
    assert set(figures.READS) <= set(QUERIES)
    for kinds in figures.READS.values():
        for kind, columns in kinds.items():
            assert set(columns) <= set(KINDS[kind].names)
    assert {each.query for each in figures.VARIANTS.values()} == set(figures.READS)
    assert sum(figures.SHARES.values()) == pytest.approx(1)
    assert set(peers.PEERS) | set(peers.REFUSED) == set(figures.READS)


def test_dilated_windows_are_those_of_the_paper():
    hot, sellers = figures.VARIANTS["q5-dilated"], figures.VARIANTS["q8-dilated"]
    assert hot.slide_s / hot.dilation == 1.0  # a report every second, over the last minute
    assert hot.window_s / hot.dilation == 60.0
    assert sellers.window_s == timedelta(hours=12).total_seconds()
    assert sellers.dilation == 79


@given(st.floats(100, 3e6), st.sampled_from([1.0, 60.0, 79.0]))
def test_at_a_whole_rate_event_time_keeps_step_with_real_time(most, dilation):
    rate = figures.whole_rate(most, dilation)
    assert rate <= max(most, dilation)
    assert rate >= min(most, 1e6 * dilation) / 2.5
    config = Config(rate_per_s=max(1, round(rate / dilation)))
    events, seconds = rate * 1000, 1000  # so many come in these seconds of real time
    took_us = events / config.generators * config.delays_us[0]
    assert took_us / 1e6 == pytest.approx(seconds * dilation, rel=1e-9)


def test_auctions_are_open_for_as_long_as_is_asked_for():
    rate, generators = 40_000, 100
    count = figures.VARIANTS["q4"].in_flight(rate, generators, 100)
    opened_per_s = rate * 3 / 50
    assert count * generators / opened_per_s == pytest.approx(20, rel=0.01)
    assert figures.VARIANTS["q7"].in_flight(rate, generators, 100) == 100


def test_what_is_sustained_is_counted_from_commit_to_commit():
    spans = [(0.0, 9.0, 0, 100), (9.0, 10.0, 100, 200), (10.5, 12.0, 200, 300), (12.0, 15.0, 300, 400),
             (15.0, 15.1, 400, 400)]  # fmt: skip
    batches = [CommittedBatch(number, *span) for number, span in enumerate(spans)]
    assert figures.sustained(batches, 2) == pytest.approx(200 / 5)


def test_a_case_takes_as_many_rows_a_batch_whichever_kinds_it_reads():
    for name in figures.VARIANTS:
        case = figures.TimelineCase(name, "batched", limit=10_000)
        read = sum(figures.SHARES[kind] for kind in figures.READS[case.variant.query])
        assert case.per_batch * read == pytest.approx(10_000, rel=0.001)


# --- one run ---------------------------------------------------------------------------------

RATE = 100.0


def a_course(schedule="batched", stop_s=0.0, name="q4", rate=RATE):
    """Batches of half a second; a stop in the move back, which begins at 30 s."""
    ends = [at * 0.5 for at in range(1, 61)]
    while ends[-1] < 50:
        ends.append(ends[-1] + 0.5 + (stop_s if ends[-1] == 31.0 else 0.0))
    batches, first, began = [], 0, 0.0
    for number, ended in enumerate(ends):
        end = max(first, int(began * rate))
        batches.append(CommittedBatch(number, 1000 + began, 1000 + ended, first, end))
        first, began = end, ended
    marks = {"load": 0, "warm": 5, "first": 10, "first_moved": 14, "steady": 18, "move": 30, "moved": 34 + stop_s,
             "end": 48}  # fmt: skip
    told = {"bytes": 4_000_000, "bins": 64, "steps": 4, "state_bytes": 16_000_000, "state_rows": 9}
    case = figures.TimelineCase(name, schedule, rate)
    return figures.TimelineRecord(case, batches, {key: 1000.0 + at for key, at in marks.items()}, told)


def test_the_figures_of_a_run():
    found = figures.figures(a_course(stop_s=3.0))
    # An event waits for the batch that runs and takes part in the next one.
    assert found.steady_max == pytest.approx(1000, abs=15)
    assert found.steady_p50 == pytest.approx(750, abs=15)
    assert found.max == pytest.approx(4000, abs=15)
    assert found.max_of_steady == pytest.approx(4.0, abs=0.05)
    assert found.steady_p50 < found.steady_p99 <= found.steady_max
    assert found.p99 <= found.max
    assert found.duration_s == pytest.approx(7.0)
    assert (found.moved_bins, found.steps, found.moved_bytes) == (64, 4, 4_000_000)


def test_without_a_stop_the_move_is_not_seen():
    found = figures.figures(a_course())
    assert found.max_of_steady == pytest.approx(1.0, abs=0.03)
    assert found.p99_of_steady == pytest.approx(1.0, abs=0.03)


def test_what_was_not_measured_is_nan():
    course = a_course()
    course.batches = course.batches[:5]
    assert math.isnan(figures.figures(course).max)


def test_medians_over_runs_are_taken_for_each_figure():
    runs = [figures.figures(a_course(stop_s=stop)) for stop in (0.0, 1.0, 4.0)]
    assert figures.middle(runs).max == statistics.median(each.max for each in runs)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 12)), min_size=1, max_size=8), st.sampled_from([4, 8, 32]))
def test_the_timeline_is_the_largest_latency_of_what_arrived_in_each_slot(made, rate):
    batches, first, now = [], 0, 100.0
    for number, (rows, quarters) in enumerate(made):
        # A batch begins when its last event is there.
        began = max(now, 100.0 + (first + rows) / rate)
        batches.append(CommittedBatch(number, began, began + quarters / 4, first, first + rows))
        first, now = first + rows, began + quarters / 4
    course = figures.TimelineRecord(
        figures.TimelineCase("q1", "batched", rate), batches, {"load": 100.0, "move": 103.0}
    )
    wanted = {}
    for each in batches:
        for event in range(each.first, each.end):
            at = 100.0 + event / rate
            slot = (at - 103.0) // 0.25 * 0.25
            wanted[slot] = max(wanted.get(slot, 0.0), (each.ended_s - at) * 1000)
    assert dict(figures.timeline(course)) == pytest.approx(wanted)


def test_the_timeline_is_shown_from_when_the_query_has_caught_up():
    course = a_course()
    assert figures.timeline(course)[0][0] == -30.0
    assert figures.shown(course)[0][0] == -25.0
    assert {round((after - before) / 0.25, 6) for (before, _), (after, _) in
            zip(figures.shown(course), figures.shown(course)[1:], strict=False)} == {1.0}  # fmt: skip


def test_a_course_survives_being_written():
    course = a_course()
    assert figures.TimelineRecord.from_dict(json.loads(json.dumps(course.to_dict()))) == course


# --- Spark's logs ----------------------------------------------------------------------------


def entry(*events):
    return "\n".join(["v1", '{"batchWatermarkMs":0}', *(json.dumps({"event": e, "start_ms": 5}) for e in events)])


def test_an_event_is_taken_when_all_kinds_are_past_it():
    assert timelines.event_of(entry(700, 650)) == 650
    assert timelines.event_of(entry(700) + "\n-") == 700


def test_batches_are_read_of_sparks_logs(tmp_path):
    (tmp_path / "offsets").mkdir()
    (tmp_path / "commits").mkdir()
    for number, events in enumerate([(100, 100), (250, 240), (250, 250)]):
        (tmp_path / "offsets" / str(number)).write_text(entry(*events))
        (tmp_path / "commits" / str(number)).write_text("v1\n{}")
    (tmp_path / "offsets" / "3").write_text(entry(900, 900))  # not committed
    taken = timelines.EventCommits(tmp_path)
    taken.close()
    assert [(each.first, each.end) for each in taken.batches] == [(0, 100), (100, 240), (240, 250)]
    assert taken.taken == 250


# --- answers ---------------------------------------------------------------------------------


def stamp(second, zone=UTC):
    return datetime(2015, 7, 15, 0, 0, second, tzinfo=zone)


def sold(rows, zone="UTC"):
    at = pa.array([stamp(second) for _, second in rows], pa.timestamp("us", zone))
    return pa.table({"id": [key for key, _ in rows], "name": ["n"] * len(rows), "starttime": at})


CLOSED = pa.scalar(stamp(36), pa.timestamp("us", "UTC"))


def test_the_same_rows_in_another_order_are_the_same_answer():
    assert throughput.differing("q8", sold([(1, 0), (2, 10)]), sold([(2, 10), (1, 0)], "Etc/UTC"), CLOSED) == ""


def test_a_row_that_comes_twice_is_another_answer():
    told = throughput.differing("q8", sold([(1, 0), (2, 10)]), sold([(2, 10), (1, 0), (1, 0)]), CLOSED)
    assert told == "another answer: 0 rows missing, 1 too many"
    told = throughput.differing("q8", sold([(1, 0), (2, 10)]), sold([(3, 10), (1, 0)]), CLOSED)
    assert told == "another answer: 1 rows missing, 1 too many"


def test_of_ours_only_windows_count_that_the_peer_has_closed():
    ours = sold([(1, 0), (2, 20), (3, 30)])  # windows to 10, 30 and 40 s; the watermark is at 36 s
    assert throughput.differing("q8", ours, sold([(1, 0), (2, 20)]), CLOSED) == ""
    assert "too many" in throughput.differing("q8", ours, sold([(1, 0), (2, 20), (3, 30)]), CLOSED)


def test_a_bid_belongs_to_the_window_that_it_falls_into():
    rows = pa.table({"dateTime": pa.array([stamp(0), stamp(9), stamp(10)], pa.timestamp("us", "UTC"))})
    assert [each.second for each in throughput.ends("q7", rows).to_pylist()] == [10, 10, 20]
    assert throughput.ends("q1", rows) is None


def test_nothing_is_compared_with_an_empty_answer():
    assert "empty" in throughput.differing("q8", sold([]), sold([]), CLOSED)


def test_sparks_words_are_cut_before_its_plan():
    said = "[WHY] Not supported.;\nJoin Inner\n:- Aggregate"
    assert peers.in_short(said) == "[WHY] Not supported."
    assert len(peers.in_short("x" * 1000)) == 400


def test_a_query_is_refused_only_where_every_output_mode_is():
    refused = dict.fromkeys(peers.MODES, "why")
    assert throughput.note_of(refused) == "append: why; update: why; complete: why"
    assert throughput.note_of({"append": "why"}) == ""


# --- tables and files ------------------------------------------------------------------------


def a_run(rows, *times_ms):
    return Measured(
        rows, list(times_ms), {"triggerExecution": 5.0, "addBatch": 4.0}, {"operate": 3.0}, {}, 7, 2_000_000
    )


def test_rates_are_over_all_batches_and_ratios_over_runs_in_turn():
    mine = throughput.ThroughputLine("q3", "ours", [a_run(1000, 100, 300), a_run(1000, 50, 150)])
    theirs = throughput.ThroughputLine("q3", "Spark", [a_run(1000, 400, 400), a_run(1000, 300, 300)])
    assert mine.rates == pytest.approx([5000, 10_000])
    assert mine.times_as_fast(theirs) == pytest.approx(statistics.median([2.0, 3.0]))
    cells = throughput.compared([mine, theirs])
    assert cells[0] == ["q3", "ours", "1,000", "7,500", "125", "300", ""]
    assert cells[1][-1] == "2.50x"
    assert throughput.spent([mine, theirs]) == [["q3", "5", "4", "3", "", "", "", "7", "2.0"]]


def test_a_peer_that_was_not_timed_says_why():
    (cells,) = throughput.compared([throughput.ThroughputLine("q7", "Spark", note="another answer")])
    assert cells == ["q7", "Spark", "", "", "", "", "another answer"]
    assert throughput.ThroughputLine("q7", "Spark", note="another answer").to_dict()["note"] == "another answer"


def test_cases_are_those_that_are_asked_for():
    every = bench.cases_of(bench.parsed([]))
    assert len(every) == 2 * len(figures.VARIANTS)
    assert {case.schedule for case in every} == {"batched", "all_at_once"}
    quick = bench.cases_of(bench.parsed(["--quick"]))
    assert {case.name for case in quick} == set(bench.QUICKLY)
    assert all(case.steady_s < every[0].steady_s for case in quick)
    chosen = bench.cases_of(bench.parsed(["--quick", "--queries", "q3,q8-dilated", "--schedules", "batched"]))
    assert [(case.name, case.schedule) for case in chosen] == [("q3", "batched"), ("q8-dilated", "batched")]
    assert {case.steady_s for case in bench.cases_of(bench.parsed(["--seconds", "7"]))} == {7.0}
    found = figures.at_rates(every, {"q3": 500.0})
    assert [(case.name, case.rate) for case in found] == [("q3", 500.0)] * 2


@pytest.mark.parametrize("wrong", [["--queries", "q9"], ["--only", "latency"], ["--schedules", "fluid"]])
def test_what_there_is_not_is_refused_with_what_there_is(wrong, capsys):
    with pytest.raises(SystemExit):
        bench.parsed(wrong)
    assert "there are:" in capsys.readouterr().err


def test_a_table_files_and_plots_of_made_up_courses(tmp_path, capsys):
    courses = [a_course("batched", 0.1), a_course("all_at_once", 3.0), a_course(name="q5-dilated")]
    assert bench.report(courses, tmp_path) == 0
    told = capsys.readouterr().out
    assert "all_at_once" in told
    with (tmp_path / "timelines.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["query"], row["schedule"]) for row in rows] == [
        ("q4", "batched"), ("q4", "all_at_once"), ("q5-dilated", "batched"),
    ]  # fmt: skip
    assert float(rows[1]["max_of_steady"]) == pytest.approx(4.0, abs=0.05)
    with (tmp_path / "latencies.csv").open() as file:
        assert {row["query"] for row in csv.DictReader(file)} == {"q4", "q5-dilated"}
    drawn = {each.name: each.stat().st_size for each in tmp_path.glob("*.png")}
    assert set(drawn) == {"q4.png", "q5-dilated.png"}
    assert min(drawn.values()) > 5000


def test_a_run_that_failed_is_told_and_makes_the_whole_fail(tmp_path, capsys):
    failed = figures.TimelineRecord(figures.TimelineCase("q6", "batched", RATE), failed="it did not catch up")
    assert bench.report([a_course(), failed], tmp_path) == 1
    assert "it did not catch up" in capsys.readouterr().out
