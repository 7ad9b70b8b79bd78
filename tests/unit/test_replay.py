"""Replays of worker counts: bins that drift, planners on the way, and what is recorded of them."""

import math
import statistics
import subprocess
import sys
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

import meander as me
from meander.errors import Infeasible, InvalidOption, TooLarge
from meander.outlook.oms import oms
from meander.types import is_contiguous
from meander_lab.planners import ring
from meander_lab.planners.even import even
from meander_lab.replay import Bins, balanced, clairvoyant, lower_bound, replay, smallest_tau
from meander_lab.replay.plots import plot

COUNTS = [3, 5, 4, 2, 4, 6, 3]
RINGS = ("consistent_hash", "redist")
EVERYONE = ["ssm", "simple_ssm", "free", "annealing", "even", *RINGS]


def same(a, b):
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


# --- bins ---


def test_without_drift_they_stay():
    bins = Bins.synthetic(32, drift=0, seed=3)
    assert all(same(bins.at(k), bins.at(0)) for k in (1, 5, 99))


def test_each_migration_finds_the_same_whenever_one_asks():
    forward, backward = Bins.synthetic(16, seed=5), Bins.synthetic(16, seed=5)
    there = [forward.at(k) for k in range(12)]
    back = [backward.at(k) for k in reversed(range(12))][::-1]
    assert all(same(a, b) for a, b in zip(there, back, strict=True))
    assert not any(same(a, b) for a, b in pairwise(there))
    assert not same(there[0], Bins.synthetic(16, seed=6).at(0))


def test_nobody_changes_what_others_see():
    load, state = Bins.synthetic(4).at(2)
    for each in (load, state):
        with pytest.raises(ValueError, match="read-only"):
            each[0] = 1.0


def test_loads_are_zipf_in_random_order():
    load, _ = Bins.synthetic(100, skew=0.7).at(0)
    falling = np.sort(load)[::-1]
    assert falling / falling[0] == pytest.approx(np.arange(1, 101) ** -0.7)
    assert load.mean() == pytest.approx(1)
    assert not np.array_equal(load, falling)
    assert Bins.synthetic(8, skew=0).at(0)[0].tolist() == [1.0] * 8


def test_sizes_go_with_loads_but_are_not_the_same():
    load, state = Bins.synthetic(500).at(0)
    assert 0.4 < np.corrcoef(np.log(load), np.log(state))[0, 1] < 0.95
    assert np.array_equal(state, np.rint(state)), "whole bytes"


def test_drift_is_the_step_of_the_logarithm():
    bins = Bins.synthetic(500, drift=0.03)
    for side in (0, 1):
        steps = np.log(bins.at(8)[side] / bins.at(7)[side])
        middle = np.quantile(steps, [0.1587, 0.8413])  # one standard deviation to either side, bursts left out
        assert 0.015 < np.diff(middle)[0] / 2 < 0.045
    assert np.corrcoef(*(np.log(bins.at(60)[side] / bins.at(0)[side]) for side in (0, 1)))[0, 1] > 0.4


def test_bins_do_not_run_away():
    bins = Bins.synthetic(64)
    for k in (100, 1000):
        load, state = bins.at(k)
        assert 1.1 < np.exp(np.log(load / bins.at(0)[0]).std()) < 1.5
        assert 0.5 < state.sum() / bins.at(0)[1].sum() < 2


def test_bursts_come_and_fade():
    bins = Bins.synthetic(64, drift=0.05, seed=2)
    logs = np.log(np.array([bins.at(k)[0] for k in range(100)]))
    jumps = np.argwhere(np.diff(logs, axis=0) > 0.6)
    assert 3 <= len(jumps) <= 25
    for k, bin_ in jumps:
        if k + 8 < 100:
            assert logs[k + 8, bin_] < logs[k + 1, bin_] - 0.3


def test_the_default_skew_lets_sixteen_workers_share_64_bins_but_not_easily():
    found = [smallest_tau(Bins.synthetic(64, drift=0, seed=seed).at(0)[0], 16) for seed in range(10)]
    assert 0.1 < statistics.median(found) < 0.2
    assert max(found) < 0.3


def test_measured_bins_are_as_measured_and_may_drift():
    load, state = [3.0, 0.0, 1.5], [10, 20, 0]
    assert [each.tolist() for each in Bins.measured(load, state).at(40)] == [load, state]
    drifted = Bins.measured(load, state, drift=0.1).at(3)
    assert drifted[0][0] != 3.0
    assert (drifted[0][1], drifted[1][2]) == (0.0, 0.0)


