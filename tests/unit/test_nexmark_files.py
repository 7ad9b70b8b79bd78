"""Folders of events: written from the generator, or taken from given JSON lines."""

import json
from collections import Counter
from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from effort import examples
from meander.errors import InvalidOption
from meander_lab.nexmark import files
from meander_lab.nexmark.generator import Config, events
from meander_lab.nexmark.model import KINDS

BASE_MS = 1_436_918_400_000


def part(folder: Path, kind: str, number: int) -> pa.Table:
    table = pq.read_table(folder / kind / f"part-{number:05d}.parquet")
    assert table.schema == KINDS[kind]
    return table


def all_of(folder: Path, kind: str, parts: int) -> pa.Table:
    return pa.concat_tables([part(folder, kind, i) for i in range(parts)]).combine_chunks()


def person(id_: int, time: object, **more: object) -> dict:
    return {"id": id_, "name": "Kate Jones", "dateTime": time, **more}


def auction(id_: int, time: object, expires: object, **more: object) -> dict:
    return {"id": id_, "dateTime": time, "expires": expires, "seller": 1, "category": 10, **more}


def bid(auction_: int, time: object, **more: object) -> dict:
    return {"auction": auction_, "bidder": 7, "price": 100, "dateTime": time, **more}


def given_in(directory: Path, **kinds: list) -> Path:
    directory.mkdir(exist_ok=True)
    for kind, lines in kinds.items():
        text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
        (directory / f"{kind}.jsonl").write_text(text)
    return directory


@pytest.mark.parametrize(("count", "parts"), [(10_007, 4), (3, 5), (0, 2), (1000, 1)])
def test_what_is_written_are_the_generators_events(tmp_path, count, parts):
    config = Config(generators=7)
    assert files.write(tmp_path / "events", count, config, parts) == tmp_path / "events"
    for kind in KINDS:
        expected = pa.Table.from_batches([events(kind, 0, count, Config(count=count, generators=7))])
        assert all_of(tmp_path / "events", kind, parts) == expected
        assert len(list((tmp_path / "events" / kind).iterdir())) == parts
    for i in range(parts):
        first, last = i * count // parts, (i + 1) * count // parts
        assert sum(part(tmp_path / "events", kind, i).num_rows for kind in KINDS) == last - first


def test_a_large_part_is_written_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "CHUNK", 300)
    files.write(tmp_path, 1000, Config(), 1)
    assert all_of(tmp_path, "bid", 1) == pa.Table.from_batches([events("bid", 0, 1000, Config(count=1000))])
    assert pq.ParquetFile(tmp_path / "bid" / "part-00000.parquet").num_row_groups == 4


def made(tmp_path: Path, how: str, parts: int) -> Path:
    if how == "write":
        return files.write(tmp_path / "events", 500, Config(), parts)
    lines = [bid(i, BASE_MS + i) for i in range(40)]
    files.take(given_in(tmp_path / "given", bid=lines), tmp_path / "events", parts)
    return tmp_path / "events"


@pytest.mark.parametrize("how", ["write", "take"])
def test_each_file_is_older_than_the_next(tmp_path, how):
    folder = made(tmp_path, how, 12)
    for kind in KINDS:
        names = sorted(path.name for path in (folder / kind).iterdir())
        assert names == [f"part-{i:05d}.parquet" for i in range(12)]
        times = [(folder / kind / name).stat().st_mtime_ns for name in names]
        assert all(later - earlier >= 10**9 for earlier, later in pairwise(times))
        assert times[-1] <= datetime.now(UTC).timestamp() * 10**9


@pytest.mark.parametrize("how", ["write", "take"])
def test_a_folder_with_events_is_refused(tmp_path, how):
    made(tmp_path, how, 1)
    with pytest.raises(InvalidOption, match="is not empty; give a new folder"):
        made(tmp_path, how, 1)


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidOption, match="cannot write events to"):
        files.write(tmp_path / "file", 10, Config(), 1)


def test_generated_events_come_back_as_given_ones(tmp_path):
    """JSON lines of generated events make the same events again, whichever way they write their times."""
    for written in ("milliseconds", "digits", "text"):
        lines = {}
        for kind in KINDS:
            rows = events(kind, 0, 2000, Config(count=2000)).to_pylist()
            for row in rows:
                for name in {"dateTime", "expires"} & row.keys():
                    ms = round(row[name].timestamp() * 1000)
                    row[name] = {"milliseconds": ms, "digits": str(ms), "text": row[name].isoformat()}[written]
            lines[kind] = rows
        taken = files.take(given_in(tmp_path / written, **lines), tmp_path / f"{written}-events", 3)
        assert taken.counts == {"person": 40, "auction": 120, "bid": 1840}
        assert taken.written == ("text" if written == "text" else "milliseconds")
        assert (taken.first, taken.last) == (
            datetime(2015, 7, 15, tzinfo=UTC),
            datetime(2015, 7, 15, 0, 0, 0, 190_000, UTC),
        )
        for kind in KINDS:
            expected = pa.Table.from_batches([events(kind, 0, 2000, Config(count=2000))])
            assert all_of(tmp_path / f"{written}-events", kind, 3) == expected


