"""A driver that sleeps while another one takes over: awake again, it commits nothing."""

from __future__ import annotations

import json
import signal

import pytest

from streams import kill, output_files, wait_until

pytestmark = [pytest.mark.fault, pytest.mark.spark]


def epochs(root) -> list[tuple[int, str]]:
    """The epoch and kind of every entry of the log, in order."""
    found = []
    for path in sorted((root / "ck" / "manifests").glob("*.json")):
        text = path.read_text()
        entry = json.loads(text[text.index("{") : text.rindex("}") + 1])
        found.append((entry["epoch"], entry["kind"]))
    return found


@pytest.mark.soak
@pytest.mark.parametrize("moment", ["in its sink", "in its operator"])
def test_a_sleeping_driver_is_fenced(case, moment):
    case = case(batches=7, rows=500, seed=107)
    operator = "count" if moment == "in its sink" else "spin"
    first = case.start(sink_s=1.0, operator=operator)
    first.wait_for("sink", 2)
    if operator == "spin":
        first.wait_for("sink", 2)
        for mark in case.signals.iterdir():
            mark.unlink()
        wait_until(lambda: list(case.signals.iterdir()), "the operator to run")
    asleep = first.tree()
    for pid in asleep:
        kill(pid, signal.SIGSTOP)
    before = len(epochs(case.root))

    second = case.start(sink_s=1.0, operator=operator)
    second.wait_for("sink", 2)
    for pid in asleep:
        kill(pid, signal.SIGCONT)
    assert first.wait() == 3, first.text()
    (failed,) = first.told("failed")
    assert failed["kind"] == "Fenced", failed
    assert "\n" not in failed["message"]
    case.finish(second)

    log = epochs(case.root)
    claims = [epoch for epoch, kind in log if kind == "claim"]
    assert len(claims) == 2
    assert {epoch for epoch, _ in log[before:]} == {claims[1]}


def test_a_driver_that_wakes_in_its_sink_touches_no_committed_output(case):
    case = case(batches=5, rows=500, seed=108)
    first = case.start(sink_s=1.0)
    first.wait_for("sink", 2)
    asleep = first.tree()
    for pid in asleep:
        kill(pid, signal.SIGSTOP)
    case.finish(case.start())
    committed = output_files(case.root / "out")

    for pid in asleep:
        kill(pid, signal.SIGCONT)
    assert first.wait() == 3, first.text()
    (failed,) = first.told("failed")
    assert failed["kind"] == "Fenced", failed
    assert output_files(case.root / "out") == committed
    case.check()
