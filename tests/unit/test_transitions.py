"""Worker counts and their transition matrix, against plain loops."""

import itertools
import json
import math
import random
import subprocess
import sys

import numpy as np
import pytest

from meander.errors import InvalidOption
from meander.outlook import Transitions, migrations, worker_counts
from meander.outlook.transitions import tally

TABLE_4 = [[0.3, 0.6, 0.1], [0.3, 0.4, 0.3], [0.1, 0.5, 0.4]]


def walk(length, lo, hi, seed=3):
    """Worker counts that mostly take small steps and often stay."""
    rng, now, found = random.Random(seed), (lo + hi) // 2, []
    for _ in range(length):
        now = min(hi, max(lo, now + rng.choice([-2, -1, -1, 0, 0, 1, 1, 3])))
        found.append(now)
    return found


def recounted(counts, lo, hi, keep_equal=False):
    """How often each count is followed by each other one, by two loops."""
    found = {(n, after): 0 for n in range(lo, hi + 1) for after in range(lo, hi + 1)}
    for n, after in itertools.pairwise(counts):
        if n != after or keep_equal:
            found[n, after] += 1
    return found


def expected(seen, n, lo, hi, keep_equal=False):
    """The row that would be expected of n, from all that was seen, by the formula."""
    weights = []
    for after in range(lo, hi + 1):
        as_far = sum(times for (x, y), times in seen.items() if y - x == after - n)
        to_there = sum(times for (_, y), times in seen.items() if y == after)
        weights.append(0.0 if after == n and not keep_equal else math.sqrt((1 + as_far) * (1 + to_there)))
    return [weight / sum(weights) for weight in weights]


def test_table_4_of_the_paper():
    assert Transitions.given(TABLE_4, lo=2).probability([2, 3, 4]) == 0.18
    assert Transitions.given(TABLE_4, lo=2).probability([4]) == 1.0
    assert Transitions.given(TABLE_4, lo=2).probability(np.array([3, 3, 2, 4])) == pytest.approx(0.4 * 0.3 * 0.1)


@pytest.mark.parametrize("keep_equal", [False, True])
@pytest.mark.parametrize("smoothing", [0, 0.5, 8])
def test_a_learned_matrix_is_what_two_loops_count(keep_equal, smoothing):
    lo, hi, counts = 3, 9, [n for n in walk(300, 3, 9) if n != 7]
    seen = recounted(counts, lo, hi, keep_equal)
    learned = Transitions.of(counts, lo, hi, keep_equal=keep_equal, smoothing=smoothing)
    for n in range(lo, hi + 1):
        prior = expected(seen, n, lo, hi, keep_equal)
        left = sum(seen[n, after] for after in range(lo, hi + 1))
        row = [
            (seen[n, after] + smoothing * prior[after - lo]) / (left + smoothing) if left else prior[after - lo]
            for after in range(lo, hi + 1)
        ]
        assert learned.row(n).tolist() == pytest.approx(row, abs=1e-12)


def test_without_smoothing_rows_that_were_seen_are_relative_frequencies():
    learned = Transitions.of([2, 3, 2, 4, 2, 3, 3, 2], 2, 5, smoothing=0)
    assert learned.row(2).tolist() == [0, 2 / 3, 1 / 3, 0]
    assert learned.row(3).tolist() == learned.row(4).tolist() == [1, 0, 0, 0]
    assert learned.row(5)[3] == 0
    assert learned.row(5).sum() == pytest.approx(1)
    assert learned.row(5).tolist() == pytest.approx(expected(recounted([2, 3, 2, 4, 2, 3, 2], 2, 5), 5, 2, 5))


def test_equal_neighbours_are_no_migration_unless_they_are_kept():
    assert tally([2, 2, 3, 3, 2], 2, 3).tolist() == [[0, 1], [1, 0]]
    assert tally([2, 2, 3, 3, 2], 2, 3, keep_equal=True).tolist() == [[1, 1], [1, 1]]
    assert Transitions.of([2, 2, 3, 3, 2], 2, 3).matrix.tolist() == [[0, 1], [1, 0]]
    assert Transitions.of([2, 2, 3, 3, 2], 2, 3, keep_equal=True, smoothing=0).matrix.tolist() == [[0.5, 0.5]] * 2


