"""What is seen of a query: figures by hand, text that fits a terminal, and JSON that is not trusted."""

import json
import subprocess
import sys
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from effort import examples
from meander.errors import InvalidOption
from meander.native.observation import ExecutorFigures, Observation, PartitionFigures, printable

SAVE, JOIN = "0:stateStoreSave", "1:dedupe+symmetricHashJoin"


def part(number, executor, ms, group=SAVE, rows=10, state_bytes=2048):
    return PartitionFigures(group, number, executor, rows, state_bytes, ms, 12)


SEEN = Observation(
    query="words",
    run="run-1",
    batch=12,
    batch_ms=431.4,
    trigger_ms=1000.0,
    rows_per_s=12_340.0,
    time_ms=1_700_000_000_000,
    partitions=(
        part(0, "1", 30.0),
        part(1, "1", 50.0),
        part(2, "2", 10.0),
        part(3, None, 0.0),
        part(0, "2", 6.0, JOIN),
    ),
    executors=(ExecutorFigures("1", "a", 2), ExecutorFigures("2", "b", 1), ExecutorFigures("3", "c", 1)),
)


def only(*partitions, executors=SEEN.executors):
    return replace(SEEN, partitions=partitions, executors=executors)


def test_loads_are_sums_of_milliseconds_and_idle_executors_have_none():
    assert SEEN.groups == (SAVE, JOIN)
    assert SEEN.loads(SAVE) == {"1": 80.0, "2": 10.0, "3": 0.0}
    assert SEEN.loads(JOIN) == {"1": 0.0, "2": 6.0, "3": 0.0}
    assert SEEN.loads() == {"1": 80.0, "2": 16.0, "3": 0.0}


def test_imbalance_and_straggler_compare_time_per_core():
    # 80 ms on 2 cores are 40 ms, all 90 ms on 4 cores are 22.5 ms; the idle one is 100 % below that.
    assert SEEN.imbalance(SAVE) == pytest.approx(1.0)
    assert SEEN.straggler_ms(SAVE) == pytest.approx(17.5)
    # 6 ms on one core of four that share 6 ms.
    assert SEEN.imbalance(JOIN) == pytest.approx(3.0)
    assert SEEN.straggler_ms(JOIN) == pytest.approx(4.5)
    assert SEEN.imbalance() == pytest.approx(3.0), "the worst group"
    assert SEEN.straggler_ms() == pytest.approx(22.0), "one group runs after the other"


def test_a_draining_executor_counts_while_it_holds_something():
    leaving = (ExecutorFigures("1", "a", 1), ExecutorFigures("2", "b", 1, draining=True))
    holding = only(part(0, "1", 5.0), part(1, "2", 5.0), executors=leaving)
    assert holding.loads() == {"1": 5.0, "2": 5.0}
    empty = only(part(0, "1", 5.0), part(1, "1", 5.0), executors=leaving)
    assert empty.loads() == {"1": 10.0}
    assert (empty.imbalance(), empty.straggler_ms()) == (0.0, 0.0)


def test_it_counts_as_empty_for_the_groups_it_holds_nothing_of():
    leaving = (ExecutorFigures("1", "a", 1), ExecutorFigures("2", "b", 1, draining=True))
    both = only(part(0, "1", 5.0), part(0, "2", 5.0, JOIN), executors=leaving)
    assert both.loads(SAVE) == {"1": 5.0}
    assert both.loads(JOIN) == {"1": 0.0, "2": 5.0}


def test_a_partition_on_an_executor_that_is_gone_counts_as_not_placed():
    assert only(part(0, "1", 5.0), part(1, "9", 7.0)).loads() == {"1": 5.0, "2": 0.0, "3": 0.0}


@pytest.mark.parametrize(
    "seen", [only(), only(part(0, None, 0.0)), only(part(0, "1", 0.0)), only(part(0, "1", 1.0), executors=())]
)
def test_where_nothing_has_run_there_is_no_imbalance(seen):
    assert (seen.imbalance(), seen.straggler_ms()) == (0.0, 0.0)
    assert "words" in str(seen)


def test_an_unknown_group_is_named():
    with pytest.raises(InvalidOption, match="there is no group '2:x'; the groups are 0:stateStoreSave, 1:dedupe"):
        SEEN.loads("2:x")


