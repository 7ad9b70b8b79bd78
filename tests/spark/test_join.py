"""Joins of two streams on Spark: every pair once, whatever comes first and whoever owns the bins."""

from __future__ import annotations

import pyarrow.compute as pc
import pytest

import meander as me
from joins import Case, all_pairs
from meander.errors import InvalidOption
from streams import PATIENCE_S, wait_until

pytestmark = pytest.mark.spark


def test_every_pair_once_while_bins_move(spark, tmp_path):
    case = Case(spark, tmp_path, seed=1, where=pc.field("x") - pc.field("x_right") <= 0.3)
    query = case.start()
    case.feed(0, 1)
    query.process_all_available()
    moves = [query.rescale(3, schedule="batched", max_bins=8)]
    case.feed(2, 3, 4)
    assert moves[0].wait(PATIENCE_S)
    query.process_all_available()
    query.stop()
    query = case.start()
    moves.append(query.rescale(2))
    case.feed(5, 6, 7)
    assert moves[1].wait(PATIENCE_S)
    query.process_all_available()
    query.stop()
    wanted = all_pairs(case.orders, case.taxis, 10, 10)
    xs = dict(zip(case.orders["order"].to_pylist(), case.orders["x"].to_pylist(), strict=True))
    others = case.taxis["x"].to_pylist()
    wanted = {key: n for key, n in wanted.items() if xs[key[1]] - others[key[2]] <= 0.3}
    assert case.found() == wanted
    assert len(wanted) > 500
    assert query.misrouted == 0
    assert all(move.report.bins > 0 for move in moves)


def test_left_rows_without_a_partner_come_once_at_the_end(spark, tmp_path):
    case = Case(spark, tmp_path, seed=2, rows=150, batches=3, cells=300, how="left", within=("1 second", "5 seconds"))
    case.feed(0, 1, 2)
    query = case.start(trigger={"availableNow": True}, at_end="close")
    query.await_termination(PATIENCE_S)
    pairs = all_pairs(case.orders, case.taxis, 1, 5)
    matched = {order for _, order, _ in pairs}
    cells = dict(zip(case.orders["order"].to_pylist(), case.orders["cell"].to_pylist(), strict=True))
    alone = {(cell, order, None): 1 for order, cell in cells.items() if order not in matched}
    assert alone
    assert pairs
    assert case.found() == pairs | alone


def test_state_goes_as_the_frontier_moves_and_the_slower_input_is_waited_for(spark, tmp_path):
    when = {"lateness": "0 seconds", "within": None, "window": "1 second"}
    case = Case(spark, tmp_path, seed=3, rows=200, batches=4, cells=5, **when)
    by_time = [table.sort_by(table.column_names[1]) for table in (case.orders, case.taxis)]
    case.batches = [[table.slice(at * len(table) // 4, len(table) // 4) for at in range(4)] for table in by_time]
    query = case.start()
    # All orders come before the first taxi: nobody is late, for time waits for the taxis.
    for number in range(4):
        case.feeds[0].add(case.batches[0][number])
    query.process_all_available()
    assert query.last_progress["late"] == 0
    for number in range(4):
        case.feeds[1].add(case.batches[1][number])
    query.process_all_available()
    wait_until(lambda: query.last_progress["workers"][0]["state_rows"] < 100, "state to be forgotten")
    assert query.late_rows().num_rows == 0
    orders, taxis = (table.set_column(1, name, pc.floor_temporal(table[name], unit="second"))
                     for table, name in ((case.orders, "ts"), (case.taxis, "at")))  # fmt: skip
    assert case.found() == all_pairs(orders, taxis, 0, 0)
    # Now both have been at the end: an old row is late, and kept aside.
    case.feeds[0].add(by_time[0].slice(0, 3))
    query.process_all_available()
    assert query.late_rows()["left.order"].to_pylist() == by_time[0]["order"].to_pylist()[:3]
    query.stop()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "needs within"),
        ({"within": "1s", "window": "1s"}, "needs within"),
        ({"within": "soon"}, "within is 'soon'"),
        ({"within": "1s", "how": "right"}, "swap the streams"),
        ({"within": "1s", "on": "street"}, "no column 'street'"),
        ({"within": "1s", "on": []}, "on is []"),
        ({"within": "1s", "on": {"order": "taxi"}}, "cast them to the same types"),
        ({"within": "1s", "time": "when"}, "'when'"),
        ({"within": "1s", "where": 3}, "where is"),
        ({"within": "1s", "where": pc.field("nothing") > 1}, "nothing"),
    ],
)
def test_what_cannot_be_joined_is_refused_in_one_sentence(options, sentence, spark, tmp_path):
    case = Case(spark, tmp_path, seed=4, rows=3, batches=1)
    left, right = (me.stream(feed.read(spark)) for feed in case.feeds)
    with pytest.raises(InvalidOption) as told:
        left.join(right, **{"on": "cell", **options})
    assert sentence in str(told.value)
    assert "\n" not in str(told.value)


def test_what_a_reader_could_not_decode_is_a_dead_letter(spark, tmp_path):
    for name, x in (("left", '"no number"'), ("right", "2")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.json").write_text(f'{{"k": 1, "ts": "2026-01-01 10:00:00", "x": {x}}}\n')
    schema = "k bigint, ts timestamp, x bigint, _corrupt_record string"
    left, right = (me.stream(spark.readStream.schema(schema).json(str(tmp_path / name))) for name in ("left", "right"))
    sink = me.sinks.memory()
    query = left.join(right, on="k", within="1s").start(tmp_path / "ck", sink, trigger={"availableNow": True})
    assert query.await_termination(PATIENCE_S)
    (letter,) = query.dead_letters().to_pylist()
    assert "could not be decoded" in letter["reason"]
    assert "no number" in letter["reason"]
    assert sink.to_arrow().num_rows == 0