def test_measured_bins_from_json():
    data = {"load": [1, 2], "state": [3, 4]}
    for given in (data, {**data, "owner": [0, 1], "workers": 2, "tau": 0.4}):
        assert same(Bins.from_dict(given).at(0), ([1, 2], [3, 4]))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Bins.measured([1], [1, 2]), "load has 1 entries and state 2"),
        (lambda: Bins.measured([], []), "load has 0 entries"),
        (lambda: Bins.measured([1, -1], [1, 2]), "load of bin 1 is -1"),
        (lambda: Bins.measured([1, 1], [1, math.nan]), "state of bin 1 is nan"),
        (lambda: Bins.measured([1e99], [1]), "use a larger unit"),
        (lambda: Bins.measured("12", [1, 2]), "load must be a list"),
        (lambda: Bins.measured([0, 0], [1, 2]), "no bin has any load"),
        (lambda: Bins.synthetic(0), "bins is 0"),
        (lambda: Bins.synthetic(4, skew=-1), "skew is -1"),
        (lambda: Bins.synthetic(4, skew=99), "skew is 99"),
        (lambda: Bins.synthetic(4, drift=0.6), "drift is 0.6"),
        (lambda: Bins.synthetic(4, drift=math.nan), "drift is nan"),
        (lambda: Bins.synthetic(4, seed=-1), "seed is -1"),
        (lambda: Bins.synthetic(4).at(-1), "number of a migration is -1"),
        (lambda: Bins.from_dict([1]), "not a list"),
        (lambda: Bins.from_dict({"load": [1]}), "not one without them"),
        (lambda: Bins.from_dict({"load": [1], "state": [1], "owner": [0]}), "lacks the field 'workers'"),
    ],
)
def test_wrong_bins_are_refused_in_one_sentence(make, sentence):
    with pytest.raises(InvalidOption, match=sentence) as caught:
        make()
    assert "\n" not in str(caught.value)


# --- replays ---


def recount(found, bins):
    """Bytes and heaviest load of each migration, from the owners and by plain Python."""
    owner = found.start
    for k, each in enumerate(found.migrations):
        load, state = (values.tolist() for values in bins.at(k))
        moved = sum(state[j] for j in range(bins.bins) if owner[j] != each.owner[j])
        loads = {}
        for j, worker in enumerate(each.owner):
            loads[worker] = loads.get(worker, 0.0) + load[j]
        assert len(loads) <= each.workers
        assert each.bytes == pytest.approx(moved)
        assert each.state_bytes == pytest.approx(sum(state))
        assert each.percent == pytest.approx(100 * moved / sum(state))
        assert each.heaviest == pytest.approx(max(loads.values()) / (sum(load) / each.workers))
        owner = each.owner
        yield moved, each.heaviest


@pytest.mark.parametrize("drift", [0.0, 0.08])
@pytest.mark.parametrize("planner", EVERYONE)
def test_what_is_recorded_is_what_the_owners_say(planner, drift):
    bins = Bins.synthetic(24, drift=drift, seed=4)
    found = replay(COUNTS, bins, planner, 0.3)
    moved, heaviest = zip(*recount(found, bins), strict=True)
    assert [(each.before, each.workers) for each in found.migrations] == list(pairwise(COUNTS))
    assert found.total_bytes == pytest.approx(sum(moved))
    assert found.imbalance == pytest.approx(heaviest)
    shares = [100 * x / bins.at(k)[1].sum() for k, x in enumerate(moved)]
    assert found.percent_per_migration == pytest.approx(statistics.fmean(shares))


@pytest.mark.parametrize("planner", EVERYONE)
def test_it_is_the_same_every_time(planner):
    first, second = (replay(COUNTS, Bins.synthetic(16), planner, 0.3) for _ in range(2))
    assert [each.owner for each in first.migrations] == [each.owner for each in second.migrations]
    assert [each.bytes for each in first.migrations] == [each.bytes for each in second.migrations]


@pytest.mark.parametrize("planner", ["ssm", "simple_ssm", "free"])
@pytest.mark.parametrize("tau", [0.0, 0.2, 1.2])
def test_planners_with_a_cap_keep_the_tau_that_is_recorded(planner, tau):
    bins = Bins.synthetic(20, skew=0.9, seed=7)
    found = replay(COUNTS, bins, planner, tau)
    for k, each in enumerate(found.migrations):
        smallest = smallest_tau(bins.at(k)[0], each.workers)
        assert each.heaviest <= (1 + each.tau) * (1 + 1e-7)
        if planner != "free":
            assert is_contiguous(each.owner)
            assert each.tau == pytest.approx(max(tau, smallest), abs=1e-7)
        else:
            assert tau <= each.tau <= max(tau, smallest) + 1e-7
        assert each.raised == (each.tau > tau)
    raised = [each.tau for each in found.migrations if each.raised]
    assert found.raised == (len(raised), max(raised, default=0.0))
    assert found.raised.times == (len(COUNTS) - 1 if tau == 0.0 else found.raised.times)


