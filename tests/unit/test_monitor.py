"""What is measured of a running query: loads from the workers' reports, rows that wait, and how far time has come."""

import json
import math

import numpy as np
import pyarrow as pa
import pytest

from meander.clock import ManualClock
from meander.engine.driver.commit import Frontier
from meander.engine.driver.monitor import MAX_SAMPLES, WINDOW, Monitor
from meander.engine.driver.run import QueryRun
from meander.engine.driver.settings import Settings
from meander.engine.spark.stream import rows_behind
from meander.engine.worker.bin_numbers import BinNumbers
from meander.engine.worker.messages import TaskReport, Token
from meander.measure import Resources, load_imbalance
from meander.operators.count import Count
from meander.operators.join import Join
from meander.route.schema import schema
from meander.store.entries import OperatorCommit
from meander.store.location import Location
from meander.testing.inprocess import InProcessCluster, InProcessJobs, MemorySink
from meander.testing.stream import InProcessLaunch

BINS = 4
OWNERS = np.array([0, 0, 1, 1])
SIDE = schema("k bigint, ts timestamp")
JOIN, COUNT = Join((SIDE, SIDE), (["k"], ["k"]), within="1s"), Count(SIDE, ["k"])
IDLE = [0, 0, 0, 0]


def report(worker, loads, stored=(IDLE, IDLE), queued=(IDLE, IDLE), busy_ms=100.0, operator=0, state=IDLE):
    """What a worker tells of a version."""
    return TaskReport(
        Token(0, 0, 0), operator, worker, rows=sum(loads), loads=BinNumbers.of(loads),
        stored=tuple(map(BinNumbers.of, stored)), queued=tuple(map(BinNumbers.of, queued)),
        state_rows=BinNumbers.of(state), spent_ms={"busy": busy_ms, "load": 1.0},
    )  # fmt: skip


def counted(worker, loads, state, **more):
    """What a worker of an operator with one input tells."""
    return report(worker, loads, (), (), state=state, **more)


FIGURE_4 = [
    report(0, [3, 4, 0, 0], ([4, 4, 0, 0], IDLE), (IDLE, [3, 4, 0, 0]), busy_ms=350.0),
    report(1, [0, 0, 2, 3], ([0, 0, 2, 1], IDLE), (IDLE, [0, 0, 2, 3]), busy_ms=50.0),
]


def watched(operators, *versions, owners=OWNERS, behind=0):
    """A monitor that was told these reports, a version each second after one that only starts the clock."""
    monitor = Monitor(operators, BINS)
    for number, reports in enumerate(versions):
        monitor.note(number, 1000 * number, reports, [owners] * len(operators), behind)
    return monitor, [(operator, sample) for operator in range(len(operators)) for sample in monitor.samples(operator)]


def test_loads_of_a_join_are_those_of_figure_4():
    monitor, told = watched([JOIN], FIGURE_4, FIGURE_4)
    loads = monitor.loads(0, [3, 4, 2, 3], [0, 1])
    assert loads.rows == [3, 4, 2, 3]
    assert loads.stored == {"left": [4, 4, 2, 1], "right": IDLE}
    assert loads.queued == {"left": IDLE, "right": [3, 4, 2, 3]}
    assert loads.memory == [7, 8, 4, 4]
    assert loads.computing == [12, 16, 4, 3]
    assert loads.gamma == 0.5
    assert loads.load == [9.5, 12, 4, 3.5]
    assert loads.by_worker == {0: 21.5, 1: 7.5}
    assert loads.imbalance == pytest.approx(14 / 29)
    assert loads.arrivals == {0: 7, 1: 5}
    assert loads.service == {0: pytest.approx(20), 1: pytest.approx(100)}
    assert loads.sojourn_s == {0: pytest.approx(1 / 13), 1: pytest.approx(1 / 95)}
    assert [sample.batch for _, sample in told] == [1]


