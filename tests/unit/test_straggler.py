"""Stragglers: the figures of a window and each rule of the verdict, by hand, with the sentence it gives."""

from __future__ import annotations

import inspect
import math

import pytest

import meander as me
from meander.control import LoadWindow, Sample, Straggler, StragglerRules
from meander.control.window import measured_gamma
from meander.errors import InvalidOption
from meander.measure import Resources
from meander.planning.annealing import annealing

SKEWED = [60, 20, 10, 10]
OWNER = [0, 0, 1, 2]
EVEN = [25, 25, 25, 25, 25, 25]


def sample(batch, rows=SKEWED, owner=OWNER, busy_s=0.1, **others):
    """A batch of an operator with one side; every worker is busy for so long, or as the mapping says."""
    busy = busy_s if isinstance(busy_s, dict) else dict.fromkeys(owner, busy_s)
    given = {"interval_s": 1.0, "stored": ([0] * len(rows),), "queued": (rows,), "rows": rows, **others}
    return Sample(batch, busy_s=busy, owner=owner, **given)


def after(straggler, batches, workers=(0, 1, 2), moving=False, **figures):
    """The last verdict after these batches."""
    for batch in batches:
        straggler.note(sample(batch, **figures))
        verdict = straggler.decide(workers, moving)
    return verdict


def actions(straggler, batches, **figures):
    return [after(straggler, [batch], **figures).action for batch in batches]


def in_short(verdict):
    return verdict.action, verdict.workers


def test_a_view_of_a_join():
    stored, queued = ([4, 4, 2, 1], [0] * 4), ([0] * 4, [3, 4, 2, 3])
    one = sample(0, rows=[3, 4, 2, 3], owner=[0, 0, 1, 1], stored=stored, queued=queued, interval_s=0.5, busy_s=0.2)
    view = LoadWindow.of([one])
    assert round(view.imbalance, 2) == 0.48
    assert view.loads == {0: 21.5, 1: 7.5}
    assert (view.straggler, view.idlest, view.heaviest) == (0, 1, 1)
    assert view.stored.tolist() == [4, 4, 2, 1]
    assert view.computing.tolist() == [12, 16, 4, 3]
    assert view.arrivals.tolist() == [6, 8, 4, 6]
    assert view.input_rate == {0: 14, 1: 10}
    assert view.service == {0: pytest.approx(35), 1: pytest.approx(25)}
    assert view.sojourn_s == {0: pytest.approx(1 / 21), 1: pytest.approx(1 / 15)}
    assert view.busy_per_s == pytest.approx(0.8)


def test_rates_are_steady_means_and_what_is_stored_is_a_level():
    samples = [
        sample(i, rows=[r], owner=[0], stored=([s],), interval_s=2.0, busy_s=b)
        for i, (r, s, b) in enumerate([(10, 1, 0.2), (900, 2, 1.9), (20, 3, 0.4), (0, 50, 0.0)])
    ]
    view = LoadWindow.of(samples, gamma=1)
    assert view.arrivals.tolist() == [7.5]
    assert view.load.tolist() == [50 + 15]
    assert view.busy_per_s == pytest.approx(0.15)


def test_backlog_waits_on_the_sides_that_its_rows_came_from():
    stored, queued = ([1] * 3, [1] * 3), ([3, 0, 2], [1, 0, 0])
    one = sample(0, rows=[4, 0, 2], owner=[0, 0, 0], stored=stored, queued=queued, backlog=[8, 6, 5])
    assert [side.tolist() for side in one.waiting] == [[9, 3, 7], [3, 3, 0]]
    assert LoadWindow.of([one]).computing.tolist() == [12, 6, 7]
    plain = sample(0, rows=[4, 2], owner=[0, 0], backlog=[1, 0])
    assert LoadWindow.of([plain]).load.tolist() == [5, 2]
    assert LoadWindow.of([plain]).arrivals.tolist() == [4, 2], "what waits has not been served"


def test_service_is_measured_since_the_owners_changed():
    before = [sample(i, rows=[10, 30], owner=[0, 0], busy_s={0: 0.4}) for i in range(3)]
    since = [sample(i, rows=[10, 30], owner=[0, 1], busy_s={0: 0.05, 1: 0.6}) for i in range(3, 5)]
    view = LoadWindow.of([*before, *since])
    assert view.service == {0: pytest.approx(200), 1: pytest.approx(50)}
    assert view.input_rate == {0: 10, 1: 30}
    assert LoadWindow.of(before).service == {0: pytest.approx(100)}


