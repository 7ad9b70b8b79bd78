"""The matrix of faults can be trusted: its recounts are right, its oracle notices what is wrong, no cell is forgotten.

The engine in one process, where nothing fails, agrees with the recounts.
"""

from __future__ import annotations

import os
from collections import Counter
from itertools import product

import pyarrow.parquet as pq
import pytest

import meander as me
from fault.matrix import namespaces
from fault.matrix.oracle import check, rows_of
from fault.matrix.phases import PHASES
from fault.matrix.table import FAULTS, SINKS, Results, as_markdown, cells, left_out
from fault.matrix.workloads import WORKLOADS, Input


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_query_that_is_left_alone_agrees_with_the_recount(name):
    workload = WORKLOADS[name]
    given = Input(workload, seed=3)
    streams = [me.stream(me.testing.source(schema)) for schema in workload.inputs]
    output = []
    with me.testing.harness(workload.describe(*streams), workers=2, bins=16) as h:
        for _ in range(9):
            batch = given.next()
            before = len(h.output())
            h.batch(batch[0]) if len(batch) == 1 else h.batch(left=batch[0], right=batch[1])
            h.idle()
            output.append(rows_of(h.output()[before:], workload.columns))
        expected = workload.expect(given.batches)
        if not workload.is_by_batch:
            output = [sum(output, Counter())]
        assert output == list(expected.output)
        assert sum(map(len, output)) > 30
        for (operator, table), columns in workload.state.items():
            assert rows_of(h.state(operator, table), columns) == expected.states[operator, table]
        assert len(h.late()) == expected.late


@pytest.fixture
def counted(tmp_path):
    """A checkpoint and a sink in which everything is as it must be, and the batches they are of."""
    workload = WORKLOADS["count"]
    given = Input(workload, seed=4)
    stream = workload.describe(me.stream(me.testing.source(workload.inputs[0])))
    (tmp_path / "out").mkdir()
    with me.testing.harness(stream, workers=2, bins=16, checkpoint=tmp_path / "ck" / "q") as h:
        for number in range(4):
            h.batch(given.next()[0])
            pq.write_table(h.sink.versions[number], tmp_path / "out" / f"{number}.parquet")
    return tmp_path, workload, given.batches


def test_the_oracle_finds_nothing_where_nothing_is_wrong(counted):
    assert check(*counted, "callable")["batches"] == 4


def lose_a_row(root):
    file = root / "out" / "2.parquet"
    pq.write_table(pq.read_table(file).slice(1), file)


def repeat_a_version(root):
    (root / "out" / "4.parquet").write_bytes((root / "out" / "3.parquet").read_bytes())


def empty_a_version(root):
    file = root / "out" / "1.parquet"
    pq.write_table(pq.read_table(file).slice(0, 0), file)


def leave_something(root):
    (root / "out" / "_half").touch()


def flip_a_bit(root):
    file = max((root / "ck" / "q" / "manifests").iterdir())
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lose_a_row, "1 rows are missing"),
        (repeat_a_version, "has rows of 5 batches"),
        (empty_a_version, "sink, batch 1"),
        (leave_something, "_half"),
        (flip_a_bit, "restore"),
    ],
)
def test_the_oracle_notices(counted, harm, words):
    harm(counted[0])
    with pytest.raises((AssertionError, me.MeanderError), match=words):
        check(*counted, "callable")


def test_the_oracle_notices_a_batch_that_the_state_lacks(counted):
    root, workload, batches = counted
    with pytest.raises(AssertionError, match="the sink has rows of 4 batches, and 5 emitted any"):
        check(root, workload, [*batches, batches[0]], "callable")


def test_every_fault_meets_every_phase_or_says_why_not():
    known = {(each.fault, each.phase) for each in cells()}
    for fault, phase in product(FAULTS, PHASES):
        assert ((fault, phase) in known) != bool(FAULTS[fault].why_not(phase))
    assert {(each.operator, each.sink) for each in cells()} == set(product(WORKLOADS, SINKS))


def test_a_machine_that_makes_no_namespaces_leaves_those_faults_out_and_says_so(tmp_path, monkeypatch):
    for command in ("ip", "unshare", "nsenter"):
        (tmp_path / command).write_text("#!/bin/sh\necho Operation not permitted >&2\nexit 1\n")
        (tmp_path / command).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    namespaces.why_not.cache_clear()
    try:
        reasons = dict(left_out())
        assert set(reasons) == {name for name in FAULTS if "cut," in name}
        assert set(reasons.values()) == {"no namespaces can be made here: Operation not permitted"}
        assert not [each for each in cells() if "cut," in each.fault]
    finally:
        namespaces.why_not.cache_clear()


def test_results_are_taken_up_again_and_shown(tmp_path):
    results = Results(tmp_path / "results.jsonl")
    first, second, *_ = cells()
    results.add(first, {"result": "held", "seconds": 20})
    results.add(second, {"result": "broken", "seconds": 20, "why": "a row is missing"})
    assert results.held_cells() == [first]
    left = results.open_cells()
    assert first not in left
    assert left[0] == second
    table = as_markdown(results.all())
    assert "1 of" in table
    assert "1 broken" in table
    results.add(second, {"result": "held", "seconds": 20})
    assert "0 broken" in as_markdown(results.all())