@pytest.mark.parametrize(
    ("batch_ms", "trigger_ms", "is_behind"),
    [(431, 1000, False), (1000, 1000, False), (1001, 1000, True), (9, 0, False)],
)
def test_behind_is_longer_than_the_trigger_if_there_is_one(batch_ms, trigger_ms, is_behind):
    assert replace(SEEN, batch_ms=batch_ms, trigger_ms=trigger_ms).behind is is_behind


def test_the_text_has_every_executor_and_partition():
    lines = str(SEEN).splitlines()
    assert lines[0] == "words: batch 12 took 431 ms of its 1,000 ms, 12,340 rows/s"
    assert lines[2].split() == [
        "executor",
        "host",
        "cores",
        "partitions",
        "rows",
        "state",
        "KiB",
        "ms",
        "per",
        "batch",
        "share",
    ]
    assert lines[3].split() == ["1", "a", "2", "2", "20", "4", "80.0", "█" * 24]
    assert lines[4].split() == ["2", "b", "1", "2", "20", "4", "16.0", "█" * round(24 * 16 / 40)]
    assert lines[5].split() == ["3", "c", "1", "0", "0", "0", "0.0"]
    assert "0:stateStoreSave: LI 1.00, balance would save 17.5 ms of a batch" in lines
    assert "1:dedupe+symmetricHashJoin: LI 3.00, balance would save 4.5 ms of a batch" in lines
    table = lines[next(i for i, line in enumerate(lines) if line.startswith("group")) :]
    assert [line.split()[1:3] for line in table[1:]] == [["1", "1"], ["0", "1"], ["2", "2"], ["0", "2"], ["3", "-"]]
    assert len({len(line) for line in table}) == 1, "the columns stand below each other"


def test_the_text_of_one_group_does_not_name_it():
    text = str(only(part(0, "1", 1.0)))
    assert "stateStoreSave" not in text
    assert "\nLI 1.00, balance would save 0.2 ms of a batch" in text


def test_the_text_without_a_batch_or_a_trigger():
    assert str(replace(SEEN, batch=-1)).startswith("words: no batch has ended yet\n")
    assert str(replace(SEEN, trigger_ms=0.0)).startswith("words: batch 12 took 431 ms, 12,340 rows/s\n")
    assert "no state partition is known yet" in str(only())


def test_draining_is_seen():
    leaving = (ExecutorFigures("1", "a", 1, draining=True), ExecutorFigures("2", "b", 1, draining=True))
    lines = str(only(part(0, "1", 5.0), executors=leaving)).splitlines()
    assert lines[3].endswith("  " + "░" * 24)
    assert lines[4].endswith("  drained")


@pytest.mark.parametrize(("count", "shown"), [(64, 64), (65, 64), (300, 64)])
def test_of_many_partitions_the_slowest_are_shown(count, shown):
    lines = str(only(*(part(j, "1", float(j % 100 * 7 % 101)) for j in range(count)))).splitlines()
    at = next(i for i, line in enumerate(lines) if line.split()[:1] == ["partition"])
    rows = lines[at + 1 : at + 1 + shown]
    slowest = sorted((float(j % 100 * 7 % 101) for j in range(count)), reverse=True)
    assert [float(row.split()[-1]) for row in rows] == slowest[:shown]
    rest = lines[at + 1 + shown :]
    assert rest == ([] if count == shown else [f"these are the 64 slowest of {count} partitions"])


TEXTS = st.text(max_size=60)
COUNTS = st.integers(0, 2**63 - 1)
TIMES = st.floats(0, 1e15)
PARTITIONS = st.builds(
    PartitionFigures,
    group=TEXTS, partition=COUNTS, executor=st.none() | st.sampled_from(["1", "2"]) | TEXTS,
    rows=COUNTS, state_bytes=COUNTS, ms=TIMES, batch=st.integers(-1, 2**63 - 1),
)  # fmt: skip
EXECUTORS = st.builds(
    ExecutorFigures,
    executor=st.sampled_from(["1", "2"]) | TEXTS, host=TEXTS, cores=st.integers(1, 2**63 - 1), draining=st.booleans(),
)  # fmt: skip
OBSERVATIONS = st.builds(
    Observation,
    query=TEXTS, run=TEXTS, batch=st.integers(-1, 2**63 - 1), batch_ms=TIMES, trigger_ms=TIMES,
    rows_per_s=st.floats(0, 1e300), time_ms=COUNTS,
    partitions=st.lists(PARTITIONS, max_size=5).map(tuple),
    executors=st.lists(EXECUTORS, max_size=4, unique_by=lambda each: each.executor).map(tuple),
)  # fmt: skip