def test_service_is_scaled_by_the_computing_load_that_has_moved():
    both = {"rows": [10, 30], "stored": ([6, 1], [0, 0]), "queued": ([0, 0], [10, 30])}
    before = [sample(i, owner=[0, 0], busy_s={0: 0.4}, **both) for i in range(3)]
    since = sample(3, owner=[0, 1], busy_s={}, **both)
    view = LoadWindow.of([*before, since])
    speed = 100 * 90 / 40  # comparisons per second: bin 0 makes 60 for 10 rows, bin 1 makes 30 for 30 rows
    assert view.service[0] == pytest.approx(speed / 6)
    assert view.service[0] == pytest.approx(100 * (10 / 40) * (90 / 60)), "mu * (E' / E) * (C / C')"
    assert view.service[1] == pytest.approx(speed / 1), "a new worker is as fast as the others"


def test_a_worker_without_rows_serves_mean_rows():
    view = LoadWindow.of([sample(0, rows=[10, 30], owner=[0, 1], busy_s=0.1)], workers=[0, 1, 7])
    assert view.workers == (0, 1, 7)
    assert view.service == {0: pytest.approx(100), 1: pytest.approx(300), 7: pytest.approx(200)}
    assert view.sojourn_s[7] == pytest.approx(1 / 200)
    assert view.options(1.0)["service"] == {0: pytest.approx(100), 1: pytest.approx(300)}


def test_before_anybody_was_busy_nothing_is_known_of_service():
    view = LoadWindow.of([sample(0, busy_s={})])
    assert (view.service, view.sojourn_s, view.options(1.0)["service"]) == ({}, {}, None)


def test_rows_that_come_as_fast_as_they_are_served_stay_for_ever():
    view = LoadWindow.of([sample(0, rows=[10, 10], owner=[0, 1], busy_s={0: 1.0, 1: 0.5})])
    assert view.sojourn_s == {0: math.inf, 1: pytest.approx(0.1)}


def test_the_planner_takes_the_options_of_a_view():
    view = LoadWindow.of([sample(0)])
    options = view.options(alpha=1.0)
    assert set(options) == {"stored", "computing", "arrivals", "service", "alpha"}
    known = {name: value for name, value in options.items() if name in inspect.signature(annealing.target).parameters}
    problem = me.Problem(view.load.tolist(), [1] * 4, OWNER, (0, 1, 2), 1.0)
    plan = me.plan(problem, "annealing", **known)
    assert [(move.bin, move.source) for move in plan.moves] == [(1, 0)]


def test_a_straggler_is_balanced_after_a_full_window():
    straggler = Straggler()
    assert straggler.decide([0, 1, 2], moving=False).reason == "no batch has ended yet"
    verdict = after(straggler, range(7))
    assert in_short(verdict) == ("stay", 3)
    assert verdict.reason == (
        "LI 1.40 is above alpha 1: worker 0 has 240% of the mean load, worker 1 has 30%; "
        "only 7 of the 8 batches of a window were seen"
    )
    verdict = after(straggler, [7])
    assert in_short(verdict) == ("balance", 3)
    assert verdict.reason == "LI 1.40 is above alpha 1: worker 0 has 240% of the mean load, worker 1 has 30%"
    assert verdict.imbalance == pytest.approx(1.4)
    assert verdict.view.loads == {0: 80, 1: 10, 2: 10}


def test_within_alpha_it_stays():
    verdict = after(Straggler(StragglerRules(alpha=1.5)), range(8))
    assert in_short(verdict) == ("stay", 3)
    assert verdict.reason == "LI 1.40 is within alpha 1.5: worker 0 has 240% of the mean load, worker 1 has 30%"


def test_not_while_moving_and_not_while_resting():
    straggler = Straggler(StragglerRules(window=2))
    assert after(straggler, range(2)).action == "balance"
    verdict = after(straggler, [2, 3, 4], moving=True)
    assert (verdict.action, verdict.reason.split("; ")[1]) == ("stay", "a migration is under way")
    verdict = after(straggler, [5])
    assert (verdict.action, verdict.reason.split("; ")[1]) == ("stay", "1 of 2 batches of rest are over")
    assert after(straggler, [6]).action == "balance"


