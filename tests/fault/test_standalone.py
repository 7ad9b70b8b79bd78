"""Rescaling on a standalone cluster: its executors go when they are drained and come when they are needed."""

from __future__ import annotations

import pytest

from flow import wait_for_move
from streams import executors, wait_until

pytestmark = [pytest.mark.fault, pytest.mark.spark]


def test_executors_of_a_standalone_cluster_go_and_come(flow, cluster):
    master, worker = cluster
    flow = flow(401)
    settings = {"spark__executor__cores": "1", "spark__executor__memory": "1g", "spark__driver__host": "127.0.0.1"}
    wishes = [{"workers": 1, "keep_executors": False}, {"workers": 2, "keep_executors": False}]
    program = flow.start(wishes, master=master, executors=2, spark=settings, quick=True)
    program.wait_for("started")
    before = set(executors(worker))
    assert len(before) == 2
    down = wait_for_move(program, 1)
    assert (down["status"], down["let_go"], len(down["workers"])) == ("done", 1, 1)
    wait_until(lambda: len(set(executors(worker)) & before) == 1, "the executor to go")
    up = wait_for_move(program, 2)
    assert (up["status"], up["came"], len(up["workers"])) == ("done", 1, 2)
    assert len(executors(worker)) == 2
    flow.finish(program)
