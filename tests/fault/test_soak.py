"""A short soak: everything is checked but growth, which is printed. `./dev soak` runs a long one."""

from __future__ import annotations

import pytest

from fault.soak.__main__ import as_text
from fault.soak.soak import Plan, Soak

pytestmark = [pytest.mark.spark, pytest.mark.fault, pytest.mark.soak]


def test_two_queries_are_rescaled_and_killed(tmp_path):
    outcome = Soak(Plan(minutes=4, seed=301), tmp_path).run()
    print(as_text(outcome))
    assert set(outcome.kills) >= {"executor", "Python worker", "driver"}
    assert min(compared["batches"] for compared in outcome.compared.values()) > 10