def test_the_first_version_gives_no_sample_for_nobody_knows_how_long_it_stands_for():
    monitor, told = watched([JOIN], FIGURE_4)
    loads = monitor.loads(0, [3, 4, 2, 3], [0, 1])
    assert told == []
    assert loads.rows == [3, 4, 2, 3]
    assert loads.imbalance == 0
    assert loads.by_worker == loads.arrivals == loads.service == loads.sojourn_s == {}
    assert loads.stored == {"left": IDLE, "right": IDLE}


def test_a_version_without_rows_is_no_sample_and_the_next_batch_stands_for_its_time_too():
    idle = [report(0, IDLE), report(1, IDLE)]
    monitor, told = watched([JOIN], FIGURE_4, idle, FIGURE_4)
    assert [(sample.batch, sample.interval_s) for _, sample in told] == [(2, 2.0)]
    assert monitor.loads(0, IDLE, [0, 1]).arrivals == {0: 3.5, 1: 2.5}


def test_versions_in_the_same_millisecond_do_not_divide_by_nothing():
    monitor = Monitor([JOIN], BINS)
    for number in range(3):
        monitor.note(number, 5000, FIGURE_4, [OWNERS])
    assert monitor.loads(0, IDLE, [0, 1]).arrivals == {0: 7000, 1: 5000}


def test_a_worker_that_runs_in_waves_reports_twice_and_counts_once():
    waves = [
        report(0, [3, 0, 0, 0], ([4, 4, 0, 0], IDLE), (IDLE, [3, 0, 0, 0]), busy_ms=200.0),
        report(0, [0, 4, 0, 0], ([4, 4, 0, 0], IDLE), (IDLE, [0, 4, 0, 0]), busy_ms=150.0),
        FIGURE_4[1],
    ]
    _, [(_, whole)] = watched([JOIN], FIGURE_4, FIGURE_4)
    _, [(_, parts)] = watched([JOIN], waves, waves)
    for name in ("stored", "queued"):
        for mine, other in zip(getattr(whole, name), getattr(parts, name), strict=True):
            assert mine.tolist() == other.tolist(), name
    assert parts.rows.tolist() == whole.rows.tolist() == [3, 4, 2, 3]
    assert parts.busy_s == pytest.approx(whole.busy_s)
    assert parts.busy_s == {0: pytest.approx(0.35), 1: pytest.approx(0.05)}


def test_an_operator_with_one_input_has_its_rows_as_load():
    reports = [counted(0, [30, 10, 0, 0], [500, 1, 0, 0]), counted(1, [0, 0, 10, 0], [0, 0, 9, 9000])]
    monitor, _ = watched([COUNT], reports, reports)
    loads = monitor.loads(0, [30, 10, 10, 0], [0, 1])
    assert loads.stored == {"rows": [500, 1, 9, 9000]}
    assert loads.queued == {"rows": [30, 10, 10, 0]}
    assert loads.gamma == 0
    assert loads.load == loads.computing == [30, 10, 10, 0], "what is stored and nobody asks for is no load"
    assert loads.imbalance == pytest.approx(load_imbalance([40, 10]))


def test_operators_of_a_chain_are_measured_apart():
    reports = [
        *FIGURE_4,
        counted(0, [1, 0, 0, 0], [7, 0, 0, 0], operator=1),
        counted(1, [0, 0, 0, 3], [0, 0, 0, 8], operator=1),
    ]
    monitor, told = watched([JOIN, COUNT], reports, reports)
    assert [operator for operator, _ in told] == [0, 1]
    assert monitor.loads(0, IDLE, [0, 1]).imbalance == pytest.approx(14 / 29)
    assert monitor.loads(1, IDLE, [0, 1]).by_worker == {0: 1, 1: 3}