def test_a_batch_that_is_not_newer_changes_nothing():
    straggler = Straggler(StragglerRules(window=2))
    straggler.note(sample(5))
    straggler.note(sample(5))
    straggler.note(sample(4))
    assert "only 1 of the 2" in straggler.decide([0, 1, 2], moving=False).reason


@pytest.mark.parametrize(("workers", "alpha"), [(2, 0.5), (3, 1.0), (8, 1.0), (1, 0.0)])
def test_alpha_by_default(workers, alpha):
    assert StragglerRules().limit(workers) == alpha


def test_an_alpha_that_cannot_fire_is_refused():
    with pytest.raises(InvalidOption) as refusal:
        after(Straggler(StragglerRules(alpha=2.0)), [0])
    assert str(refusal.value) == (
        "alpha is 2 and would never fire: LI is at most 2 among 3 workers; give an alpha below 2, or none for 1"
    )
    assert StragglerRules(alpha=1.99).limit(3) == 1.99
    with pytest.raises(InvalidOption, match="at most 3 among 4 workers"):
        StragglerRules(alpha=3, most=4)


def test_an_alpha_that_can_no_longer_fire_is_a_reason_to_stay():
    straggler = Straggler(StragglerRules(alpha=1.5, window=1))
    assert after(straggler, [0]).action == "stay"
    verdict = after(straggler, [1], owner=[0, 0, 1, 1], workers=[0, 1])
    assert verdict.action == "stay"
    assert "alpha is 1.5 and would never fire: LI is at most 1 among 2 workers" in verdict.reason


def test_one_worker_has_nothing_to_balance_but_may_need_others():
    one = {"owner": [4] * 4, "workers": [4]}
    verdict = after(Straggler(), range(8), **one)
    assert in_short(verdict) == ("stay", 1)
    assert verdict.reason.startswith("there is nothing to balance: worker 4 is the only one")
    verdict = after(Straggler(StragglerRules(most=9)), range(8), busy_s=1.7, **one)
    assert in_short(verdict) == ("rescale", 3)
    assert after(Straggler(StragglerRules(most=9, alpha=3.5)), range(8), busy_s=1.7, **one).workers == 5, (
        "so that it fires"
    )


def test_whoever_owns_bins_is_there():
    verdict = after(Straggler(), range(8), workers=[0])
    assert in_short(verdict) == ("balance", 3)


def test_idle_workers_count():
    straggler = Straggler(StragglerRules(alpha=0.9, window=1))
    verdict = after(straggler, [0], rows=[10, 10, 10], owner=[0, 1, 2], workers=[0, 1, 2, 3])
    assert in_short(verdict) == ("balance", 4)
    assert "worker 0 has 133% of the mean load, worker 3 has 0%" in verdict.reason


def balanced_in_vain(rules, found=True, **figures):
    straggler = Straggler(rules)
    assert after(straggler, range(8), **figures).action == "balance"
    straggler.balanced(found)
    assert after(straggler, range(8, 15), **figures).action == "stay"
    return straggler


def test_balancing_that_is_not_enough_wants_one_more_worker():
    light = {"rows": [20, 20, 20, 20, 10, 10], "owner": [0, 0, 0, 0, 1, 2]}
    for found in (True, False):
        straggler = balanced_in_vain(StragglerRules(most=5), found, **light)
        verdict = after(straggler, [15], **light)
        assert in_short(verdict) == ("rescale", 4)
        assert "balancing was not enough, so 4 workers are wanted" in verdict.reason


def test_without_more_workers_it_is_tried_again_unless_there_was_nothing_to_move():
    light = {"rows": [20, 20, 20, 20, 10, 10], "owner": [0, 0, 0, 0, 1, 2]}
    assert after(balanced_in_vain(StragglerRules(), True, **light), [15], **light).action == "balance"
    verdict = after(balanced_in_vain(StragglerRules(most=3), False, **light), [15], **light)
    assert verdict.action == "stay"
    assert verdict.reason.endswith("; there was nothing to move")


