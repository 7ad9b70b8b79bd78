"""The past of a stream, from files, events and checkpoints, against dictionaries and plain loops."""

import datetime
import json
import random
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from meander.errors import CheckpointError, InvalidOption
from meander.outlook import Series, counts_from_checkpoint, counts_from_events, read_counts, read_series
from meander.store.entries import Commit, OperatorCommit
from meander.store.identity import Identity
from meander.store.location import Location
from meander.store.manifest import Log
from meander.store.retention import sweep

START = datetime.datetime(2026, 2, 26, 21, 42, 53)
MOMENTS = ["2026-02-26 21:42:53", "2026-02-26 21:47:53", "2026-02-26 21:52:53"]
SECONDS = [1772142173, 1772142473, 1772142773]


def rows(count, step_s=300, seed=1, start=START):
    rng = random.Random(seed)
    return [(start + datetime.timedelta(seconds=step_s * at), rng.randrange(200)) for at in range(count)]


def series(found):
    return Series(np.array([when for when, _ in found], "datetime64[s]"), np.array([value for _, value in found]))


def csv_of(tmp_path, lines, name="series.csv", **options):
    path = tmp_path / name
    path.write_text("\n".join(lines) + "\n", **options)
    return path


def plain(found):
    return [(when.item(), value) for when, value in zip(found.times, found.values.tolist(), strict=True)]


# --- hours ---------------------------------------------------------------------------------


