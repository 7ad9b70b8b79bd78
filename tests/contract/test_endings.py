"""How a query ends: by itself, because it is told to, or because it fails; and what its handles say then."""

from __future__ import annotations

import threading

import pytest

import meander as me
from contract.kinds import moments, words
from contract.runtimes import BY_BATCHES
from streams import PATIENCE_S, wait_until

pytestmark = pytest.mark.spark

NOW = {"availableNow": True}


def test_stop_lets_the_batch_that_runs_end(runtime):
    case = runtime.start("count", **BY_BATCHES)
    case.flow()
    assert case.query.await_termination(0.01) is False
    case.gate.entered.clear()
    case.gate.is_open.clear()
    case.add(*case.samples(1))
    assert case.gate.entered.wait(PATIENCE_S)
    stop = threading.Thread(target=case.query.stop)
    stop.start()
    stop.join(0.2)
    assert stop.is_alive()
    assert case.query.version == 0
    case.gate.is_open.set()
    stop.join(PATIENCE_S)
    assert not stop.is_alive()
    assert case.query.version == 1
    assert not case.query.is_active
    assert case.query.await_termination(PATIENCE_S) is True
    assert case.query.exception() is None
    case.finish()  # to stop what has ended does no harm


def test_a_query_over_what_is_there_now_ends_by_itself(runtime):
    case = runtime.start("count", words("abcab"), words("bd"), trigger=NOW)
    assert case.query.await_termination(PATIENCE_S) is True
    assert (case.query.is_active, case.query.exception(), case.query.version) == (False, None, 1)
    case.check()
    case.restart()
    assert case.query.await_termination(PATIENCE_S) is True
    assert case.query.version == 1  # there was nothing to do
    case.check()


def test_the_end_of_the_input_can_be_the_end_of_event_time(runtime):
    rows = moments([("a", 1), ("b", 2), ("a", 3), ("a", 12), ("b", 25)])
    case = runtime.start("windows", rows, trigger=NOW, at_end="close")
    assert case.query.await_termination(PATIENCE_S) is True
    case.check(at_end=True)


def test_a_sink_that_fails_ends_the_query_and_its_batch_comes_again(runtime):
    case = runtime.start("count", **BY_BATCHES)
    case.flow()
    move = case.query.rescale(3, at=1000, keep_executors=True)
    case.await_event("planned")
    case.gate.problem = LookupError("the shelf is full")
    with pytest.raises(LookupError, match="the shelf is full"):
        case.flow()
    with pytest.raises(LookupError, match="the shelf is full"):
        case.query.await_termination(PATIENCE_S)
    assert not case.query.is_active
    assert case.query.exception() is case.gate.problem
    with pytest.raises(me.MigrationFailed, match="the query has ended"):
        move.wait(PATIENCE_S)
    case.stop()
    assert case.query.exception() is case.gate.problem
    case.gate.problem = None
    case.restart()
    case.flow()
    case.finish()


def test_a_sink_that_fails_while_no_rows_come_ends_the_query_too(runtime):
    case = runtime.start("count")
    case.flow()
    case.gate.problem = LookupError("the shelf is full")
    case.query.rescale(3, keep_executors=True)  # bins move with versions without rows
    wait_until(case.query.exception, "the failure")
    for wait in (lambda: case.query.await_termination(2), case.query.process_all_available):
        with pytest.raises(LookupError, match="the shelf is full"):
            wait()
    assert not case.query.is_active
    case.gate.problem = None
    case.restart()
    case.flow()
    case.finish()


def test_an_operator_that_fails_ends_the_query_with_its_traceback(runtime):
    case = runtime.start("fold that refuses")
    case.flow()
    with pytest.raises(me.QueryFailed, match="ArithmeticError: unlucky is one too many"):
        case.put(words(["lucky", "unlucky"]))
    problem = case.query.exception()
    assert isinstance(problem, me.QueryFailed)
    assert "fold (operator 0, worker " in str(problem)
    assert "in count_words" in str(problem)
    with pytest.raises(me.QueryFailed) as ending:
        case.query.await_termination(PATIENCE_S)
    assert ending.value is problem
    assert (case.query.is_active, case.query.version) == (False, 0)
    case.restart(kind="fold")
    case.flow()
    case.finish()


def test_handles_of_a_query_that_has_ended_say_so(runtime):
    case = runtime.start("count", **BY_BATCHES)
    case.flow()
    over = case.query.move({0: 1})
    case.await_event("planned")
    case.flow_until("finished")
    assert over.wait(PATIENCE_S)
    under_way = case.query.move({1: 1, 2: 1}, schedule="fluid")
    case.await_event("planned", migration=2)
    assert under_way.wait(0.01) is False
    case.flow_until("flipped", migration=2)
    balancer = case.query.keep_balanced()
    assert balancer.is_active
    case.stop()
    assert not balancer.is_active
    assert over.wait(PATIENCE_S) is True
    with pytest.raises(me.MigrationFailed, match="ended with 1 of 2 bins moved; started again, it goes on"):
        under_way.wait(PATIENCE_S)
    for wish in (
        lambda query: query.rescale(3),
        lambda query: query.rebalance(),
        lambda query: query.move({0: 0}),
        lambda query: query.keep_balanced(),
    ):
        with pytest.raises(me.QueryFailed, match="the query does not run"):
            wish(case.query)
    case.check()
