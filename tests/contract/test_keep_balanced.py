"""A query that keeps itself balanced: it finds the straggler, moves its bins while rows come, and says why."""

from __future__ import annotations

import pytest

from contract.kinds import words
from contract.runtimes import BINS
from streams import PATIENCE_S, wait_until

pytestmark = pytest.mark.spark

EVERY_WORD = words(f"w{number}" for number in range(200))
"""As many rows for about every bin."""


def test_keep_balanced_decides_with_reasons_and_lightens_the_straggler(runtime):
    case = runtime.start("count", workers=3)
    case.put(EVERY_WORD)
    crowd = {**dict.fromkeys(range(BINS), 0), BINS - 2: 1, BINS - 1: 2}
    assert case.query.move(crowd, schedule="all_at_once").wait(PATIENCE_S)
    balancer = case.query.keep_balanced(alpha=0.5, window=2, rest=1)
    assert balancer.is_active
    case.put(EVERY_WORD)
    (early,) = wait_until(lambda: balancer.decisions, "the first decision")
    assert (early.action, early.bins) == ("stay", 0)
    assert early.reason.endswith("only 1 of the 2 batches of a window were seen")
    case.put(EVERY_WORD)
    act = wait_until(lambda: [each for each in balancer.decisions if each.action != "stay"], "a decision to act")[0]
    assert (act.action, act.operator, act.workers) == ("balance", "0:count", 3)
    assert act.bins > 0
    assert act.imbalance > 0.5
    assert act.reason.startswith(f"LI {act.imbalance:.2f} is above alpha 0.5: worker 0 has ")
    wait_until(lambda: case.events("finished", migration=2), "the end of the migration")
    assert case.query.migration.wait(PATIENCE_S)
    (event,) = case.events("balancer")
    assert (event["reason"], event["action"], event["bins"]) == (act.reason, "balance", act.bins)
    for _ in range(2):
        case.put(EVERY_WORD)
    late = wait_until(lambda: balancer.decision.version == case.query.version and balancer.decision, "a late decision")
    assert late.action == "stay"
    assert late.reason.startswith(f"LI {late.imbalance:.2f} is within alpha 0.5: ")
    assert late.imbalance < 0.5
    assert len(case.events("balancer")) == 1
    balancer.stop()
    assert not balancer.is_active
    case.finish()