def test_one_bin_that_makes_the_straggler_is_named():
    hot = {"rows": [80, 5, 5, 10]}
    for found in (True, False):
        straggler = balanced_in_vain(StragglerRules(most=9), found, **hot)
        verdict = after(straggler, [15], **hot)
        assert in_short(verdict) == ("stay", 3)
        assert verdict.reason.endswith("; bin 0 alone has 240% and cannot be divided")
        assert set(actions(straggler, range(16, 7 + 64), **hot)) == {"stay"}
        assert after(straggler, [7 + 64], **hot).action == "balance", "at times it is tried again"


def test_another_straggler_is_another_case():
    straggler = balanced_in_vain(StragglerRules(), False, rows=[80, 5, 5, 10])
    assert after(straggler, [15], rows=[80, 5, 5, 10]).action == "stay"
    assert actions(straggler, range(16, 24), rows=[5, 5, 80, 10]).count("balance") == 1


def test_a_hot_bin_does_not_keep_more_workers_from_coming_for_the_work():
    hot = {"rows": [80, 5, 5, 10], "busy_s": 0.9}
    verdict = after(balanced_in_vain(StragglerRules(most=9), False, **hot), [15], **hot)
    assert in_short(verdict) == ("rescale", 4)
    assert verdict.reason.endswith("; the workers are busy 90% of the time, so 4 workers are wanted")


def test_balance_that_was_reached_is_forgotten():
    straggler = balanced_in_vain(StragglerRules(most=9), False, rows=[80, 5, 5, 10])
    assert after(straggler, range(15, 24), rows=[10, 10, 10, 10]).action == "stay"
    assert actions(straggler, range(24, 32), rows=[80, 5, 5, 10]).count("balance") == 1


def even(straggler, batches, busy_s, workers=3):
    owner = [j % workers for j in range(6)]
    return after(straggler, batches, rows=EVEN, owner=owner, workers=range(workers), busy_s=busy_s)


@pytest.mark.parametrize(
    ("busy_s", "most", "wanted"),
    [(0.79, 9, 3), (0.81, 9, 4), (0.99, 9, 4), (1.5, 9, 6), (1.5, 5, 5), (1.5, 3, 3), (1.5, None, 3)],
)
def test_as_many_workers_as_the_work_takes(busy_s, most, wanted):
    verdict = even(Straggler(StragglerRules(most=most)), range(8), busy_s)
    assert in_short(verdict) == ("stay" if wanted == 3 else "rescale", wanted)
    assert ("most is 3" in verdict.reason) == (most == 3)


def test_a_queue_that_grows_though_balanced_wants_one_more_worker():
    straggler = Straggler(StragglerRules(most=9))
    verdict = even(straggler, range(8), {0: 0.2, 1: 1.0, 2: 0.2})
    assert in_short(verdict) == ("rescale", 4)
    assert verdict.reason.endswith("rows come to worker 1 as fast as it serves them, so 4 workers are wanted")


@pytest.mark.parametrize(
    ("busy_s", "least", "wanted"),
    [(0.1, 1, 1), (0.1, 2, 2), (0.1, None, 3), (0.48, 1, 2), (0.49, 1, 3), (0.0, 1, 1)],
)
def test_fewer_workers_where_they_fit_with_slack(busy_s, least, wanted):
    verdict = even(Straggler(StragglerRules(least=least)), range(8), busy_s)
    assert in_short(verdict) == ("stay" if wanted == 3 else "rescale", wanted)


def test_it_never_goes_down_to_where_alpha_cannot_fire():
    straggler = Straggler(StragglerRules(least=1, alpha=1.0))
    assert in_short(even(straggler, range(8), 0.01, workers=6)) == ("rescale", 3)


def test_workers_that_came_for_balance_stay_while_there_is_as_much_work():
    light = {"rows": [20, 20, 20, 20, 10, 10], "owner": [0, 0, 0, 0, 1, 2], "busy_s": 0.3}
    straggler = balanced_in_vain(StragglerRules(least=2, most=5), True, **light)
    assert in_short(after(straggler, [15], **light)) == ("rescale", 4)
    spread_out = {"rows": EVEN, "owner": [0, 1, 2, 3, 0, 1], "workers": range(4)}
    assert in_short(after(straggler, range(16, 60), busy_s=0.225, **spread_out)) == ("stay", 4)
    assert "rescale" in actions(straggler, range(60, 70), busy_s=0.15, **spread_out)