def test_nothing_seen_is_anything_alike():
    assert Transitions.of([5, 5, 5], 4, 6).matrix.tolist() == [[0, 0.5, 0.5], [0.5, 0, 0.5], [0.5, 0.5, 0]]
    assert Transitions.of([], 4, 5, keep_equal=True).matrix.tolist() == [[0.5, 0.5], [0.5, 0.5]]


def test_a_matrix_cannot_be_changed_and_does_not_change_with_its_source():
    source = np.array(TABLE_4)
    made = Transitions.given(source, lo=2)
    source[0] = [1, 0, 0]
    assert made.matrix.tolist() == TABLE_4
    with pytest.raises(ValueError, match="read-only"):
        made.matrix[0, 0] = 1
    with pytest.raises(ValueError, match="read-only"):
        made.row(3)[0] = 1


def test_a_matrix_survives_json_and_has_the_same_fingerprint_in_another_process():
    learned = Transitions.of(walk(200, 8, 16), 8, 16)
    text = json.dumps({**learned.to_dict(), "notes": []})
    assert Transitions.from_dict(json.loads(text)) == learned
    assert json.dumps(Transitions.given(TABLE_4, np.int64(2)).to_dict()) == json.dumps(
        {"lo": 2, "hi": 4, "matrix": TABLE_4}
    )
    code = (
        "import json, sys; from meander.outlook import Transitions\n"
        "print(Transitions.from_dict(json.load(sys.stdin)).fingerprint())"
    )
    done = subprocess.run([sys.executable, "-c", code], input=text, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == learned.fingerprint()


def test_equality_and_fingerprint_tell_matrices_apart():
    made = Transitions.given(TABLE_4, lo=2)
    other = Transitions.given([TABLE_4[1], TABLE_4[0], TABLE_4[2]], lo=2)
    assert made == Transitions(2, 4, TABLE_4)
    assert len({made, Transitions(2, 4, TABLE_4), other, Transitions.given(TABLE_4, lo=3)}) == 3
    assert made != TABLE_4


@pytest.mark.parametrize("keep_equal", [False, True])
def test_a_judgement_is_what_a_loop_over_the_migrations_says(keep_equal):
    learned = Transitions.of(walk(300, 3, 9, seed=1), 3, 9, keep_equal=keep_equal)
    after = walk(200, 3, 9, seed=2)
    logs, among = [], 0
    for n, to in itertools.pairwise(after):
        if n != to or keep_equal:
            row = learned.row(n).tolist()
            logs.append(math.log(row[to - 3]))
            among += to - 3 in sorted(range(7), key=lambda at: (-row[at], at))[:3]
    found = learned.judge(after, keep_equal=keep_equal)
    assert found.migrations == len(logs)
    assert found.log_likelihood == pytest.approx(sum(logs) / len(logs))
    assert found.perplexity == pytest.approx(math.exp(-sum(logs) / len(logs)))
    assert found.among_likely == pytest.approx(among / len(logs))
    assert found.uniform == (7 if keep_equal else 6)
    assert found.perplexity < found.uniform


def test_a_judgement_of_what_was_held_to_be_impossible_and_of_nothing():
    learned = Transitions.of([2, 3, 2, 3], 2, 4, smoothing=0)
    assert learned.judge([2, 4]).perplexity == math.inf
    assert learned.judge([2, 3, 2]).perplexity == 1
    assert learned.judge([3, 3]).migrations == 0


def test_worker_counts_of_a_series_whose_percentiles_are_known():
    amounts = [0] * 20 + [1, 2, 3, 4] + [4] * 20
    assert worker_counts(amounts, 8, 16).tolist() == [8] * 20 + [10, 12, 14, 16] + [16] * 20


def test_halves_are_rounded_up():
    amounts = [0] * 20 + [1, 2, 3] + [4] * 20
    assert worker_counts(amounts, 8, 10)[20:23].tolist() == [9, 9, 10]
    assert worker_counts(amounts, 9, 11)[20:23].tolist() == [10, 10, 11]


def test_one_burst_does_not_flatten_the_series():
    amounts = list(range(200))
    amounts[100] = 1_000_000
    counts = worker_counts(amounts, 8, 16)
    assert counts[100] == 16
    assert (np.bincount(counts)[8:] >= 10).all()


def test_a_series_that_is_always_the_same_asks_for_the_fewest():
    assert worker_counts([7.5] * 5, 2, 4).tolist() == [2] * 5


def test_migrations_have_no_equal_neighbours():
    assert migrations([8, 8, 9, 9, 8]).tolist() == [8, 9, 8]
    assert migrations(np.array([0.0, 0.0, 2.0])).tolist() == [0, 2]
    assert migrations([]).tolist() == []


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: Transitions.given([[0.5, 0.6], [0.5, 0.5]], 2), "the row of 2 workers is no distribution"),
        (lambda: Transitions.given([[1, 0], [1.5, -0.5]], 2), "the row of 3 workers is no distribution"),
        (lambda: Transitions.given([[1, 0], [math.nan, 1]], 2), "the row of 3 workers is no distribution"),
        (lambda: Transitions.given([[1, 0]], 2), r"shape \(1, 2\); for 2 to 2 workers it has 1 rows of 1"),
        (lambda: Transitions.given([[1, 0], [1]], 2), "must be a list of rows of numbers"),
        (lambda: Transitions.given([["a"]], 2), "must be a list of rows of numbers"),
        (lambda: Transitions.given(3, 2), "must be a list of rows of numbers"),
        (lambda: Transitions.given([[1.0]], 0), "lo is 0; it must be a whole number of at least 1"),
        (lambda: Transitions.given([], 2), "hi is 1; it must be a whole number of at least 2"),
        (lambda: Transitions.from_dict({"lo": 2}), '"meander mtm" prints one'),
        (lambda: Transitions.from_dict([1]), '"meander mtm" prints one'),
        (lambda: Transitions.of([2, 9], 2, 4), "a count of 9 workers; widen lo and hi, which are 2 and 4"),
        (lambda: Transitions.of([2, 2.5], 2, 4), "whole numbers; 2.5 is none"),
        (lambda: Transitions.of([2, math.nan], 2, 4), "whole numbers; nan is none"),
        (lambda: Transitions.of("23", 2, 4), "must be a list of whole numbers"),
        (lambda: Transitions.of([[2], [3]], 2, 4), "must be a list of whole numbers"),
        (lambda: Transitions.of([2, 3], 2, 2), "hi is 2; it must be a whole number from 3 to 1025"),
        (lambda: Transitions.of([2, 3], 2, 4, smoothing=-1), "smoothing is -1"),
        (lambda: Transitions.given(TABLE_4, 2).row(5), "the number of workers is 5; .* from 2 to 4"),
        (lambda: Transitions.given(TABLE_4, 2).probability([2, 1]), "the number of workers is 1"),
        (lambda: Transitions.given(TABLE_4, 2).probability([]), "there is no count"),
        (lambda: worker_counts([], 2, 4), "a list of finite numbers, one for each hour, and not empty"),
        (lambda: worker_counts([1, math.inf], 2, 4), "a list of finite numbers"),
        (lambda: worker_counts([1, 2], 4, 4), "hi is 4; it must be a whole number from 5"),
        (lambda: worker_counts([1, 2], 0, 4), "lo is 0; it must be a whole number from 1"),
    ],
)
def test_nonsense_is_refused_in_one_sentence(call, sentence):
    with pytest.raises(InvalidOption, match=sentence) as refused:
        call()
    assert "\n" not in str(refused.value)
