"""What holds for every course of looks, and a second opinion that goes through the whole history at every look."""

from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from effort import examples
from meander.control import Look, Threshold, ThresholdRules

RULES = st.builds(
    ThresholdRules,
    tau=st.sampled_from([0.0, 0.2, 0.5]),
    slack=st.sampled_from([0.0, 0.25, 1.0]),
    looks=st.integers(1, 4),
    rest_batches=st.integers(0, 6),
    gain=st.sampled_from([0.0, 0.1, 0.5]),
)
# Values on both sides of every limit, and on it: chance alone would hardly meet them. Most looks are bad ones, for rows
# of them would be rare otherwise.
LOOKS = st.builds(
    Look,
    batch=st.sampled_from([1, 1, 1, 1, 1, 0, -1]),
    imbalance=st.sampled_from([0.0, 0.1, 0.2, 0.22, 0.25, 0.3, 0.5, 0.6, 0.7, 3.0]),
    idle_workers=st.sampled_from([0, 0, 0, 0, 0, 1, 2]),
    batch_ms=st.sampled_from([100.0, 1000.0, 1100.0, 0.0]),
    trigger_ms=st.sampled_from([0.0, 100.0, 1000.0]),
    straggler_ms=st.sampled_from([600.0, 600.0, 600.0, 600.0, 110.0, 100.0, 10.0, 1.0, 0.0]),
    moving=st.sampled_from([False] * 8 + [True]),
)
BAD = Look(batch=0, imbalance=9.0, idle_workers=0, batch_ms=100.0, trigger_ms=0.0, straggler_ms=80.0, moving=False)
GOOD = replace(BAD, imbalance=0.0, straggler_ms=0.0)


@st.composite
def courses(draw, max_size=40):
    """Looks at batches that go on, stand still or, after a restart, go back; here `batch` was the difference."""
    batch, course = -1, []
    for look in draw(st.lists(LOOKS, max_size=max_size)):
        batch = max(-1, batch + look.batch)
        course.append(replace(look, batch=batch))
    return course


def pays(rules, look):
    if look.straggler_ms <= 0:
        return False
    if look.straggler_ms >= rules.gain * look.batch_ms:
        return True
    is_behind = look.trigger_ms > 0 and look.batch_ms > look.trigger_ms
    return is_behind and look.straggler_ms >= look.batch_ms - look.trigger_ms


def expected(rules, history, ended):
    """Whether to move at the last look, from all looks so far, and the look and batch at which a move last ended."""
    *before, look = history
    if look.moving or look.batch < 0 or any(look.batch <= each.batch for each in before):
        return False
    counted, newest = [], -1
    for place, each in enumerate(history):
        is_new, newest = each.batch > newest, max(newest, each.batch)
        is_rested = ended is None or (place > ended[0] and each.batch - ended[1] >= rules.rest_batches)
        if is_new and is_rested and not each.moving:
            counted.append(each)
    if look not in counted:
        return False
    row, is_out = 0, False
    for each in counted:
        is_out = each.imbalance > rules.tau * (1 + rules.slack) or (is_out and each.imbalance > rules.tau)
        row = row + 1 if (is_out or each.idle_workers) and pays(rules, each) else 0
    return row >= rules.looks


@examples(400)
@given(RULES, courses(), st.sets(st.integers(0, 39)))
def test_a_second_opinion_that_keeps_everything(rules, course, ends):
    balance, ended = Threshold(rules), None
    for i, look in enumerate(course):
        decision = balance.decide(look)
        assert decision.move == expected(rules, course[: i + 1], ended), decision.reason
        if decision.move:
            ended = i, look.batch
        if i in ends:
            balance.moved(look)
            ended = i, look.batch if ended is None else max(look.batch, ended[1])


@examples(300)
@given(RULES, courses())
def test_never_two_moves_within_the_rest_and_never_without_a_reason(rules, course):
    balance, moves = Threshold(rules), []
    for look in course:
        decision = balance.decide(look)
        assert decision.reason
        assert "\n" not in decision.reason
        if decision.move:
            moves.append(look.batch)
    assert all(later - earlier >= max(1, rules.rest_batches) for earlier, later in pairwise(moves))


@examples(200)
@given(RULES.filter(lambda rules: rules.looks >= 2), st.integers(0, 30))
def test_a_single_bad_look_never_moves(rules, place):
    balance = Threshold(rules)
    course = [replace(BAD if batch == place else GOOD, batch=batch) for batch in range(31)]
    assert not any(balance.decide(look).move for look in course)


@examples(200)
@given(
    RULES.filter(lambda rules: rules.looks >= 2),
    st.sampled_from([GOOD, replace(BAD, straggler_ms=0.0), replace(BAD, imbalance=0.0)]),
    st.booleans(),
)
def test_looks_by_turns_good_and_bad_never_move(rules, other, begins):
    balance = Threshold(rules)
    course = [replace(BAD if batch % 2 == begins else other, batch=batch) for batch in range(60)]
    assert not any(balance.decide(look).move for look in course)


@examples(200)
@given(RULES, st.integers(0, 5))
def test_lasting_imbalance_moves_once_per_rest_and_looks(rules, takes):
    balance, moves, until = Threshold(rules), [], None
    for batch in range(100):
        look = replace(BAD, batch=batch, moving=until is not None)
        if until == batch:
            balance.moved(look)
            until = None
        elif balance.decide(look).move:
            moves.append(batch)
            until = batch + takes if takes else None
    assert moves[0] == rules.looks - 1
    period = takes + max(1, rules.rest_batches) + rules.looks - 1
    assert moves == list(range(moves[0], 100, period))


@examples(300)
@given(RULES, courses(), st.lists(LOOKS, max_size=5), st.integers(0, 39))
def test_looks_without_a_new_batch_change_nothing(rules, course, more, place):
    plain, disturbed = Threshold(rules), Threshold(rules)
    newest = -1
    for i, look in enumerate(course):
        assert disturbed.decide(look) == plain.decide(look)
        newest = max(newest, look.batch)
        if i == place:
            assert not any(disturbed.decide(replace(each, batch=newest)).move for each in more)


@examples(200)
@given(RULES.filter(lambda rules: rules.gain > 0), st.lists(LOOKS, max_size=30), st.floats(0.0, 0.99))
def test_behind_for_another_reason_never_moves(rules, course, share):
    balance = Threshold(rules)
    for batch, look in enumerate(course):
        overrun_ms = 500.0
        least_ms = min(overrun_ms, rules.gain * 1500.0)
        late = replace(look, batch=batch, batch_ms=1500.0, trigger_ms=1000.0, straggler_ms=share * least_ms)
        assert not balance.decide(late).move
