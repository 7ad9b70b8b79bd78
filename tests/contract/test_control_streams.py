"""Moves that come as data: a stream of batch, bin and worker beside the stream of rows."""

from __future__ import annotations

import pyarrow as pa
import pytest

import meander as me
from contract.cases import BINS, BY_BATCHES, CONTROL
from contract.runtimes import ON_SPARK

pytestmark = pytest.mark.spark


def test_a_control_stream_moves_bins_at_their_batches(runtime):
    case = runtime.start("count", control=CONTROL, **BY_BATCHES)
    case.flow()
    nonsense = (3, BINS, 1)
    case.steer((3, 0, 1), (4, 0, 0), (3, BINS - 1, 0), nonsense)
    case.await_event("accepted")
    case.flow()
    case.steer((4, 5, 1))  # what came before is not forgotten for it
    case.await_event("accepted", rows=[[4, 0, 5, 1]])
    owners = {}
    for _ in range(3):
        case.flow()
        owners[case.query.last_progress.batch] = tuple(case.assignment[bin_] for bin_ in (0, 5, BINS - 1))
    assert owners == {2: (0, 0, 1), 3: (1, 0, 0), 4: (0, 1, 0)}
    (event,) = case.events("refused")
    assert event["reason"] == f"there is no bin {BINS}: the bins are 0 to {BINS - 1}"
    case.steer((1, 1, 1), (6, 1, 2))  # for a batch that is over, and to a worker that is not there yet
    case.await_event("accepted", rows=[[6, 0, 1, 2]])
    assert case.events("refused")[-1]["reason"] == "batch 1 has passed: the last one was 4; name a later batch"
    case.flow()
    assert case.assignment[1] == 0
    case.flow()
    assert case.assignment[1] == 2
    case.finish()


@pytest.mark.parametrize("runtime", ON_SPARK, indirect=True)
def test_rows_that_are_in_no_journal_when_the_query_stops_are_read_again(runtime):
    case = runtime.start("count", control=CONTROL, **BY_BATCHES)
    case.flow()
    case.steer((2, 0, 1))
    case.await_event("accepted")
    case.stop()
    case.restart()
    case.await_event("accepted")
    case.flow()
    assert case.assignment[0] == 0
    case.flow()
    assert case.assignment[0] == 1
    case.finish()


@pytest.mark.parametrize("runtime", ON_SPARK, indirect=True)
def test_a_control_stream_without_its_columns_is_refused(runtime):
    with pytest.raises(me.InvalidOption, match="control needs the columns batch, bin, worker"):
        runtime.start("count", control=pa.schema([("bin", pa.int64()), ("worker", pa.int64())]))
