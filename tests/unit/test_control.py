"""When to rebalance: each rule by hand, with the sentence it gives."""

from dataclasses import replace

import pytest

from meander.control import Look, Threshold, ThresholdRules
from meander.errors import InvalidOption

BAD = Look(batch=0, imbalance=0.5, idle_workers=0, batch_ms=400.0, trigger_ms=0.0, straggler_ms=90.0, moving=False)
GOOD = replace(BAD, imbalance=0.1, straggler_ms=10.0)


def told(balance, *looks):
    """The last of the decisions on these looks."""
    decisions = [balance.decide(look) for look in looks]
    return decisions[-1].move, decisions[-1].reason


def at(look, *batches):
    return [replace(look, batch=batch) for batch in batches]


def test_three_bad_looks_in_a_row_make_a_move():
    balance = Threshold()
    assert told(balance, *at(BAD, 0)) == (False, "out of balance for 1 of 3 looks")
    assert told(balance, *at(BAD, 1)) == (False, "out of balance for 2 of 3 looks")
    assert told(balance, *at(BAD, 2)) == (
        True,
        "the busiest worker is 50% above the mean, and balance would save 90 ms of 400 ms",
    )


def test_not_while_a_migration_is_under_way():
    balance = Threshold(ThresholdRules(looks=1))
    assert told(balance, replace(BAD, moving=True)) == (False, "a migration is under way")
    assert told(balance, BAD) == (False, "no new batch since 0"), "its figures are those of the migration"
    assert told(balance, *at(BAD, 1))[0]


def test_not_before_the_first_batch_nor_without_a_new_one():
    balance = Threshold(ThresholdRules(looks=2))
    assert told(balance, *at(BAD, -1, -1, -1)) == (False, "no batch has ended yet")
    assert told(balance, *at(BAD, 4)) == (False, "out of balance for 1 of 2 looks")
    assert told(balance, *at(BAD, 4, 4, 3)) == (False, "no new batch since 4")
    assert told(balance, *at(BAD, 5))[0]


def test_batches_may_be_missed():
    assert told(Threshold(), *at(BAD, 3, 10, 99))[0]


def test_rest_after_a_migration():
    balance = Threshold(ThresholdRules(looks=1, rest_batches=4))
    balance.moved(replace(BAD, batch=10))
    assert told(balance, *at(BAD, 11)) == (False, "1 of 4 batches of rest after the last migration")
    assert told(balance, *at(BAD, 12, 13)) == (False, "3 of 4 batches of rest after the last migration")
    assert told(balance, *at(BAD, 14))[0]


def test_looks_during_the_rest_do_not_count():
    balance = Threshold(ThresholdRules(looks=2, rest_batches=4))
    balance.moved(replace(BAD, batch=10))
    assert told(balance, *at(BAD, 11, 12, 13, 14)) == (False, "out of balance for 1 of 2 looks")


def test_the_rest_is_counted_from_the_end_of_a_migration():
    balance = Threshold(ThresholdRules(looks=1, rest_batches=4))
    assert told(balance, *at(BAD, 0))[0]
    assert not told(balance, *at(replace(BAD, moving=True), 1, 2, 3, 4, 5, 6))[0]
    balance.moved(replace(BAD, batch=6))
    assert told(balance, *at(BAD, 9)) == (False, "3 of 4 batches of rest after the last migration")
    assert told(balance, *at(BAD, 10))[0]


def test_a_yes_that_came_to_nothing_begins_a_rest_too():
    balance = Threshold(ThresholdRules(looks=1, rest_batches=4))
    assert told(balance, *at(BAD, 0))[0]
    assert told(balance, *at(BAD, 1)) == (False, "1 of 4 batches of rest after the last migration")
    assert told(balance, *at(BAD, 4))[0]


def test_balanced_is_within_tau_and_its_slack():
    balance = Threshold(ThresholdRules(looks=1, tau=0.2, slack=0.25))
    assert told(balance, replace(BAD, imbalance=0.25)) == (
        False,
        "balanced: the busiest worker is 25% above the mean, up to 25% is left alone",
    )
    assert told(balance, replace(BAD, imbalance=0.26, batch=1))[0]


def test_out_of_balance_stays_so_until_it_is_within_tau():
    balance = Threshold(ThresholdRules(looks=3))
    between = replace(BAD, imbalance=0.22)
    assert told(balance, *at(between, 0))[1].startswith("balanced")
    assert told(balance, *at(BAD, 1), *at(between, 2)) == (False, "out of balance for 2 of 3 looks")
    assert told(balance, replace(BAD, imbalance=0.2, batch=3)) == (
        False,
        "balanced: the busiest worker is 20% above the mean, up to 20% is left alone",
    )
    assert told(balance, *at(between, 4))[1].startswith("balanced")


