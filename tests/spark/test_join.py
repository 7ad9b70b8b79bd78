"""Joins of two streams on Spark: two sources become one, and every row of either has its say."""

from __future__ import annotations

import pytest

import meander as me
from joins import Case, all_pairs
from streams import PATIENCE_S

pytestmark = pytest.mark.spark


def test_rows_of_both_sides_without_a_partner_come_once_at_the_end(spark, tmp_path):
    case = Case(spark, tmp_path, seed=2, rows=150, batches=3, cells=300, how="full", within=("1 second", "5 seconds"))
    case.feed(0, 1, 2)
    query = case.start(trigger={"availableNow": True}, at_end="close")
    query.await_termination(PATIENCE_S)
    pairs = all_pairs(case.orders, case.taxis, 1, 5)
    matched = {order for _, order, _ in pairs}, {taxi for _, _, taxi in pairs}
    cells = [
        zip(table["cell"].to_pylist(), table[name].to_pylist(), strict=True)
        for table, name in ((case.orders, "order"), (case.taxis, "taxi"))
    ]
    lefts = {(cell, order, None): 1 for cell, order in cells[0] if order not in matched[0]}
    rights = {(cell, None, taxi): 1 for cell, taxi in cells[1] if taxi not in matched[1]}
    assert pairs
    assert lefts
    assert rights
    assert case.found() == pairs | lefts | rights


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
