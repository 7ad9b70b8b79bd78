"""Joins of two streams without Spark: every pair once, whatever comes first and whoever owns the bins."""

from __future__ import annotations

import pyarrow.compute as pc
import pytest

import meander as me
from joins import ORDERS, TAXIS, Rows, all_pairs
from meander.errors import InvalidOption


def joined(**options):
    left, right = (me.stream(me.testing.source(schema)) for schema in (ORDERS, TAXIS))
    return left.join(right, **{"on": "cell", "within": "10 seconds", "lateness": "2 minutes", **options})


def pairs_of(h):
    """What has come out: cell, order and taxi, each once."""
    pairs = [(row["cell"], row["order"], row["taxi"]) for row in h.output()]
    assert len(pairs) == len(set(pairs))
    return set(pairs)


def test_every_pair_once_while_bins_move():
    case = Rows(seed=1)
    with me.testing.harness(joined(where=pc.field("x") - pc.field("x_right") <= 0.3), bins=32) as h:

        def feed(*numbers):
            for number in numbers:
                h.batch(**case.batch(number))

        feed(0, 1)
        moves = [h.query.rescale(3, schedule="batched", max_bins=8)]
        feed(2, 3, 4)
        h.finish(moves[0])
        h.restart()
        moves.append(h.query.rescale(2))
        feed(5, 6, 7)
        h.finish(moves[1])
        xs = dict(zip(case.orders["order"].to_pylist(), case.orders["x"].to_pylist(), strict=True))
        others = case.taxis["x"].to_pylist()
        wanted = {key for key in all_pairs(case.orders, case.taxis, 10, 10) if xs[key[1]] - others[key[2]] <= 0.3}
        assert pairs_of(h) == wanted
        assert len(wanted) > 500
        assert h.query.misrouted == 0
    assert all(move.report.bins > 0 for move in moves)


@pytest.mark.parametrize("how", ["left", "right", "full"])
def test_rows_without_a_partner_come_once_at_the_end_while_bins_move(how):
    case = Rows(seed=2, rows=150, batches=4, cells=300)
    with me.testing.harness(joined(how=how, within=("1 second", "5 seconds"))) as h:
        h.batch(**case.batch(0))
        move = h.query.rescale(3, schedule="batched", max_bins=2)
        h.batch(**case.batch(1))
        h.batch(**case.batch(2))
        h.finish(move)
        h.restart()
        h.batch(**case.batch(3))
        h.end()
        pairs = set(all_pairs(case.orders, case.taxis, 1, 5))
        orders, taxis = (
            set(zip(table["cell"].to_pylist(), table[name].to_pylist(), strict=True))
            for table, name in ((case.orders, "order"), (case.taxis, "taxi"))
        )
        lefts = {(cell, order, None) for cell, order in orders - {(cell, order) for cell, order, _ in pairs}}
        rights = {(cell, None, taxi) for cell, taxi in taxis - {(cell, taxi) for cell, _, taxi in pairs}}
        assert pairs
        assert lefts
        assert rights
        assert pairs_of(h) == pairs | {"left": lefts, "right": rights, "full": lefts | rights}[how]
        assert move.report.bins > 0


def test_state_goes_as_the_frontier_moves_and_the_slower_input_is_waited_for():
    case = Rows(seed=3, rows=200, batches=4, cells=5)
    by_time = [table.sort_by(table.column_names[1]) for table in (case.orders, case.taxis)]
    orders, taxis = ([table.slice(at * len(table) // 4, len(table) // 4) for at in range(4)] for table in by_time)
    with me.testing.harness(joined(lateness="0 seconds", within=None, window="1 second"), bins=32) as h:
        # All orders come before the first taxi: nobody is late, for time waits for the taxis.
        for rows in orders:
            h.batch(left=rows)
        assert h.query.last_progress.late == 0
        for rows in taxis:
            h.batch(right=rows)
        h.idle()
        assert sum(part.state_rows for part in h.query.recent_ticks[-1].workers) < 200
        assert h.late() == []
        whole = (table.set_column(1, name, pc.floor_temporal(table[name], unit="second"))
                 for table, name in ((case.orders, "ts"), (case.taxis, "at")))  # fmt: skip
        assert pairs_of(h) == set(all_pairs(*whole, 0, 0))
        # Now both have been at the end: an old row is late, and kept aside.
        h.batch(left=by_time[0].slice(0, 3))
        assert [row["left.order"] for row in h.late()] == by_time[0]["order"].to_pylist()[:3]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"within": None}, "needs within"),
        ({"within": "1s", "window": "1s"}, "needs within"),
        ({"within": "soon"}, "within is 'soon'"),
        ({"how": "cross"}, "inner, left, right or full"),
        ({"on": "street"}, "no column 'street'"),
        ({"on": []}, "on is []"),
        ({"on": {"order": "taxi"}}, "cast them to the same types"),
        ({"time": "when"}, "'when'"),
        ({"where": 3}, "where is"),
        ({"where": pc.field("nothing") > 1}, "nothing"),
    ],
)
def test_what_cannot_be_joined_is_refused_in_one_sentence(options, sentence):
    with pytest.raises(InvalidOption) as refusal:
        joined(**options)
    assert sentence in str(refusal.value)
    assert "\n" not in str(refusal.value)
