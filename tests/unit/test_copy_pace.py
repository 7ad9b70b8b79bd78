"""How long workers may copy in a version: as long as others keep it waiting, and a little more."""

import numpy as np
import pytest

from meander.engine.driver.copy_pace import (
    COPY_SHARE,
    FEWEST_MS,
    FEWEST_VERSIONS,
    MOST_BYTES,
    MOST_MS,
    UNMEASURED_MS,
    CopyPace,
)
from meander.engine.worker.messages import TaskReport, Token
from meander.migration.orders import Orders
from meander.migration.steps import COPY_BYTES

NOTHING = Orders()
SIZES = [np.array([1 << 20, 3 << 20, 1 << 20])]


def report(worker, busy, copy=0.0, rows=10, copied=0, operator=0):
    spent = {"busy": busy + copy, "copy": copy}
    return TaskReport(Token(0, 0, 1), operator, worker, rows=rows, copied=copied, spent_ms=spent)


def noted(*versions, orders=NOTHING):
    """What is known after these versions, each as often as it takes to be believed."""
    pace = CopyPace()
    for took, reports in [version for version in versions for _ in range(FEWEST_VERSIONS)]:
        pace.note(took, reports, orders, lambda: SIZES)
    return pace


def test_before_enough_is_measured_there_is_a_usual_time():
    """The first version of a run reads all state: what comes after it is not like that."""
    pace = CopyPace()
    assert pace.bytes == COPY_BYTES
    for _ in range(FEWEST_VERSIONS):
        assert pace.allowed_ms((0, 0)) == UNMEASURED_MS
        pace.note(40_000.0, [report(0, 39_000.0)], NOTHING, lambda: SIZES)
    assert pace.allowed_ms((0, 0)) != UNMEASURED_MS


def test_who_waits_for_the_slowest_copies_meanwhile_and_all_a_share_of_a_version():
    pace = noted((1000.0, [report(0, 400.0), report(1, 100.0)]))
    assert pace.allowed_ms((0, 0)) == pytest.approx(1000 * COPY_SHARE)
    assert pace.allowed_ms((0, 1)) == pytest.approx(300 + 1000 * COPY_SHARE)
    assert pace.allowed_ms((0, 7)) == pytest.approx(400 + 1000 * COPY_SHARE), "a new one has nothing else to do"


def test_what_copies_have_added_does_not_make_room_for_longer_ones():
    steady = noted((1000.0, [report(0, 400.0), report(1, 100.0)]))
    copying = noted((1500.0, [report(0, 400.0), report(1, 100.0, copy=800.0)]))
    for worker in (0, 1):
        assert copying.allowed_ms((0, worker)) == pytest.approx(steady.allowed_ms((0, worker)))


def test_a_version_without_rows_says_nothing_about_one_with_rows():
    pace = noted((1000.0, [report(0, 400.0)]), (5.0, [report(0, 1.0, rows=0)]))
    assert pace.allowed_ms((0, 0)) == pytest.approx(1000 * COPY_SHARE)


def test_the_share_is_that_of_all_operators():
    pace = noted((1000.0, [report(0, 100.0), report(0, 100.0, operator=1)]))
    assert pace.allowed_ms((1, 0)) == pytest.approx(1000 * COPY_SHARE / 2)


@pytest.mark.parametrize(("took", "allowed"), [(1.0, FEWEST_MS), (1e9, MOST_MS)])
def test_there_is_a_least_and_a_most(took, allowed):
    assert noted((took, [report(0, 0.5)])).allowed_ms((0, 0)) == allowed


def test_as_many_bytes_are_asked_for_as_were_copied_in_such_a_time():
    orders = Orders(copied={(0, 1): (0, 1)})
    seen = [report(0, 400.0), report(1, 100.0, copy=10.0, copied=2)]  # 4 MiB in 10 ms
    pace = noted((1000.0, seen), orders=orders)
    assert pace.bytes == pytest.approx((4 << 20) / 10 * pace.allowed_ms((0, 1)))
    slow = [report(0, 400.0), report(1, 100.0, copy=1000.0, copied=1)]
    assert noted((1000.0, slow), orders=orders).bytes == COPY_BYTES
    fast = [report(0, 400.0), report(1, 100.0, copy=0.001, copied=2)]
    assert noted((1000.0, fast), orders=orders).bytes == MOST_BYTES