@pytest.mark.parametrize("step_s", [60, 300, 420, 1800])
def test_hours_are_what_a_dictionary_sums_without_those_covered_in_part(step_s):
    found = rows(40 * 3600 // step_s, step_s)
    sums = {}
    for when, value in found:
        hour = when.replace(minute=0, second=0)
        sums[hour] = sums.get(hour, 0) + value
    first, last = min(sums), max(sums)
    del sums[first]  # it begins at 21:42
    if found[-1][0] + datetime.timedelta(seconds=step_s) < last + datetime.timedelta(hours=1):
        del sums[last]
    assert plain(series(found).hourly()) == sorted(sums.items())


def test_hours_that_begin_and_end_with_the_series_are_whole():
    found = rows(24, 300, start=datetime.datetime(2026, 1, 1))
    assert len(series(found).hourly()) == 2
    assert len(series(found[:-1]).hourly()) == 1
    assert len(series(found[1:]).hourly()) == 1


def test_hours_without_rows_are_left_out_or_filled():
    found = rows(12 * 10, 300, start=datetime.datetime(2026, 1, 1))
    found = [row for row in found if row[0].hour not in (3, 4, 7)]
    left = series(found).hourly()
    assert [when.hour for when, _ in plain(left)] == [0, 1, 2, 5, 6, 8, 9]
    assert left.notes == ("3 hours have no row and are left out",)
    filled = series(found).hourly(fill=0)
    assert [when.hour for when, _ in plain(filled)] == list(range(10))
    assert [when.hour for when, value in plain(filled) if value == 0] == [3, 4, 7]
    assert [row for row in plain(filled) if row[1]] == plain(left)
    assert filled.notes == ("3 hours have no row and are taken as 0",)


@pytest.mark.parametrize("step_s", [2400, 7200, 86400])
def test_rows_that_are_too_far_apart_for_hours_are_steps(step_s):
    given = series(rows(20, step_s))
    assert plain(given.hourly()) == plain(given)
    assert given.hourly().notes == (f"rows are {step_s} s apart, and each is one step",)


def test_an_hourly_series_stays_what_it_is():
    given = series(rows(20, 3600, start=datetime.datetime(2026, 1, 1)))
    assert plain(given.hourly()) == plain(given)
    assert given.hourly().notes == ()
    gap = series([row for at, row in enumerate(plain(given)) if at != 5])
    assert len(gap.hourly()) == 19
    assert len(gap.hourly(fill=0)) == 20


def test_a_clock_that_jitters_about_the_hour_loses_no_row():
    found = [
        (datetime.datetime(2026, 1, 1, 1) + datetime.timedelta(seconds=3600 * at + at % 3 - 1), 1) for at in range(30)
    ]
    assert len(series(found).hourly()) == 30


def test_one_row_is_one_step():
    assert plain(series(rows(1)).hourly()) == plain(series(rows(1)))


def test_what_covers_no_whole_hour_is_refused():
    with pytest.raises(InvalidOption, match="the series has no whole hour; give more of it"):
        series(rows(10)).hourly()


# --- learning and judging ------------------------------------------------------------------


def test_the_first_month_is_learned_from_and_the_rest_judged():
    given = series(rows(24 * 55, 3600))
    learned, judged = given.learn_and_judge()
    assert plain(learned) + plain(judged) == plain(given)
    assert len(learned) == 24 * 30
    assert learned.notes == judged.notes == ()
    assert [len(part) for part in given.learn_and_judge(days=10)] == [240, 24 * 45]


@pytest.mark.parametrize(("hours", "first"), [(24 * 37, 444), (24 * 37 + 1, 720), (24 * 3, 36), (3, 1), (2, 1)])
def test_a_short_series_is_cut_in_half_and_says_so(hours, first):
    learned, judged = series(rows(hours, 3600)).learn_and_judge()
    assert (len(learned), len(judged)) == (first, hours - first)
    short = "the series is shorter than 30 days and a week: its first half is learned from, the other judged"
    assert learned.notes == judged.notes == ((short,) if first != 720 else ())


def test_one_step_cannot_be_cut():
    with pytest.raises(InvalidOption, match="a series of one step cannot be cut"):
        series(rows(1)).learn_and_judge()


def test_workers_are_scaled_over_the_whole_series():
    given = series([(START + datetime.timedelta(hours=at), at) for at in range(1000)])
    workers = given.workers(8, 16)
    assert (workers.values[0], workers.values[-1]) == (8, 16)
    assert workers.learn_and_judge()[0].values.max() == 14
    assert (workers.times == given.times).all()


@pytest.mark.parametrize(
    ("times", "values", "sentence"),
    [
        ([0, 1], [1.0], "here are 1 for 2 times"),
        ([], [], "here are 0 for 0 times"),
        ([2, 1], [1.0, 1.0], "must ascend"),
        ([1, 2], [1.0, -1.0], "finite and at least 0"),
        ([1, 2], [1.0, float("nan")], "finite and at least 0"),
    ],
)
def test_what_is_no_series_is_refused(times, values, sentence):
    with pytest.raises(InvalidOption, match=sentence):
        Series(np.array(times, "datetime64[s]"), np.array(values))


def test_a_series_cannot_be_changed():
    given = series(rows(3))
    with pytest.raises(ValueError, match="read-only"):
        given.values[0] = 7


# --- files ---------------------------------------------------------------------------------


@pytest.mark.parametrize("header", [["timestamp,value"], []])
@pytest.mark.parametrize(
    "moments",
    [
        MOMENTS,
        [moment.replace(" ", "T") + ".75" for moment in MOMENTS],
        [f"{moment}Z" for moment in MOMENTS],
        ["2026-02-26T23:42:53+02:00", "2026-02-26T23:47:53+02:00", "2026-02-26T23:52:53+02:00"],
        SECONDS,
        [f"{second}.5" for second in SECONDS],
        [second * 1000 + 999 for second in SECONDS],
        [second * 10**6 for second in SECONDS],
        [second * 10**9 for second in SECONDS],
    ],
    ids=["iso", "fraction", "zulu", "offset", "s", "float s", "ms", "us", "ns"],
)
def test_csv_with_and_without_a_header_in_any_unit_of_time(tmp_path, header, moments):
    path = csv_of(tmp_path, [*header, *(f"{when},{at + 0.5}" for at, when in enumerate(moments))])
    expected = [(datetime.datetime.fromisoformat(when), at + 0.5) for at, when in enumerate(MOMENTS)]
    assert plain(read_series(path)) == expected


def test_rows_in_any_order_and_several_of_one_time(tmp_path):
    found = rows(200)
    twice = found + [(when, 1000) for when, _ in found[::7]]
    random.Random(2).shuffle(twice)
    path = csv_of(tmp_path, ["when,amount", *(f"{when},{value}" for when, value in twice)])
    sums = {}
    for when, value in twice:
        sums[when] = sums.get(when, 0) + value
    assert plain(read_series(path)) == sorted(sums.items())


def test_columns_are_found_by_what_is_in_them_or_named(tmp_path):
    lines = ["place;count;when;users", *(f"x{at};{at};{when};{9 - at}" for at, when in enumerate(MOMENTS))]
    path = csv_of(tmp_path, lines)
    found = read_series(path)
    assert found.values.tolist() == [0, 1, 2]
    assert found.notes == ("the amounts are those of the column count; others with numbers are users",)
    named = read_series(path, value="users")
    assert (named.values.tolist(), named.notes) == ([9, 8, 7], ())
    with pytest.raises(InvalidOption, match="has no column 'user'; its columns are place, count, when, users$"):
        read_series(path, value="user")


def test_columns_without_a_header_are_numbered_and_small_numbers_are_times_when_asked(tmp_path):
    path = csv_of(tmp_path, ["5\t0\t7", "6\t300\t8"])
    found = read_series(path, time="2", value="3")
    assert plain(found) == [(datetime.datetime(1970, 1, 1), 7), (datetime.datetime(1970, 1, 1, 0, 5), 8)]


def test_a_byte_order_mark_quotes_and_empty_lines_do_not_matter(tmp_path):
    path = csv_of(tmp_path, ['"when","value"', "", f'"{MOMENTS[0]}","3"', " , "], encoding="utf-8-sig")
    assert read_series(path).values.tolist() == [3]


@pytest.mark.parametrize(
    "times",
    [
        pa.array([second * 10**9 + 7 for second in SECONDS], pa.int64()).cast(pa.timestamp("ns")),
        pa.array([second * 1000 for second in SECONDS], pa.int64()).cast(pa.timestamp("ms", "Asia/Kathmandu")),
        pa.array(SECONDS, pa.int64()),
        pa.array([second * 1000 for second in SECONDS], pa.int64()),
        pa.array(MOMENTS),
    ],
    ids=["ns", "zone", "s", "ms", "text"],
)
@pytest.mark.parametrize("kind", [pa.int32(), pa.float64(), pa.decimal128(10, 2)], ids=str)
def test_parquet_of_every_type(tmp_path, times, kind):
    values = pa.array([Decimal(n) for n in (3, 1, 2)], pa.decimal128(10, 2)).cast(kind)
    names = pa.array(["x", "y", "z"])
    parquet.write_table(pa.table({"name": names, "value": values, "time": times}), tmp_path / "series.parquet")
    moments = [datetime.datetime.fromisoformat(when) for when in MOMENTS]
    assert plain(read_series(tmp_path / "series.parquet")) == list(zip(moments, [3, 1, 2], strict=True))


def test_days_and_a_folder_of_parquet_as_spark_writes_it(tmp_path):
    for at, day in enumerate((2, 1)):
        part = pa.table({"day": [datetime.date(2026, 1, day)], "n": [day]})
        parquet.write_table(part, tmp_path / f"part-{at}.snappy.parquet")
    (tmp_path / "_SUCCESS").touch()
    found = read_series(tmp_path)
    assert plain(found) == [(datetime.datetime(2026, 1, 1), 1), (datetime.datetime(2026, 1, 2), 2)]


ONE = f"{MOMENTS[0]},5"


@pytest.mark.parametrize(
    ("lines", "named", "sentence"),
    [
        ([], {}, "{path} has no rows; give a series with a time and an amount in each row"),
        (["time,value"], {}, "{path} has no rows; give a series with a time and an amount in each row"),
        (["t,v", "x,3"], {}, "line 2 of {path} has no time in it; write it as 2026-11-16 08:30:00 or as seconds or"),
        (["t,v", "7,3"], {}, "line 2 of {path} has no time in it; "),
        (
            [ONE, "yesterday,3"],
            {},
            "line 2 of {path} has 'yesterday' in the column 1 as its time; write it as 2026-11-16",
        ),
        (
            ["t,v", ONE, "2026-02-30,3"],
            {},
            "line 3 of {path} has '2026-02-30' in the column t as its time; write it as",
        ),
        (
            [ONE, "1772142473,3"],
            {},
            "line 2 of {path} has '1772142473' in the column 1 as its time; write it as 2026-11",
        ),
        (["1772142473,3", "1e30,3"], {}, "line 2 of {path} has '1e30' in the column 1 as its time; write it as"),
        (["when", ONE, f"{MOMENTS[1]},x"], {}, "line 3 of {path} has 'x' in the column 2 as its amount; it must be"),
        ([ONE, "0001-01-01T00:00+23:00,1"], {}, "line 2 of {path} has '0001-01-01T00:00+23:00' in the column 1 as its"),
        (
            ["1772142473,3", "nan,3"],
            {},
            "line 2 of {path} has 'nan' in the column 1 as its time; write it as 2026-11-16",
        ),
        ([ONE, f"{MOMENTS[1]},-3"], {}, "line 2 of {path} has '-3' in the column 2 as its amount; it must be a finite"),
        (
            [ONE, f"{MOMENTS[1]},NaN"],
            {},
            "line 2 of {path} has 'NaN' in the column 2 as its amount; it must be a finite",
        ),
        (
            [ONE, f"{MOMENTS[1]},inf"],
            {},
            "line 2 of {path} has 'inf' in the column 2 as its amount; it must be a finite",
        ),
        (
            [ONE, f"{MOMENTS[1]},"],
            {},
            "line 2 of {path} has '' in the column 2 as its amount; it must be a finite number",
        ),
        ([ONE, "", f"{MOMENTS[1]}"], {}, "line 3 of {path} has 1 column and needs 2; mend the row or take it out"),
        (["t,v", f"{MOMENTS[1]},x"], {}, "line 2 of {path} has no number besides its time; name the column with the"),
        (
            ["t,v", ONE],
            {"time": "v", "value": "t"},
            "line 2 of {path} has '2026-02-26 21:42:53' in the column t as its amount; it",
        ),
        (["t,v", ONE], {"time": "x"}, "{path} has no column 'x'; its columns are t, v"),
    ],
)
def test_bad_csv_is_one_sentence_with_file_line_and_column(tmp_path, lines, named, sentence):
    path = csv_of(tmp_path, lines) if lines else tmp_path / "empty.csv"
    path.touch()
    with pytest.raises(InvalidOption) as refused:
        read_series(path, **named)
    assert str(refused.value).startswith(sentence.format(path=path))
    assert "\n" not in str(refused.value)


def test_files_that_cannot_be_read_at_all(tmp_path):
    with pytest.raises(InvalidOption, match="cannot read .*none.csv: no such file or directory$"):
        read_series(tmp_path / "none.csv")
    (tmp_path / "latin.csv").write_bytes(b"t,v\n2026-01-01,\xe9\n")
    with pytest.raises(InvalidOption, match="latin.csv is not UTF-8 text; give CSV or Parquet$"):
        read_series(tmp_path / "latin.csv")
    (tmp_path / "torn.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(InvalidOption, match="cannot read .*torn.parquet as Parquet: .*; give a CSV or Parquet file$"):
        read_series(tmp_path / "torn.parquet")
    parquet.write_table(pa.table({"t": pa.array(MOMENTS[:2]), "v": [1.0, None]}), tmp_path / "null.parquet")
    with pytest.raises(
        InvalidOption, match=r"^row 2 of .*null.parquet has None in the column v as its amount; it must"
    ):
        read_series(tmp_path / "null.parquet")


# --- what a query remembers ----------------------------------------------------------------

EVENTS = [
    {"time_ms": 1_000, "event": "workers", "version": 0, "workers": [0, 1]},
    {"time_ms": 5_500, "event": "flipping", "version": 3, "bins": [1]},
    {"time_ms": 9_999, "event": "workers", "version": 7, "workers": 4},
    {"time_ms": 12_000, "event": "dismissed", "version": 9, "workers": [0]},
    {"time_ms": 11_000, "event": "workers", "version": 9, "workers": [1, 2, 3, 4]},
    {"time_ms": 8_000, "event": "workers", "version": 11, "workers": 3},
]


def seconds(found):
    return found.times.astype(int).tolist(), found.values.tolist()


def test_events_tell_of_every_change():
    assert seconds(counts_from_events(EVENTS)) == ([1, 9, 11], [2, 4, 3])


@pytest.mark.parametrize("as_lines", [False, True])
def test_events_from_a_file(tmp_path, as_lines):
    path = tmp_path / "events.json"
    path.write_text("\n\n".join(map(json.dumps, EVENTS)) if as_lines else json.dumps(EVENTS, indent=1))
    assert seconds(read_counts(path)) == ([1, 9, 11], [2, 4, 3])


@pytest.mark.parametrize(
    ("events", "sentence"),
    [
        (EVENTS[1:2], "none of the 1 event says how many workers there are; give those of a query that was rescaled"),
        ([], "none of the 0 events says"),
        ([3], "event 1 is 3; events are objects"),
        ("workers", "events must be a list, not a text"),
        ([EVENTS[1], {"event": "workers", "workers": 3}], "event 2 has no time_ms or no workers"),
        ([{"event": "workers", "time_ms": 3, "workers": True}], "event 1 has no time_ms or no workers"),
    ],
)
def test_events_that_tell_nothing_are_refused(events, sentence):
    with pytest.raises(InvalidOption, match=sentence):
        counts_from_events(events)


def test_files_of_events_that_cannot_be_read(tmp_path):
    with pytest.raises(InvalidOption, match="cannot read .*none.json: no such file or directory$"):
        read_counts(tmp_path / "none.json")
    path = csv_of(tmp_path, [json.dumps(EVENTS[0]), "{"], "events.jsonl")
    with pytest.raises(
        InvalidOption, match=r"^line 2 of .*events.jsonl is not JSON \(.*\); give what query.events has$"
    ):
        read_counts(path)


class Past:
    """A checkpoint of two operators, written with nothing but the checkpoint room."""

    def __init__(self, root):
        self.place = Location.of(root)
        Identity.of(8, [{"operator": name, "key": [], "tables": {}, "options": {}} for name in "ab"], id="x").settle(
            self.place
        )
        self.log = Log.open(self.place)
        self.log.claim("box", 7)
        self.version = 0

    def commit(self, first, second, moving=False):
        """A version in which the operators have so many workers."""
        operators = tuple(OperatorCommit(None, tuple(j * n // 8 for j in range(8))) for n in (first, second))
        journal = {"migrations": 1, **({"migration": {}} if moving else {})}
        time_ms = 1_000_000 + 10_000 * self.version
        self.log.append(Commit(self.version, self.version, 0, "q", "o", operators, time_ms=time_ms, journal=journal))
        self.version += 1


@pytest.fixture
def past(tmp_path):
    made = Past(tmp_path / "checkpoint")
    for first, second, moving in [(2, 2, 0), (2, 2, 1), (3, 3, 1), (4, 4, 0), (4, 4, 0), (3, 5, 0), (2, 2, 0)]:
        made.commit(first, second, bool(moving))
    return made


def test_a_checkpoint_tells_of_the_counts_between_migrations(past):
    found = counts_from_checkpoint(past.place.root)
    assert seconds(found) == ([1000, 1030, 1050, 1060], [2, 4, 5, 2])
    assert found.notes == ("the checkpoint tells of versions 0 to 6 only; a longer history needs the events on file",)


def test_a_checkpoint_tells_of_what_is_kept_only(past):
    for count in [3] * 40 + [4] * 5:
        past.commit(count, count)
    sweep(past.place, past.log, keep=10)
    found = counts_from_checkpoint(past.place.root)
    assert found.values.tolist() == [3, 4]
    first = int(found.notes[0].split()[5])
    assert 52 - 10 - 16 <= first <= 52 - 10
    assert found.notes[0].startswith(f"the checkpoint tells of versions {first} to 51 only")


def test_a_checkpoint_that_another_driver_took_over(past):
    Log.open(past.place).claim("box", 8)
    assert counts_from_checkpoint(past.place.root).values.tolist() == [2, 4, 5, 2]


def test_a_checkpoint_without_a_settled_version_and_no_checkpoint(tmp_path):
    made = Past(tmp_path / "young")
    for _ in range(2):
        with pytest.raises(InvalidOption, match="has no committed version without a migration under way"):
            counts_from_checkpoint(made.place.root)
        made.commit(2, 2, moving=True)
    with pytest.raises(CheckpointError, match="no such folder"):
        counts_from_checkpoint(tmp_path / "none")


def test_an_entry_that_is_swept_while_it_is_read_is_looked_for_again(past, monkeypatch):
    for count in [3] * 40:
        past.commit(count, count)
    honest, seen = Log.commits, []

    def swept(log, version):
        seen.append(version)
        if len(seen) == 1:
            monkeypatch.setattr(Log, "commits", honest)
            sweep(past.place, past.log, keep=1)
            monkeypatch.setattr(Log, "commits", swept)
        return honest(log, version)

    monkeypatch.setattr(Log, "commits", swept)
    assert counts_from_checkpoint(past.place.root).values.tolist() == [3]
    assert len(seen) == 2
    assert seen[0] < seen[1]
