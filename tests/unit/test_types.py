import pytest

from meander import Assignment, InvalidPlan, Move
from meander.types import Run, is_contiguous, runs


def test_runs_and_contiguity():
    assert runs([4, 4, 0, 4]) == [Run(0, 2, 4), Run(2, 3, 0), Run(3, 4, 4)]
    assert runs([]) == []
    assert is_contiguous([3, 3, 1, 2])
    assert not is_contiguous([3, 1, 3])


def test_an_assignment_changes_only_by_making_a_new_one():
    now = Assignment.initial([0, 0, 1], batch=5)
    later = now.with_flips([Move(1, 0, 2, 64), Move(2, 1, 2, 64)], batch=31)
    assert now.owner == (0, 0, 1)
    assert later.owner == (0, 2, 2)
    assert later.since == (5, 31, 31)
    assert later.workers == (0, 2)
    assert later.bins_of(2) == (1, 2)


def test_a_flip_from_the_wrong_owner_names_bin_owner_and_batch():
    now = Assignment.initial([0, 0, 5], batch=31)
    with pytest.raises(InvalidPlan, match="bin 2 belongs to worker 5 since batch 31, not to worker 2"):
        now.with_flips([Move(2, 2, 3, 1)], batch=40)


def test_a_flip_into_the_past_or_of_no_bin_is_refused():
    now = Assignment.initial([0, 1], batch=31)
    with pytest.raises(InvalidPlan, match="earlier batch 30"):
        now.with_flips([Move(0, 0, 1, 1)], batch=30)
    with pytest.raises(InvalidPlan, match="no bin 2"):
        now.with_flips([Move(2, 0, 1, 1)], batch=40)