def test_rows_that_wait_are_shared_out_as_the_rows_of_the_batch():
    monitor, _ = watched([JOIN], FIGURE_4, FIGURE_4, behind=24)
    loads = monitor.loads(0, IDLE, [0, 1])
    assert loads.queued == {"left": IDLE, "right": [9, 12, 6, 9]}
    waiting = Resources(([4, 4, 2, 1], IDLE), (IDLE, [9, 12, 6, 9]))
    assert loads.imbalance == pytest.approx(waiting.imbalance(OWNERS.tolist(), [0, 1]))
    assert loads.arrivals == {0: 7, 1: 5}, "what waits has not come in this second"


def test_one_odd_batch_of_a_window_does_not_show():
    odd = [report(0, [900, 0, 0, 0], ([4, 4, 0, 0], IDLE), (IDLE, [900, 0, 0, 0])), FIGURE_4[1]]
    monitor, _ = watched([JOIN], FIGURE_4, FIGURE_4, odd, FIGURE_4, FIGURE_4)
    assert monitor.loads(0, IDLE, [0, 1]).imbalance == pytest.approx(14 / 29)


def test_only_the_last_batches_are_looked_back_on():
    early = [report(0, [900, 0, 0, 0], queued=(IDLE, [900, 0, 0, 0]), busy_ms=1.0), report(1, IDLE)]
    monitor, told = watched([JOIN], FIGURE_4, *[early] * 3, *[FIGURE_4] * WINDOW)
    assert len(told) == 3 + WINDOW
    loads = monitor.loads(0, IDLE, [0, 1])
    assert loads.arrivals == {0: 7, 1: 5}
    assert loads.service[0] == pytest.approx(20)


def test_a_worker_that_gets_rows_faster_than_it_serves_them_has_no_end_of_waiting():
    slow = [report(0, [7, 0, 0, 0], queued=([7, 0, 0, 0], IDLE), busy_ms=1100.0), FIGURE_4[1]]
    monitor, _ = watched([JOIN], slow, slow)
    loads = monitor.loads(0, IDLE, [0, 1])
    assert loads.service[0] < loads.arrivals[0]
    assert loads.sojourn_s[0] == math.inf
    assert loads.sojourn_s[1] < math.inf


def test_sources_are_asked_only_once_somebody_looks_at_samples():
    monitor = Monitor([JOIN], BINS)
    assert not monitor.is_watched
    monitor.loads(0, IDLE, [0, 1])
    assert not monitor.is_watched
    assert monitor.samples(0) == ()
    assert monitor.is_watched


def test_only_so_many_samples_are_kept_and_they_are_the_last():
    _, told = watched([JOIN], *[FIGURE_4] * (MAX_SAMPLES + 3))
    assert [sample.batch for _, sample in told] == list(range(3, MAX_SAMPLES + 3))


def test_a_query_that_is_started_again_goes_on_with_what_was_measured_before(tmp_path):
    clock, cluster = ManualClock(), InProcessCluster(tmp_path / "executors", 2)
    settings = Settings(str(tmp_path / "checkpoint"), 2, BINS)
    jobs = InProcessJobs([COUNT], SIDE, cluster, MemorySink())
    launch = InProcessLaunch([COUNT], Location.of(settings.checkpoint), cluster, jobs, settings, clock, 2)
    run = QueryRun(launch, clock)
    rows = pa.table({"k": [1, 2, 3], "ts": [0, 0, 0]}).cast(SIDE)
    for _ in range(3):
        clock.advance(1.0)
        run.stream.put(rows)
    before = run.view(0).samples
    first = run.driver
    run.relaunch()
    assert run.driver is not first
    assert run.driver.monitor.is_watched
    clock.advance(2.5)
    run.stream.put(rows)
    after = run.view(0).samples
    assert [(sample.batch, sample.interval_s) for sample in after] == [(1, 1.0), (2, 1.0), (3, 2.5)]
    assert after[0] is before[0]
    assert [each.version for each in run.driver.loop.progress] == [0, 1, 2, 3]
    run.stop()


def source(reached, newest):
    return {"sources": [{"description": "a source", "endOffset": reached, "latestOffset": newest}]}