def test_a_plan_that_ends_a_little_above_tau_is_not_followed_by_another():
    balance = Threshold(ThresholdRules(looks=1, rest_batches=0))
    assert told(balance, *at(BAD, 0))[0]
    balance.moved(replace(BAD, batch=1))
    assert not any(balance.decide(look).move for look in at(replace(BAD, imbalance=0.24), *range(2, 20)))


def test_an_idle_worker_is_out_of_balance():
    idle = replace(BAD, imbalance=0.1, idle_workers=1)
    assert told(Threshold(), *at(idle, 0, 1, 2)) == (
        True,
        "the busiest worker is 10% above the mean, 1 worker is idle, and balance would save 90 ms of 400 ms",
    )
    assert "2 workers are idle" in told(Threshold(), *at(replace(idle, idle_workers=2), 0, 1, 2))[1]


def test_an_idle_worker_is_no_reason_where_there_is_nothing_to_win():
    idle = replace(BAD, idle_workers=1, straggler_ms=3.0)
    assert told(Threshold(), *at(idle, 0, 1, 2, 3)) == (False, "balance would save 3 ms of 400 ms")


@pytest.mark.parametrize(("straggler_ms", "pays"), [(39.9, False), (40.0, True), (0.0, False)])
def test_a_move_must_save_a_share_of_the_batch(straggler_ms, pays):
    balance = Threshold(ThresholdRules(looks=1, gain=0.1))
    assert told(balance, replace(BAD, straggler_ms=straggler_ms))[0] is pays
    within = replace(BAD, straggler_ms=straggler_ms, trigger_ms=400.0)
    assert told(Threshold(ThresholdRules(looks=1, gain=0.1)), within)[0] is pays


def test_nothing_to_win_is_nothing_to_win_whatever_the_gain():
    assert not told(Threshold(ThresholdRules(looks=1, gain=0.0)), replace(BAD, straggler_ms=0.0))[0]
    assert told(Threshold(ThresholdRules(looks=1, gain=0.0)), replace(BAD, straggler_ms=0.1))[0]


def test_behind_for_another_reason():
    behind = replace(BAD, batch_ms=1400.0, trigger_ms=1000.0, straggler_ms=30.0)
    assert told(Threshold(), *at(behind, 10, 11, 12)) == (
        False,
        "batch 12 took 1400 ms of its 1000 ms and balance would win back only 30 ms",
    )


@pytest.mark.parametrize(
    ("batch_ms", "straggler_ms", "pays"),
    [
        (1400.0, 140.0, True),  # a tenth of the batch
        (1400.0, 139.0, False),
        (1050.0, 50.0, True),  # less than that, but all of the overrun
        (1050.0, 49.0, False),
        (9000.0, 900.0, True),
        (9000.0, 899.0, False),
    ],
)
def test_behind_because_of_the_straggler(batch_ms, straggler_ms, pays):
    look = replace(BAD, batch_ms=batch_ms, trigger_ms=1000.0, straggler_ms=straggler_ms)
    assert told(Threshold(ThresholdRules(looks=1)), look)[0] is pays


def test_a_look_that_would_not_pay_begins_the_row_again():
    balance = Threshold()
    assert told(balance, *at(BAD, 0, 1), *at(replace(BAD, straggler_ms=1.0), 2)) == (
        False,
        "balance would save 1 ms of 400 ms",
    )
    assert told(balance, *at(BAD, 3)) == (False, "out of balance for 1 of 3 looks")


def test_a_good_look_begins_the_row_again():
    assert told(Threshold(), *at(BAD, 0, 1), *at(GOOD, 2), *at(BAD, 3, 4)) == (False, "out of balance for 2 of 3 looks")


def test_a_late_word_of_an_older_migration_does_not_shorten_the_rest():
    balance = Threshold(ThresholdRules(looks=1, rest_batches=4))
    balance.moved(replace(BAD, batch=10))
    balance.moved(replace(BAD, batch=7))
    assert told(balance, *at(BAD, 13)) == (False, "3 of 4 batches of rest after the last migration")


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ({"tau": -0.1}, "tau is -0.1; it must be finite and at least 0"),
        ({"tau": "0.2"}, "tau must be a number, not a text"),
        ({"slack": float("nan")}, "slack is nan"),
        ({"looks": 0}, "looks is 0; it must be a whole number of at least 1"),
        ({"looks": 2.0}, "looks is 2.0"),
        ({"rest_batches": -1}, "rest_batches is -1"),
        ({"rest_batches": True}, "rest_batches is True"),
        ({"gain": -0.1}, "gain is -0.1"),
        ({"gain": 1.1}, "gain is 1.1; it is a share of a batch's time and lies between 0 and 1"),
    ],
)
def test_rules_that_make_no_sense_are_refused(option, sentence):
    with pytest.raises(InvalidOption, match=sentence):
        ThresholdRules(**option)


def test_rules_at_their_limits_are_taken():
    ThresholdRules(tau=0, slack=0, looks=1, rest_batches=0, gain=0)
    ThresholdRules(gain=1)