def test_another_number_of_bins_is_refused():
    straggler = Straggler()
    straggler.note(sample(0))
    with pytest.raises(InvalidOption, match="batch 1 has 1 sides and 2 bins, the one before had 1 and 4"):
        straggler.note(sample(1, rows=[1, 2], owner=[0, 1]))


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ({"alpha": 0}, "alpha is 0"),
        ({"alpha": math.inf}, "alpha is inf"),
        ({"window": 0}, "window is 0"),
        ({"gamma": 2}, "gamma is 2"),
        ({"rest": 0}, "rest is 0; it must be a whole number of at least 1"),
        ({"least": 0}, "least is 0"),
        ({"most": 1.5}, "most is 1.5"),
        ({"least": 4, "most": 3}, "most is 3; it must be at least 4"),
        ({"utilisation": 0}, "utilisation is 0"),
        ({"utilisation": 1.1}, "utilisation is 1.1; it is a share of the time and at most 1"),
    ],
)
def test_rules_that_make_no_sense_are_refused(option, sentence):
    with pytest.raises(InvalidOption, match=sentence):
        StragglerRules(**option)


@pytest.mark.parametrize(
    ("field", "sentence"),
    [
        ({"interval_s": 0}, "interval_s is 0"),
        ({"rows": [1], "queued": (SKEWED,), "stored": (SKEWED,)}, "rows has the shape"),
        ({"owner": [0, 1]}, "there are 2 owners but 4 bins"),
        ({"owner": [0, 0, 0, -1]}, "the owner of bin 3 is -1"),
        ({"backlog": [1, 2, 3, math.nan]}, "backlog of bin 3 is nan"),
        ({"busy_s": {0: -1.0}}, "busy_s of worker 0 is -1.0"),
    ],
)
def test_samples_that_make_no_sense_are_refused(field, sentence):
    with pytest.raises(InvalidOption, match=sentence):
        sample(0, **field)


def test_a_view_of_nothing_is_refused():
    with pytest.raises(InvalidOption, match="no batch to look at"):
        LoadWindow.of([])


# --- gamma by what was measured ---


def busy_by(memory_s, computing_s, fixed_s=0.002):
    """Batches of a join whose workers take so long for a row they hold and for a comparison."""
    sizes = [[40, 3, 9, 25], [10, 30, 8, 2], [5, 6, 70, 30]]
    for batch, stored in enumerate(sizes):
        queued = stored[::-1]
        asked = Resources((stored, queued), (queued, stored))
        loads = memory_s * asked.memory + computing_s * asked.computing
        busy = {0: fixed_s + float(loads[0] + loads[1]), 1: fixed_s + float(loads[2] + loads[3])}
        yield Sample(batch, 1.0, (stored, queued), (queued, stored), stored, busy, owner=[0, 0, 1, 1])


@pytest.mark.parametrize(("memory_s", "computing_s"), [(1e-3, 1e-5), (1e-6, 1e-4), (0, 1e-5), (1e-4, 0)])
def test_the_measured_gamma_is_the_one_the_workers_took_their_time_by(memory_s, computing_s):
    samples = list(busy_by(memory_s, computing_s))
    gamma = memory_s / (memory_s + computing_s)
    assert measured_gamma(samples) == pytest.approx(gamma, abs=1e-6)
    mine, usual = LoadWindow.of(samples, gamma="measured"), LoadWindow.of(samples, gamma=gamma)
    assert mine.load.tolist() == pytest.approx(usual.load.tolist(), rel=1e-4)


def test_without_anything_to_measure_gamma_is_the_usual_one():
    nothing = [sample(batch, busy_s=0.0) for batch in range(3)]
    assert measured_gamma(nothing) is None
    assert LoadWindow.of(nothing, gamma="measured").load.tolist() == LoadWindow.of(nothing).load.tolist()
    with pytest.raises(InvalidOption, match="gamma is 'guessed'; it is a number from 0 to 1, or 'measured'"):
        StragglerRules(gamma="guessed")


def test_a_plan_aims_below_alpha():
    assert StragglerRules(alpha=1.0).target(4) == 0.2
    assert StragglerRules(alpha=0.1).target(4) == 0.1
    assert StragglerRules(aim=0.4).target(2) == 0.4
    with pytest.raises(InvalidOption, match="aim is 0"):
        StragglerRules(aim=0)