def test_all_start_from_the_same_balanced_intervals_except_those_that_cannot():
    bins = Bins.synthetic(18)
    starts = {name: replay([5, 4], bins, name, 0.4).start for name in EVERYONE}
    assert {starts[name] for name in EVERYONE if name not in (*RINGS, "even")} == {tuple(balanced(bins.at(0)[0], 5))}
    assert all(starts[name] == tuple(ring.assign(18, range(5), seed=0)) for name in RINGS)
    counted = [starts["even"].count(worker) for worker in range(5)]
    assert counted == [4, 4, 4, 3, 3]


def test_those_that_know_their_ground_move_little_from_the_start_on():
    bins = Bins.synthetic(256, skew=0.3, drift=0)
    first = replay([8, 9], bins, "consistent_hash", 0.4, options={"seed": 3, "virtual_nodes": 64})
    assert first.percent_per_migration < 30
    assert replay([8, 8], bins, "even", 0.4).total_bytes == 0
    assert replay([8, 8], bins, "redist", 0.4, options={"heavy": 1e9}).total_bytes == 0


def test_balanced_intervals():
    assert balanced(np.ones(6), 3) == [0, 0, 1, 1, 2, 2]
    assert balanced(np.ones(2), 4).count(0) <= 1
    load, _ = Bins.synthetic(64).at(0)
    for workers in (1, 8, 16):
        owner = balanced(load, workers)
        assert is_contiguous(owner)
        heaviest = max(load[np.array(owner) == worker].sum() for worker in range(workers))
        assert heaviest * workers / load.sum() == pytest.approx(1 + smallest_tau(load, workers))
        assert min(load[np.array(owner) == worker].sum() for worker in range(workers)) > 0.5 * load.sum() / workers


def test_more_workers_than_bins_leave_some_idle():
    found = replay([2, 6, 3], Bins.measured([1, 1, 1], [1, 1, 1]), "ssm", 0.0)
    assert [len(set(each.owner)) for each in found.migrations] == [3, 3]
    assert [each.heaviest for each in found.migrations] == [2.0, 1.0]
    assert found.raised == (1, 1.0)


def test_a_ring_is_the_mean_of_its_seeds():
    bins = Bins.synthetic(16)
    for name in RINGS:
        mean = replay(COUNTS, bins, name, 0.3, seeds=4, options={"seed": 10})
        each = [replay(COUNTS, bins, name, 0.3, options={"seed": 10 + turn}) for turn in range(4)]
        assert mean.seeds == 4
        for k, row in enumerate(mean.migrations):
            assert row.bytes == pytest.approx(statistics.fmean(one.migrations[k].bytes for one in each))
            assert row.heaviest == pytest.approx(statistics.fmean(one.migrations[k].heaviest for one in each))
        assert mean.total_bytes == pytest.approx(statistics.fmean(one.total_bytes for one in each))
        assert len({one.total_bytes for one in each}) > 1


def test_seeds_are_for_those_that_have_one():
    assert replay([2, 3], Bins.synthetic(8), "ssm", 0.9, seeds=50).seeds == 1


def test_only_the_first_so_many():
    assert [each.workers for each in replay(COUNTS, Bins.synthetic(8), "ssm", 2, most=2).migrations] == COUNTS[1:3]


def test_a_function_of_ones_own_with_notes():
    def stubborn(problem):
        plan = even(problem)
        fields = {name: getattr(plan, name) for name in ("owner", "workers", "cost", "gain", "loads", "elapsed_ms")}
        notes = ("as always",) * 2 if problem.wanted == 4 else ()
        return SimpleNamespace(**{**fields, "notes": notes})

    found = replay(COUNTS, Bins.synthetic(12), stubborn, 0.2)
    assert found.planner == "stubborn"
    assert found.notes == {"as always": 2}
    assert [row["notes"] for row in found.rows()] == ["", "as always; as always", "", "as always; as always", "", ""]
    assert found.migrations[0].owner == replay(COUNTS, Bins.synthetic(12), "even", 0.2).migrations[0].owner


