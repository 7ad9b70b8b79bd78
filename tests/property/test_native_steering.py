"""A native migration against a scheduler that does as it likes: it always ends, in order, and tells the truth."""

from hypothesis import given
from hypothesis import strategies as st

from effort import examples
from meander.migration.steps import OperatorMove, SteeringPatience, Step
from meander.native.steering import Arrived, BatchSight, GivenUp, Steer, SteeringDone, SteeringProtocol, TaskSight

EXECUTORS = range(4)


@st.composite
def migrations(draw):
    owners = draw(st.lists(st.sampled_from(EXECUTORS), min_size=1, max_size=12))
    moving = draw(st.lists(st.sampled_from(range(len(owners))), unique=True))
    moves = [OperatorMove(0, each, owners[each], draw(st.sampled_from(EXECUTORS)), 1) for each in moving]
    cuts = sorted(draw(st.lists(st.integers(0, len(moves)), max_size=4)))
    ends = [0, *cuts, len(moves)]
    return owners, [Step(at, tuple(moves[ends[at] : ends[at + 1]])) for at in range(len(ends) - 1)]


@given(migrations(), st.randoms(use_true_random=False), st.integers(1, 4), st.integers(0, 3))
@examples(400)
def test_every_migration_ends_and_every_partition_is_accounted_for(migration, rng, tries, patience):
    owners, steps = migration
    protocol = SteeringProtocol(steps, SteeringPatience(tries=tries, snapshot_batches=patience, fresh_bytes=0))
    places, alive = list(owners), set(EXECUTORS)
    steered: set[int] = set()
    resolved: dict[int, object] = {}
    bound = 10 + sum(len(step.moves) + patience + tries * 4 for step in steps) * 4
    for batch in range(bound):
        for each, place in enumerate(places):
            if place not in alive or rng.random() < 0.1:  # stolen by an executor without work
                places[each] = rng.choice(sorted(alive))
        tasks = {(0, each): TaskSight(place) for each, place in enumerate(places) if rng.random() < 0.8}
        stale = {key: rng.randint(0, 1) for key in protocol.concerns}
        before = protocol.at
        instructions = protocol.on(BatchSight(batch, tasks, frozenset(alive), stale))
        for each in instructions:
            if isinstance(each, Arrived | GivenUp):
                assert each.move.bin not in resolved
                resolved[each.move.bin] = each
                if isinstance(each, Arrived):
                    assert tasks[0, each.move.bin].worker == each.move.target
                    assert each.move.bin in steered
            if isinstance(each, Steer):
                # All of them belong to the step being taken, and every one of the steps before is settled.
                mine = {move.bin for move in steps[protocol.at].moves}
                assert {move.bin for move in each.moves} <= mine - set(resolved)
                earlier = {move.bin for step in steps[: protocol.at] for move in step.moves}
                assert earlier <= set(resolved)
                for move in each.moves:
                    steered.add(move.bin)
                    if move.target in alive and rng.random() < 0.8:  # the running batch may overrule it
                        places[move.bin] = move.target
        assert protocol.at >= before
        if SteeringDone() in instructions:
            break
        if len(alive) > 1 and rng.random() < 0.02:
            alive.discard(rng.choice(sorted(alive)))
    assert protocol.is_finished
    assert set(resolved) == {move.bin for step in steps for move in step.moves}
    assert {move.bin for move in protocol.arrived} == {at for at, each in resolved.items() if isinstance(each, Arrived)}
