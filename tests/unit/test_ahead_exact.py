"""Exact outlooks: known counts, hand-made cases, refusals, and outlooks as folders."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys

import numpy as np
import pytest

from meander import Problem, plan
from meander.errors import Damaged, Infeasible, InvalidOption, InvalidProblem, TooLarge
from meander.outlook import exact, files
from meander.outlook.exact import Case
from meander.outlook.exact_outlook import ExactOutlook
from meander.outlook.outlook import Outlook, fingerprint_of
from meander.outlook.partitions import partitions
from meander.outlook.transitions import Transitions
from meander.planning.intervals import prefix_sums
from outlooks import sizes, solve

PAPER = Transitions.given([[0.3, 0.6, 0.1], [0.3, 0.4, 0.3], [0.1, 0.5, 0.4]], lo=2)
UP_AND_DOWN = Transitions.given([[0, 1, 0], [0.5, 0, 0.5], [0, 1, 0]], lo=2)


def uneven(m=14, seed=3):
    rng = np.random.default_rng(seed)
    return rng.uniform(0.5, 2, m), rng.integers(1, 50, m).astype(float)


# --- what is feasible ---


def test_the_known_counts_of_a_hundred_equal_bins():
    case = Case.of([1] * 100, [1] * 100, PAPER, tau=0.2)
    assert sizes(case) == {2: 21, 3: 231, 4: 1771}
    feasible = case.feasible(case.table(0, case.partitionings))
    assert feasible.sum(axis=1).tolist() == [21, 231, 1771]
    # No cut into 3 is within the cap for 4, and so on: all are different.
    assert case.partitionings == 21 + 231 + 1771


def test_a_partitioning_that_is_feasible_for_several_numbers_of_workers_is_there_once():
    load, state = uneven()
    case = Case.of(load, state, PAPER, tau=1.5)
    table = case.table(0, case.partitionings)
    assert len(np.unique(table, axis=0)) == len(table) < sum(sizes(case).values())
    for n, flags in zip(case.taus, case.feasible(table), strict=True):
        expected = partitions(prefix_sums(load), n, case.cap(n), limit=10**6)
        assert sorted(tuple(row[: row.index(14) + 1]) for row in table[flags].tolist()) == expected


def test_an_infeasible_tau_is_raised_to_the_smallest_that_is_not_and_noted():
    outlook = solve([5, 1, 1, 1, 1, 1], [1] * 6, PAPER, tau=0.1)
    assert outlook.tau == 0.1
    assert outlook.taus == pytest.approx({2: 0.1, 3: 0.5, 4: 1.0})
    for n, tau in outlook.taus.items():
        owner = plan(Problem(outlook.load, outlook.state, [0] * 6, n, tau)).owner
        assert len(set(owner)) <= n
        if tau > 0.1:
            with pytest.raises(Infeasible):
                plan(Problem(outlook.load, outlook.state, [0] * 6, n, tau - 1e-4))


@pytest.mark.parametrize(("load", "counts"), [([0, 0, 0], {2: 3, 3: 4, 4: 4}), ([7], {2: 1, 3: 1, 4: 1})])
def test_no_load_at_all_and_fewer_bins_than_workers(load, counts):
    case = Case.of(load, [1] * len(load), PAPER, tau=0.2)
    assert sizes(case) == counts
    outlook = solve(load, [1] * len(load), PAPER, gamma=0.9)
    assert np.nanmin(outlook.projected) >= 0


# --- what it costs ---


def test_nothing_has_to_move_where_one_cut_suits_all():
    outlook = solve([1] * 12, [1] * 12, PAPER, tau=3, gamma=0.9)
    whole = next(v for row, v in zip(*outlook.partitionings(2), strict=True) if row[0] == 12)
    assert whole == pytest.approx(0, abs=1e-6 * 12)
    assert np.nanmax(outlook.projected) > 1


def test_two_bins_by_hand():
    # Three cuts: {0,1} and {0},{1}. For 1 worker only the first, for 2 only the second: 3 bytes move up, 3 down.
    back_and_forth = Transitions.given([[0, 1], [1, 0]], lo=1)
    outlook = solve([1, 1], [3, 5], back_and_forth, tau=0, gamma=0.5, epsilon=1e-9)
    assert outlook.ends.tolist() == [[2, 2], [1, 2]]
    expected = [[6, np.nan], [np.nan, 6]]
    assert outlook.projected == pytest.approx(np.array(expected), nan_ok=True)


@pytest.mark.parametrize("gamma", [0, 0.5, 0.95, 0.999])
def test_the_equation_holds_in_a_larger_case(gamma):
    load, state = uneven(16)
    epsilon = 1e-7
    outlook = solve(load, state, UP_AND_DOWN, tau=0.4, gamma=gamma, epsilon=epsilon)
    case = Case.of(load, state, UP_AND_DOWN, tau=0.4, epsilon=1e-9)
    costs = case.costs(outlook.ends, outlook.ends, same=True)
    onward = np.where(np.isnan(outlook.projected), np.inf, gamma * outlook.projected)
    least = np.array([(costs + row).min(axis=1) for row in onward])
    again = np.where(np.isnan(outlook.projected), np.nan, UP_AND_DOWN.matrix @ least)
    assert np.nanmax(np.abs(again - outlook.projected)) <= 2 * epsilon * state.sum()
    # Plain value iteration would need hundreds at a gamma of 0.95.
    assert outlook.sweeps <= (10 if gamma <= 0.95 else 40)


def test_a_finite_horizon_grows_to_the_infinite_one_and_foresight_would_only_be_cheaper():
    load, state = uneven(9)
    infinite = solve(load, state, PAPER, tau=0.3, gamma=0.7, epsilon=1e-9)
    before = np.zeros_like(infinite.projected)
    for horizon in (1, 2, 5, 60):
        now = solve(load, state, PAPER, tau=0.3, gamma=0.7, horizon=horizon).projected
        assert np.nanmin(now - before) >= -1e-9
        before = now
    assert before == pytest.approx(infinite.projected, rel=1e-6, nan_ok=True)
    # The papers' definition knows the whole sequence before it begins: never dearer, and often cheaper.
    two = solve(load, state, PAPER, tau=0.3, gamma=0.7, horizon=2, epsilon=1e-9)
    costs = Case.of(load, state, PAPER, epsilon=1e-9).costs(two.ends, two.ends, same=True)
    allowed = ~np.isnan(two.projected)
    foresight = np.zeros_like(two.projected)
    for n, (first, second) in itertools.product(range(3), itertools.product(range(3), repeat=2)):
        chance = PAPER.matrix[n, first] * PAPER.matrix[first, second]
        last = np.where(allowed[second], costs, np.inf).min(axis=1)
        foresight[n] += chance * np.where(allowed[first], costs + 0.7 * last, np.inf).min(axis=1)
    assert np.nanmin(two.projected - foresight) >= -1e-9
    assert np.nanmax(two.projected - foresight) > 0.1


def test_costs_are_kept_as_narrow_as_epsilon_allows():
    whole, fractions = [1000] * 6, [1000.5] * 6
    assert Case.of([1] * 6, whole, PAPER, gamma=0.99, epsilon=1e-9).dtype == np.float32
    assert Case.of([1] * 6, [10**9] * 6, PAPER, gamma=0.8).dtype == np.float32
    assert Case.of([1] * 6, fractions, PAPER, gamma=0.8).dtype == np.float32
    assert Case.of([1] * 6, fractions, PAPER, gamma=0.99).dtype == np.float64
    assert Case.of([1] * 6, fractions, PAPER, gamma=0.8, epsilon=1e-8).dtype == np.float64


# --- asking ---


def test_looking_ahead_pays_where_the_next_migration_is_known():
    """A worker comes and goes, again and again; the cheapest step now is not the cheapest way."""
    load, state = uneven(16, seed=5)
    certain = Transitions.given([[0, 1], [1, 0]], lo=3)

    def replay(choose, steps=40):
        owner, total = list(plan(Problem(load, state, [0] * 16, 3, 0.3)).owner), 0.0
        for step in range(steps):
            problem = Problem(load, state, owner, 4 if step % 2 == 0 else 3, 0.3)
            after = choose(problem)
            total += sum(s for s, old, new in zip(state, owner, after, strict=True) if old != new)
            owner = list(after)
        return total

    outlook = solve(load, state, certain, tau=0.3, gamma=0.95)
    ahead = replay(lambda problem: outlook.choose(problem).owner)
    greedy = replay(lambda problem: plan(problem, "ssm").owner)
    assert ahead < greedy


def test_a_worker_that_must_leave_keeps_nothing():
    outlook = solve([1] * 6, [1] * 6, PAPER, tau=0.0)
    problem = Problem([1] * 6, [1] * 6, [7, 7, 7, 8, 8, 8], 2, 0.0, must_leave=[7])
    owner, workers, _ = outlook.choose(problem)
    assert (owner, workers) == ([9, 9, 9, 8, 8, 8], [8, 9])
    rest = outlook.gamma * outlook.partitionings(2)[1][0]
    assert outlook.estimate(problem, owner) == pytest.approx(3 + rest)


def test_of_equal_choices_the_most_even_is_taken():
    # No state anywhere, so all cuts cost the same.
    outlook = solve([1] * 8, [0] * 8, PAPER, tau=0.5)
    owner, _, _ = outlook.choose(Problem([1] * 8, [0] * 8, [0] * 8, 4, 0.5))
    assert [len(list(members)) for _, members in itertools.groupby(owner)] == [2, 2, 2, 2]
    # What has no state stays with its owner where it can, all the same.
    assert owner.count(0) == 2


def test_when_all_state_has_doubled_so_has_what_is_to_come():
    load, state = uneven()
    outlook = solve(load, state, PAPER, tau=0.4, gamma=0.9)
    before = Problem(load, state, [0] * 7 + [1] * 7, 4, 0.4)
    after = Problem(load, 2 * state, [0] * 7 + [1] * 7, 4, 0.4)
    assert outlook.choose(after) == outlook.choose(before)
    owner = outlook.choose(before).owner
    assert outlook.estimate(after, owner) == pytest.approx(2 * outlook.estimate(before, owner))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"load": [1] * 5, "state": [1] * 5, "owner": [0] * 5}, "about 6 bins and the problem has 5"),
        ({"workers": 5}, "about 2 to 4 workers and the problem wants 5"),
        ({"owner": [0, 1, 0, 1, 0, 1]}, "intervals"),
        ({"pinned": [0]}, "bins that may all move"),
        ({"capacities": [1, 2]}, "equal workers"),
    ],
)
def test_a_problem_of_another_kind_is_refused_with_the_reason(change, why):
    outlook = solve([1] * 6, [1] * 6, PAPER)
    fields = {"load": [1] * 6, "state": [1] * 6, "owner": [0, 0, 0, 1, 1, 1], "workers": 2, **change}
    problem = Problem(**fields)
    assert why in outlook.unfit(problem)
    for ask in (lambda: outlook.choose(problem), lambda: outlook.estimate(problem, problem.owner)):
        with pytest.raises(InvalidProblem, match=why):
            ask()


def test_what_fits_has_no_reason_and_a_scattered_target_no_estimate():
    outlook = solve([1] * 6, [1] * 6, PAPER)
    problem = Problem([1] * 6, [1] * 6, [0, 0, 0, 1, 1, 1], 3)
    assert outlook.unfit(problem) is None
    with pytest.raises(InvalidProblem, match="the target is no list of intervals"):
        outlook.estimate(problem, [0, 1, 0, 1, 0, 1])
    with pytest.raises(InvalidOption, match="2 to 4 workers, not 5"):
        outlook.partitionings(5)


# --- refusals ---


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"gamma": 1}, "gamma is 1, and without a discount .* infinite"),
        ({"gamma": 1.1}, "gamma is 1.1"),
        ({"gamma": -0.1}, "gamma is -0.1"),
        ({"gamma": float("nan")}, "gamma is nan"),
        ({"gamma": "much"}, "gamma must be a number"),
        ({"gamma": 1.1, "horizon": 3}, "gamma is 1.1"),
        ({"horizon": -1}, "horizon is -1"),
        ({"epsilon": 0}, "epsilon is 0"),
        ({"gamma": 0.9999, "epsilon": 1e-9}, "at gamma 0.9999 it must be from 1e-06"),
        ({"tau": -1}, "tau is -1"),
    ],
)
def test_impossible_options_are_refused(options, why):
    with pytest.raises((InvalidOption, InvalidProblem), match=why):
        solve([1] * 4, [1] * 4, PAPER, **options)


def test_bad_bins_are_refused_by_name():
    with pytest.raises(InvalidProblem, match="load of bin 1 is -1"):
        solve([1, -1], [1, 1], PAPER)
    with pytest.raises(InvalidProblem, match="state has 1 entry but load has 2"):
        solve([1, 1], [1], PAPER)
    with pytest.raises(InvalidProblem, match="load is empty"):
        solve([], [], PAPER)


def test_too_many_partitionings_are_refused_without_being_made(monkeypatch):
    many = Transitions.given(np.full((9, 9), 1 / 9).tolist(), lo=8)
    with pytest.raises(TooLarge, match="more than 60000 partitionings of 64 bins .* 8 to 16 workers"):
        solve([1] * 64, [1] * 64, many, tau=1.2)
    monkeypatch.setattr(exact, "MOST_IN_DRIVER", 2000)
    with pytest.raises(TooLarge, match="2023 partitionings are more than the 2000"):
        solve([1] * 100, [1] * 100, PAPER)


# --- as a folder ---


@pytest.fixture
def outlook():
    return solve(*uneven(), PAPER, tau=0.3)


def test_an_outlook_comes_back_from_its_folder_as_it_was(outlook, tmp_path):
    files.write(outlook, tmp_path / "deep" / "er")
    again = files.read(tmp_path / "deep" / "er")
    assert isinstance(again, ExactOutlook)
    assert again.fingerprint == outlook.fingerprint
    assert again.inputs() == outlook.inputs()
    assert again.taus == outlook.taus
    assert (again.sweeps, again.horizon, again.epsilon) == (outlook.sweeps, None, 1e-6)
    assert np.array_equal(again.ends, outlook.ends)
    assert np.array_equal(again.projected, outlook.projected, equal_nan=True)
    problem = Problem(outlook.load, outlook.state, [0] * 7 + [1] * 7, 3, 0.3)
    assert again.choose(problem) == outlook.choose(problem)


def test_a_newer_outlook_replaces_an_older_one_and_nothing_else_is_left(outlook, tmp_path):
    files.write(outlook, tmp_path)
    other = solve(*uneven(), PAPER, tau=0.3, gamma=0.5)
    files.write(other, tmp_path)
    assert files.read(tmp_path).fingerprint == other.fingerprint != outlook.fingerprint
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json", ".parquet"]


def test_a_writer_that_is_killed_leaves_the_older_outlook(outlook, tmp_path, monkeypatch):
    files.write(outlook, tmp_path)
    put = files.put

    def killed(path, data):
        if path.name == files.INDEX:
            raise KeyboardInterrupt
        put(path, data)

    monkeypatch.setattr(files, "put", killed)
    with pytest.raises(KeyboardInterrupt):
        files.write(solve(*uneven(), PAPER, tau=0.3, gamma=0.5), tmp_path)
    assert files.read(tmp_path).fingerprint == outlook.fingerprint


def test_parquet_files_are_readable_by_others(outlook, tmp_path):
    from pyarrow import parquet

    files.write(outlook, tmp_path)
    (path,) = tmp_path.glob("*.parquet")
    rows = parquet.read_table(path).to_pylist()
    assert rows[3]["ends"] == outlook.ends[3].tolist()
    assert len(rows) == len(outlook.ends)
    assert set(rows[0]) == {"ends", "workers_2", "workers_3", "workers_4"}


def test_what_is_missing_or_changed_is_noticed(outlook, tmp_path):
    with pytest.raises(InvalidOption, match="holds no finished outlook"):
        files.read(tmp_path)
    files.write(outlook, tmp_path)
    (path,) = tmp_path.glob("*.parquet")
    data = path.read_bytes()
    path.write_bytes(data[:-9] + b"x" + data[-8:])
    with pytest.raises(Damaged, match="is not what was written"):
        files.read(tmp_path)
    path.unlink()
    with pytest.raises(Damaged, match="is missing"):
        files.read(tmp_path)
    path.write_bytes(data)
    index = json.loads((tmp_path / files.INDEX).read_text())
    for change, refusal, why in [
        ({"kind": "guessed"}, InvalidOption, "kind 'guessed'; known are exact"),
        ({"format": 99}, InvalidOption, "not of format 1"),
        ({"facts": {**index["facts"], "gamma": 0.5}}, Damaged, "its inputs are not those"),
        ({"facts": {}}, Damaged, "load"),
    ]:
        (tmp_path / files.INDEX).write_text(json.dumps({**index, **change}))
        with pytest.raises(refusal, match=why):
            files.read(tmp_path)
    (tmp_path / files.INDEX).write_text("{")
    with pytest.raises(Damaged, match="is no JSON"):
        files.read(tmp_path)


def test_another_kind_of_outlook_plugs_in_by_being_defined(outlook, tmp_path):
    class Guess(Outlook, kind="guess"):
        def to_tables(self):
            return {"a": {"x": np.arange(3), "y": np.eye(3)}, "b": {"z": np.array([0.5])}}

        @classmethod
        def from_tables(cls, facts, tables):
            made = cls(**cls.common(facts))
            object.__setattr__(made, "tables", tables)
            return made

    try:
        common = {name: getattr(outlook, name) for name in ("load", "state", "tau", "taus", "gamma", "transitions")}
        files.write(Guess(**common), tmp_path)
        again = files.read(tmp_path)
        assert isinstance(again, Guess)
        assert again.fingerprint != outlook.fingerprint
        assert np.array_equal(again.tables["a"]["y"], np.eye(3))
        assert again.tables["b"]["z"].tolist() == [0.5]
    finally:
        del Outlook.kinds["guess"]


def test_a_fingerprint_is_the_same_in_every_process_and_another_for_other_inputs(outlook):
    code = (
        "from meander.outlook.transitions import Transitions\n"
        "from meander.outlook.exact import Case\n"
        "from meander.outlook.outlook import fingerprint_of\n"
        "import sys\n"
        "m = Transitions.given([[0.3, 0.6, 0.1], [0.3, 0.4, 0.3], [0.1, 0.5, 0.4]], lo=2)\n"
        "print(fingerprint_of('exact', Case.of([1, 2, 3.5], [4, 5, 6], m).inputs()))\n"
        "print([m for m in ('numba', 'pyarrow', 'pyspark', 'scipy', 'rich') if m in sys.modules])"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    bins = ([1, 2, 3.5], [4, 5, 6])
    assert printed[:2] == [fingerprint_of("exact", Case.of(*bins, PAPER).inputs()), "[]"]
    others = [
        Case.of(*bins, PAPER, gamma=0.5),
        Case.of(*bins, PAPER, tau=0.3),
        Case.of(*bins, UP_AND_DOWN),
        Case.of(bins[1], bins[0], PAPER),
        Case.of(*bins, PAPER, epsilon=1e-5),
        Case.of(*bins, PAPER, horizon=3),
    ]
    assert len({fingerprint_of("exact", case.inputs()) for case in others} | {printed[0]}) == 7
    assert outlook.fingerprint == fingerprint_of("exact", Case.of(*uneven(), PAPER, tau=0.3).inputs())