def test_a_planner_without_any_feasible_tau_says_so():
    def hopeless(_):
        raise Infeasible("there is no way", None)

    with pytest.raises(Infeasible, match="there is no way"):
        replay([2, 3], Bins.synthetic(8), hopeless)


def test_progress_is_told_after_each_migration_of_each_seed():
    calls = []
    replay([2, 3, 4], Bins.synthetic(8), "redist", 0.5, seeds=2, progress=lambda *call: calls.append(call))
    assert calls == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_rows_are_plain():
    rows = replay([2, 3, 2], Bins.synthetic(8), "ssm", 0.5).rows()
    assert [(row["migration"], row["workers_before"], row["workers"]) for row in rows] == [(0, 2, 3), (1, 3, 2)]
    assert {type(value) for row in rows for value in row.values()} <= {str, int, float}


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda bins: replay([3], bins), "never changes"),
        (lambda bins: replay([], bins), "never changes"),
        (lambda bins: replay([3, 0], bins), "workers at place 1 is 0"),
        (lambda bins: replay([3, 2.5], bins), "workers at place 1 is 2.5"),
        (lambda bins: replay("34", bins), "counts must be a list"),
        (lambda bins: replay([3, 4], bins, "smm"), "there is no planner 'smm'"),
        (lambda bins: replay([3, 4], bins, "ssm", options={"seed": 1}), "planner ssm has no option 'seed'"),
        (lambda bins: replay([3, 4], bins, even.target, options={"seed": 1}), "options are for planners by name"),
        (lambda bins: replay([3, 4], bins, "redist", options={"seed": "x"}), "seed is 'x'"),
        (lambda bins: replay([3, 4], bins, tau=-0.1), "tau is -0.1"),
        (lambda bins: replay([3, 4], bins, most=0), "most is 0"),
        (lambda bins: replay([3, 4], bins, "redist", seeds=0), "seeds is 0"),
        (lambda bins: clairvoyant([3, 4], bins, ahead=-1), "ahead is -1"),
        (lambda bins: clairvoyant([3, 4], bins, width=0), "width is 0"),
        (lambda bins: lower_bound([3, 4], bins, -1), "tau is -1"),
        (lambda bins: plot([], "x.png"), "no replays to draw"),
    ],
)
def test_wrong_options_are_refused_in_one_sentence(call, sentence):
    with pytest.raises(InvalidOption, match=sentence) as caught:
        call(Bins.synthetic(8))
    assert "\n" not in str(caught.value)


# --- the future, known ---


def optimum(bins, counts, tau):
    """What `oms` moves, which looks at all partitionings; for bins that stay."""
    load, state = bins.at(0)
    start = me.Problem(load, state, balanced(load, counts[0]), counts[1], tau)
    return oms(start, [(count, tau) for count in counts[1:]]).cost


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("tau", [0.35, 0.7])
def test_between_the_bound_and_ssm_lie_the_optimum_and_the_clairvoyant(seed, tau):
    counts = [2, 4, 3, 2, 4]
    bins = Bins.synthetic(12, drift=0, skew=0.3, seed=seed)
    best = optimum(bins, counts, tau)
    ssm = replay(counts, bins, "ssm", tau)
    assert ssm.raised.times == 0, "oms has no tau of its own for each step"
    seen = clairvoyant(counts, bins, tau, ahead=9)
    assert lower_bound(counts, bins, tau).bytes <= best * (1 + 1e-9)
    assert best * (1 - 1e-9) <= seen.total_bytes <= ssm.total_bytes * (1 + 1e-9)


def test_foresight_saves_where_ssm_walks_into_a_trap():
    # The last migration needs bins 0..3 apart; ssm sees no reason to cut there before.
    bins = Bins.measured([1] * 12, [5, 5, 5, 5, 1, 1, 1, 1, 1, 1, 1, 1])
    counts = [3, 2, 3, 4, 3, 2, 4]
    ssm, best = replay(counts, bins, "ssm", 0.4).total_bytes, optimum(bins, counts, 0.4)
    assert best < ssm
    assert clairvoyant(counts, bins, 0.4, ahead=6).total_bytes == best