@examples(200)
@given(OBSERVATIONS)
def test_json_and_back(seen):
    data = seen.to_dict()
    assert Observation.from_dict(json.loads(json.dumps(data, allow_nan=False))) == seen
    assert data["partitions"] == [asdict(each) for each in seen.partitions]


@examples(200)
@given(OBSERVATIONS)
def test_the_text_fits_and_cannot_steer_a_terminal(seen):
    lines = str(seen).split("\n")
    assert max(map(len, lines)) <= 100
    assert all(line.isprintable() for line in lines)


@examples(200)
@given(OBSERVATIONS)
def test_balance_saves_nothing_less_than_nothing_and_no_more_than_all(seen):
    for group in seen.groups:
        most = sum(seen.loads(group).values())
        assert 0 <= seen.straggler_ms(group) <= most
        assert (seen.imbalance(group) == 0) or most > 0


PLAIN = json.loads(json.dumps(SEEN.to_dict()))


def changed(where, **fields):
    data = json.loads(json.dumps(PLAIN))
    (data[where][0] if where else data).update(fields)
    return data


def without(where, name):
    data = changed(where)
    del (data[where][0] if where else data)[name]
    return data


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (None, "an observation is a JSON object with query, run, .*, not null"),
        ([PLAIN], "not a list"),
        ({}, "an observation lacks the field 'query'"),
        (without(None, "executors"), "lacks the field 'executors'"),
        (without("partitions", "ms"), "a partition lacks the field 'ms'"),
        (changed(None, owner=1), "an observation has no field 'owner'"),
        (changed("executors", owner=1), "an executor has no field 'owner'"),
        (changed(None, query=7), "query must be a text of at most 1000 characters, not 7"),
        (changed(None, run=None), "run must be a text of at most 1000 characters, not null"),
        (changed(None, query="x" * 1001), "not one of 1001"),
        (changed(None, batch=-2), "batch is -2"),
        (changed(None, batch=True), "batch is True"),
        (changed(None, batch=1.0), "batch is 1.0"),
        (changed(None, batch_ms="1"), "batch_ms must be a number, not a text"),
        (changed(None, batch_ms=float("nan")), "batch_ms is nan"),
        (changed(None, batch_ms=1e16), "batch_ms is 1e.16; it must be at most 1e.15"),
        (changed(None, trigger_ms=-1), "trigger_ms is -1"),
        (changed(None, rows_per_s=float("inf")), "rows_per_s is inf"),
        (changed(None, time_ms=2**63), "time_ms is 9223372036854775808"),
        (changed(None, partitions={}), "partitions must be a list, not an object"),
        (changed(None, executors="12"), "executors must be a list, not a text"),
        (changed(None, partitions=[7]), "a partition is a JSON object with .*, not 7"),
        (changed("partitions", partition=-1), "number of a partition is -1"),
        (changed("partitions", executor=1), "executor of a partition must be a text"),
        (changed("partitions", rows=0.5), "rows of a partition is 0.5"),
        (changed("partitions", state_bytes=None), "state_bytes of a partition is None"),
        (changed("partitions", ms=-0.1), "ms of a partition is -0.1"),
        (changed("partitions", group=[]), "group of a partition must be a text"),
        (changed("executors", cores=0), "cores of an executor is 0"),
        (changed("executors", host=1), "host of an executor must be a text"),
        (changed("executors", draining=1), "draining of an executor must be true or false, not 1"),
    ],
)
def test_anything_else_is_refused_in_one_sentence(data, sentence):
    with pytest.raises(InvalidOption, match=sentence) as refusal:
        Observation.from_dict(data)
    assert "\n" not in str(refusal.value)


def test_whether_it_drains_may_be_left_out():
    assert Observation.from_dict(without("executors", "draining")) == SEEN


def test_printable_keeps_what_fits():
    assert printable("abcd", 4) == "abcd"
    assert printable("abcde", 4) == "abc…"
    assert printable("\x1b]0;x\x07\ud800\n", 20) == "?]0;x???"


def test_neither_module_imports_spark():
    code = (
        "import sys, meander.native.observation, meander.native.publish, meander.control\n"
        "print([name for name in ('pyspark', 'pyarrow', 'numba', 'rich') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
