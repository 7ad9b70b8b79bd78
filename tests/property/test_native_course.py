"""A native migration against a scheduler that does as it likes: it always ends, in order, and tells the truth."""

from hypothesis import given, settings
from hypothesis import strategies as st

from meander.migration.steps import Shift, Step
from meander.native.course import Arrived, Course, Finished, GivenUp, Rules, Seen, Sight, Steer

EXECUTORS = range(4)


@st.composite
def migrations(draw):
    owners = draw(st.lists(st.sampled_from(EXECUTORS), min_size=1, max_size=12))
    moving = draw(st.lists(st.sampled_from(range(len(owners))), unique=True))
    shifts = [Shift(0, each, owners[each], draw(st.sampled_from(EXECUTORS)), 1) for each in moving]
    cuts = sorted(draw(st.lists(st.integers(0, len(shifts)), max_size=4)))
    ends = [0, *cuts, len(shifts)]
    return owners, [Step(at, tuple(shifts[ends[at] : ends[at + 1]])) for at in range(len(ends) - 1)]


@given(migrations(), st.randoms(use_true_random=False), st.integers(1, 4), st.integers(0, 3))
@settings(max_examples=400, deadline=None)
def test_every_migration_ends_and_every_partition_is_accounted_for(migration, rng, tries, patience):
    owners, steps = migration
    course = Course(steps, Rules(tries=tries, snapshot_batches=patience, fresh_bytes=0))
    places, alive = list(owners), set(EXECUTORS)
    steered: set[int] = set()
    resolved: dict[int, object] = {}
    bound = 10 + sum(len(step.shifts) + patience + tries * 4 for step in steps) * 4
    for batch in range(bound):
        for each, place in enumerate(places):
            if place not in alive or rng.random() < 0.1:  # stolen by an executor without work
                places[each] = rng.choice(sorted(alive))
        ran = {(0, each): Sight(place) for each, place in enumerate(places) if rng.random() < 0.8}
        stale = {key: rng.randint(0, 1) for key in course.concerned}
        before = course.at
        told = course.on(Seen(batch, ran, frozenset(alive), stale))
        for each in told:
            if isinstance(each, Arrived | GivenUp):
                assert each.shift.bin not in resolved
                resolved[each.shift.bin] = each
                if isinstance(each, Arrived):
                    assert ran[0, each.shift.bin].worker == each.shift.target
                    assert each.shift.bin in steered
            if isinstance(each, Steer):
                # All of them belong to the step being taken, and every one of the steps before is settled.
                mine = {shift.bin for shift in steps[course.at].shifts}
                assert {shift.bin for shift in each.shifts} <= mine - set(resolved)
                earlier = {shift.bin for step in steps[: course.at] for shift in step.shifts}
                assert earlier <= set(resolved)
                for shift in each.shifts:
                    steered.add(shift.bin)
                    if shift.target in alive and rng.random() < 0.8:  # the running batch may overrule it
                        places[shift.bin] = shift.target
        assert course.at >= before
        if Finished() in told:
            break
        if len(alive) > 1 and rng.random() < 0.02:
            alive.discard(rng.choice(sorted(alive)))
    assert course.is_finished
    assert set(resolved) == {shift.bin for step in steps for shift in step.shifts}
    assert {shift.bin for shift in course.arrived} == {at for at, each in resolved.items() if isinstance(each, Arrived)}