@pytest.mark.parametrize("drift", [0.0, 0.05])
def test_the_clairvoyant_is_recorded_like_any_planner(drift):
    bins, counts = Bins.synthetic(24, drift=drift), [*COUNTS, 5, 3, 6]
    calls = []
    found = clairvoyant(counts, bins, 0.1, ahead=2, width=3, progress=lambda *call: calls.append(call))
    assert found.planner == "clairvoyant 2"
    assert calls[-1] == (9, 9)
    assert all(is_contiguous(each.owner) for each in found.migrations)
    assert all(each.heaviest <= (1 + each.tau) * (1 + 1e-7) for each in found.migrations)
    assert found.total_bytes == pytest.approx(sum(moved for moved, _ in recount(found, bins)))
    ssm = replay(counts, bins, "ssm", 0.1)
    assert [each.tau for each in found.migrations] == pytest.approx([each.tau for each in ssm.migrations])
    assert found.start == ssm.start
    again = clairvoyant(counts, bins, 0.1, ahead=2, width=3)
    assert [each.owner for each in again.migrations] == [each.owner for each in found.migrations]


def test_without_foresight_the_clairvoyant_is_as_good_as_ssm_at_the_first_step():
    bins = Bins.synthetic(24)
    for count in (3, 7):
        ssm, blind = replay([5, count], bins, "ssm", 0.2), clairvoyant([5, count], bins, 0.2, ahead=0)
        assert blind.total_bytes == pytest.approx(ssm.total_bytes)


def test_the_bound_is_zero_where_nothing_need_ever_move():
    bins = Bins.measured([1] * 16, [1] * 16)
    assert lower_bound([2, 4, 2, 3], bins, 1.0) == (0, 0)
    assert replay([2, 4, 2, 3], bins, "ssm", 1.0).total_bytes == 0


def test_the_bound_adds_up_over_days():
    bins = Bins.measured([1] * 16, [1] * 16)
    one, two = (lower_bound([2, *([8, 2] * days)], bins, 0.0) for days in (1, 2))
    # Two of eight workers can keep their sixteenths: 4 of 16 bins; 12 move on each way.
    assert (one.bytes, one.percent_per_migration) == (24, 75)
    assert (two.bytes, two.percent_per_migration) == (48, 75)
    assert replay([2, 8, 2], bins, "ssm", 0.0).total_bytes == 24


@pytest.mark.parametrize("drift", [0.0, 0.05])
@pytest.mark.parametrize("tau", [0.1, 0.4])
def test_the_bound_lies_below_every_contiguous_replay(drift, tau):
    bins = Bins.synthetic(32, drift=drift)
    counts = [4, 6, 8, 7, 5, 4, 5, 8, 6, 4, 7]
    bound = lower_bound(counts, bins, tau)
    assert bound.bytes > 0
    for found in (replay(counts, bins, "ssm", tau), clairvoyant(counts, bins, tau, ahead=4)):
        assert bound.bytes <= found.total_bytes
        assert bound.percent_per_migration <= found.percent_per_migration


def test_looking_ahead_over_too_many_bins_is_refused():
    with pytest.raises(TooLarge, match="use at most 1024"):
        clairvoyant([2, 3], Bins.synthetic(1025))


# --- plots ---


def picture(path):
    from matplotlib import image

    return image.imread(path)


def test_a_plot_is_one_png_with_a_line_for_each_planner(tmp_path):
    bins = Bins.synthetic(16)
    few = [replay(COUNTS, bins, "ssm", 0.3)]
    many = [*few, *(replay(COUNTS, bins, name, 0.3) for name in ("even", "free"))]
    paths = [plot(few, tmp_path / "few.png", "few"), plot(many, str(tmp_path / "deep" / "many.png"), "many")]
    shown = [picture(path) for path in paths]
    assert [path.read_bytes()[:4] for path in paths] == [b"\x89PNG"] * 2
    colours = [np.unique((each[..., :3] * 255).astype(int) @ [65536, 256, 1]).size for each in shown]
    assert shown[0].shape == shown[1].shape
    assert min(shown[0].shape[:2]) > 500
    assert colours[0] < colours[1]


def test_planners_that_move_nothing_can_be_drawn_too(tmp_path):
    bins = Bins.measured([1] * 16, [1] * 16)
    still = replay([2, 4, 2], bins, "ssm", 1.0)
    assert still.total_bytes == 0
    path = tmp_path / "still.png"
    for replays in ([still], [still, replay([2, 4, 2], bins, "even", 1.0), replay([2, 4, 2], bins, "redist", 1.0)]):
        assert picture(plot(replays, path)).size > 0


def test_the_room_is_pure():
    heavy = ["pyspark", "pyarrow", "numba", "matplotlib", "scipy"]
    modules = "meander_lab.replay, meander_lab.replay.plots"
    code = f"import sys, {modules}; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