MOMENTS = [
    1_436_918_400_123,
    "1436918400123",
    "2015-07-15T00:00:00.123Z",
    "2015-07-15T00:00:00.123",
    "2015-07-15 00:00:00.123",
    "2015-07-15 00:00:00.123Z",
    "2015-07-15T02:00:00.123+02:00",
    "2015-07-14T19:30:00.123-0430",
    "2015-07-15T01:00:00.123000+01",
    "2015-07-15T00:00:00.123000000Z",
]


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("moment", MOMENTS)
def test_times_may_be_written_in_many_ways(tmp_path, moment, mixed):
    lines = [person(1, moment), *([person(2, BASE_MS), person(3, "2015-07-15 00:00")] if mixed else [])]
    taken = files.take(given_in(tmp_path / "given", person=lines), tmp_path / "events", 1)
    assert taken.last == datetime(2015, 7, 15, 0, 0, 0, 123_000, UTC)
    plain = isinstance(moment, int) or moment.isdecimal()
    assert taken.written == ("milliseconds" if plain and not mixed else "text")


zones = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
moments = st.datetimes(datetime(1902, 1, 1), datetime(2200, 1, 1), timezones=st.none() | st.just(UTC) | zones)


@st.composite
def written_moments(draw: st.DrawFn) -> tuple[object, int]:
    """A time as someone may write it, and its microseconds since 1970."""
    moment = draw(moments)
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    us = (aware - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    form = draw(st.sampled_from(["number", "digits", "T", " ", "Z"]))
    if form in ("number", "digits"):
        ms = us // 1000
        return (ms if form == "number" else str(ms)), ms * 1000
    text = moment.isoformat("T" if form == "Z" else form)
    return text.replace("+00:00", "Z") if form == "Z" else text, us


@examples(60)
@given(times=st.lists(written_moments(), min_size=1, max_size=30), parts=st.integers(1, 7))
def test_given_events_are_cut_by_time(tmp_path_factory, times, parts):
    root = tmp_path_factory.mktemp("cut")
    split = len(times) // 2
    bids = [bid(i, time) for i, (time, _) in enumerate(times[:split])]
    people = [person(i, time) for i, (time, _) in enumerate(times[split:])]
    files.take(given_in(root / "given", bid=bids, person=people), root / "events", parts)
    seen: list[set[int]] = []
    for i in range(parts):
        both = [part(root / "events", kind, i)["dateTime"].cast(pa.int64()).to_pylist() for kind in ("bid", "person")]
        assert all(times == sorted(times) for times in both)
        seen.append({*both[0], *both[1]})
    filled = [times for times in seen if times]
    assert all(max(earlier) < min(later) for earlier, later in pairwise(filled))
    ids = {"bid": ("auction", times[:split]), "person": ("id", times[split:])}
    for kind, (name, expected) in ids.items():
        found = all_of(root / "events", kind, parts)
        order = sorted(range(len(expected)), key=lambda i: expected[i][1])
        assert found[name].to_pylist() == order
        assert found["dateTime"].cast(pa.int64()).to_pylist() == [expected[i][1] for i in order]


def test_parts_have_about_as_many_events(tmp_path):
    lines = [bid(i, BASE_MS + i) for i in range(1000)]
    files.take(given_in(tmp_path / "given", bid=lines), tmp_path / "events", 8)
    assert [part(tmp_path / "events", "bid", i).num_rows for i in range(8)] == [125] * 8


def test_fields_may_be_missing_and_unknown(tmp_path):
    lines = {
        "auction": [auction(5, BASE_MS, BASE_MS + 9, colour="red", reserve=None), "", "  "],
        "bid": ['\ufeff{"auction": 5, "bidder": 1, "price": 9, "dateTime": 1436918400000, "url": "\\u00e9"}'],
    }
    taken = files.take(given_in(tmp_path / "given", **lines), tmp_path / "events", 1)
    assert taken.counts == {"person": 0, "auction": 1, "bid": 1}
    (row,) = part(tmp_path / "events", "auction", 0).to_pylist()
    assert row == {
        "id": 5, "itemName": None, "description": None, "initialBid": None, "reserve": None, "extra": None,
        "dateTime": datetime(2015, 7, 15, tzinfo=UTC), "expires": datetime(2015, 7, 15, 0, 0, 0, 9000, UTC),
        "seller": 1, "category": 10,
    }  # fmt: skip
    (row,) = part(tmp_path / "events", "bid", 0).to_pylist()
    assert (row["url"], row["channel"]) == ("é", None)
    assert part(tmp_path / "events", "person", 0).num_rows == 0


def test_empty_files_are_no_events(tmp_path):
    taken = files.take(given_in(tmp_path / "given", bid=[], person=["", ""]), tmp_path / "events", 3)
    assert taken == files.FolderContents({"person": 0, "auction": 0, "bid": 0}, None, None, "text")
    assert all(part(tmp_path / "events", kind, i).num_rows == 0 for kind in KINDS for i in range(3))


def test_large_files_go_through_arrow(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_read_lines", None)
    for i, time in enumerate((BASE_MS, str(BASE_MS), "2015-07-15T00:00:00.000Z", "2015-07-15 00:00:00")):
        lines = [bid(j, time, extra="x", more={"a": [1]}) for j in range(100)]
        name = f"given-{i}"
        assert files.take(given_in(tmp_path / name, bid=lines), tmp_path / f"{name}-events", 1).counts["bid"] == 100


GOOD = bid(1, BASE_MS)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"auction": 1,', "bid.jsonl, line 3 is not JSON"),
        ("[1, 2]", "bid.jsonl, line 3 is a list; write one JSON object"),
        ("17", "bid.jsonl, line 3 is 17; write one JSON object"),
        ("[" * 100_000, "bid.jsonl, line 3 is not JSON"),
        ({**GOOD, "price": None}, "bid.jsonl, line 3 has no price; a bid needs auction, bidder, price, dateTime"),
        ({"auction": 1, "bidder": 2, "price": 3}, "line 3 has no dateTime"),
        ({**GOOD, "price": "12"}, "price in .*bid.jsonl, line 3 is a text; it must be a whole number"),
        ({**GOOD, "price": 12.5}, "price in .*bid.jsonl, line 3 is 12.5"),
        ({**GOOD, "price": True}, "price in .*bid.jsonl, line 3 is True"),
        ({**GOOD, "bidder": 2**63}, "bidder in .*bid.jsonl, line 3 is 9223372036854775808"),
        ({**GOOD, "url": 5}, "url in .*bid.jsonl, line 3 is 5; it must be a text"),
        ({**GOOD, "url": "\ud800"}, "url in .*bid.jsonl, line 3 has half of a surrogate pair"),
        ({**GOOD, "dateTime": "yesterday"}, "dateTime in .*bid.jsonl, line 3 is 'yesterday'; write milliseconds"),
        ({**GOOD, "dateTime": "2015-02-30T00:00:00Z"}, "dateTime in .*bid.jsonl, line 3 is '2015-02-30"),
        ({**GOOD, "dateTime": 1.5}, "dateTime in .*bid.jsonl, line 3 is '1.5'"),
        ({**GOOD, "dateTime": False}, "dateTime in .*bid.jsonl, line 3 is 'False'"),
        ({**GOOD, "dateTime": ""}, "dateTime in .*bid.jsonl, line 3 is ''"),
        ({**GOOD, "dateTime": 10**15}, "dateTime in .*bid.jsonl, line 3 is 1000000000000000, which no year"),
        ({**GOOD, "dateTime": 10**30}, "dateTime in .*bid.jsonl, line 3 is 1000000000000000000000000000000, which no"),
        ({**GOOD, "dateTime": "9" * 5000}, "dateTime in .*bid.jsonl, line 3 is '999"),
        ({**GOOD, "dateTime": str(10**17)}, "dateTime in .*bid.jsonl, line 3 is 100000000000000000, which no year"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, message):
    directory = given_in(tmp_path / "given", bid=[GOOD, "", line, GOOD])
    with pytest.raises(InvalidOption, match=message):
        files.take(directory, tmp_path / "events", 1)
    assert not (tmp_path / "events").exists()


def test_a_line_that_is_not_utf8_is_named(tmp_path):
    directory = given_in(tmp_path / "given", bid=[GOOD])
    with (directory / "bid.jsonl").open("ab") as file:
        file.write(b'{"auction": 1, "bidder": 1, "price": 1, "dateTime": 1, "url": "\xff"}\n')
    with pytest.raises(InvalidOption, match="line 2 is not UTF-8"):
        files.take(directory, tmp_path / "events", 1)


def test_a_directory_without_events_is_refused(tmp_path):
    with pytest.raises(InvalidOption, match="has none of person.jsonl, auction.jsonl, bid.jsonl"):
        files.take(tmp_path, tmp_path / "events", 1)
    with pytest.raises(InvalidOption, match="has none of"):
        files.take(tmp_path / "nowhere", tmp_path / "events", 1)
    (tmp_path / "bid.jsonl").mkdir()
    with pytest.raises(InvalidOption, match="bid.jsonl is no file"):
        files.take(tmp_path, tmp_path / "events", 1)


@pytest.mark.parametrize("parts", [0, 1.5, 100_001])
def test_the_number_of_parts_has_bounds(tmp_path, parts):
    with pytest.raises(InvalidOption, match="parts is"):
        files.write(tmp_path, 10, Config(), parts)
    with pytest.raises(InvalidOption, match="parts is"):
        files.take(given_in(tmp_path / "given", bid=[GOOD]), tmp_path / "events", parts)


def test_duplicates_are_kept(tmp_path):
    files.take(given_in(tmp_path / "given", bid=[GOOD, GOOD, bid(2, BASE_MS)]), tmp_path / "events", 2)
    assert Counter(all_of(tmp_path / "events", "bid", 2)["auction"].to_pylist()) == {1: 2, 2: 1}