@pytest.mark.parametrize(
    ("progress", "rows"),
    [
        (source('{"t": {"0": 5, "1": 7}}', '{"t": {"0": 9, "1": 7}}'), 4),
        (source({"t": {"0": 5}, "u": {"0": 1}}, {"t": {"0": 6}, "u": {"0": 11}}), 11),
        (source('{"t": {"0": 5}}', '{"t": {"0": 5, "1": 3}}'), 3),
        (source('{"t": {"0": 9}}', '{"t": {"0": 5}}'), 0),
        (source('{"us": 10, "row": 40, "start_us": 7}', '{"us": 20, "row": 100, "start_us": 7}'), 60),
        (source('{"logOffset": 3}', '{"logOffset": 90}'), 0),
        (source('{"t": {"0": 5}}', None), 0),
        (source(None, '{"t": {"0": 5}}'), 0),
        (source("null", "null"), 0),
        (source("12", "90"), 0),
        (source("[1]", "[9]"), 0),
        (source("not JSON", '{"t": {"0": 5}}'), 0),
        (source('{"t": {"0": "5"}}', '{"t": {"0": "9"}}'), 0),
        (source('{"t": 5}', '{"t": 9}'), 0),
        ({"sources": []}, 0),
        ({}, 0),
        (None, 0),
    ],
)
def test_rows_behind_where_offsets_count_rows(progress, rows):
    assert rows_behind(progress) == rows


def test_rows_behind_of_both_sides_add_up():
    left, right = source('{"row": 5}', '{"row": 9}'), source('{"t": {"0": 1}}', '{"t": {"0": 11}}')
    assert rows_behind({"sources": [*left["sources"], *right["sources"]]}) == 14


def test_the_frontier_waits_for_the_input_that_is_behind():
    frontier = Frontier().after([[90, None], [95, None]], lateness=10)
    assert frontier == Frontier(None, (95, None)), "nothing is final before both have been seen"
    frontier = frontier.after([[None, 40]], lateness=10)
    assert frontier == Frontier(30, (95, 40))
    assert frontier.after([[500, None]], lateness=10).frontier == 30
    assert frontier.after([[None, 70], [None, 60]], lateness=10).frontier == 60
    assert frontier.after([[None, 700]], lateness=10).frontier == 85, "now it is the other that is behind"


def test_the_frontier_never_goes_back():
    frontier = Frontier(30, (95, 40))
    assert frontier.after([[3, 2]], lateness=10) == frontier
    assert frontier.after([[None, 45]], lateness=40) == Frontier(30, (95, 45)), "a larger lateness takes nothing back"
    assert frontier.after([], lateness=10) == frontier
    assert Frontier(60, (95, 40)).after([[None, 50]], lateness=0).frontier == 60, "the clock had moved it on"


def test_one_input_needs_nothing_but_its_frontier():
    frontier = Frontier().after([[7], [9]], lateness=2)
    assert frontier == Frontier(7, ())
    assert frontier.after([[8]], lateness=2) == Frontier(7, ())
    assert frontier.after([], lateness=2) == Frontier(7, ())
    assert Frontier().after([], lateness=2) == Frontier()


def test_where_time_stands_survives_a_restart():
    """What is committed is enough to go on: one side came before the restart, the other after it."""
    before = Frontier().after([[95, None]], lateness=5)
    stored = OperatorCommit(before.frontier, (0, 1), newest=before.newest)
    again = OperatorCommit.from_json(json.loads(json.dumps(stored.to_json())))
    assert again == stored
    assert again.newest == (95, None)
    assert Frontier(again.frontier, again.newest).after([[None, 80]], lateness=5) == Frontier(75, (95, 80))


def test_an_operator_with_one_input_is_written_as_before():
    plain = OperatorCommit(7, (0, 1))
    assert "newest" not in plain.to_json()
    assert OperatorCommit.from_json(plain.to_json()) == plain
