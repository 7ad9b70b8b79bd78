"""A checkpoint looked at from outside: its versions, one key of its state, a copy, a repair; against plain recounts."""

from __future__ import annotations

import datetime as dt
import json
import shutil
from collections import Counter
from itertools import pairwise

import pytest

import meander as me
from meander.cli import main
from meander.errors import CheckpointError, Damaged, InvalidOption
from meander.store.files import Attempt
from meander.store.location import Location
from meander.store.manifest import Log, path_of
from meander.store.spark_logs import SPARK

USERS = [f"u{n}" for n in range(1500)]
DAY = dt.date(2026, 1, 1)


@pytest.fixture
def counts(tmp_path):
    """A query over two keys with large state files, that has run for some batches."""
    stream = me.stream(me.testing.source("user string, day date")).key_by("user", "day").count()
    with me.testing.harness(stream, workers=2, bins=16, checkpoint=tmp_path / "ck", snapshot_every=4) as harness:
        for batch in range(6):
            harness.batch([{"user": user, "day": DAY} for user in USERS[batch * 10 :]])
        yield harness


def recount(batches=6):
    return dict(Counter(user for batch in range(batches) for user in USERS[batch * 10 :]))


def opened(tmp_path):
    return me.checkpoint(tmp_path / "ck")


def test_versions_say_what_manifests_know(counts, tmp_path):
    counts.rescale(3)
    counts.batch([{"user": "u1", "day": None}])
    versions = opened(tmp_path).versions()
    assert [each.number for each in versions] == list(range(counts.query.version + 1))
    assert [each.rows for each in versions[:6]] == [1500 - 10 * batch for batch in range(6)]
    assert [each.kind for each in versions] == [*["batch"] * 6, *["tick"] * (len(versions) - 7), "batch"]
    assert (versions[5].workers, versions[-1].workers) == ((0, 1), (0, 1, 2))
    assert (versions[-1].rows, versions[-1].dead, versions[-1].batch) == (1, 1, 6)
    assert all(each.written_bytes > 0 for each in versions[:6])
    assert all(first.time < second.time for first, second in pairwise(versions[:6]))


def test_one_key_reads_the_files_of_one_bin(counts, tmp_path, monkeypatch):
    checkpoint = opened(tmp_path)
    expected = recount()
    rows = checkpoint.to_arrow("count").to_pylist()
    assert {row["user"]: row["count"] for row in rows} == expected
    bin_of = {row["user"]: row["bin"] for row in rows}
    read = []
    whole = Log.open(Location.of(tmp_path / "ck")).index

    def note(location, ref, bins=None):
        read.append((ref, tuple(bins)))
        return real(location, ref, bins)

    import meander.store.reader as reader

    real = reader.read_state
    monkeypatch.setattr(reader, "read_state", note)
    for user in ("u0", "u57", "u199"):
        read.clear()
        where = f"user = '{user}' AND day = '2026-01-01'"
        found = checkpoint.to_arrow("count", where=where).to_pylist()
        assert [(row["user"], row["day"], row["count"]) for row in found] == [(user, DAY, expected[user])]
        assert {bins for _, bins in read} == {(bin_of[user],)}
        assert len(read) == len(whole.parts(0, [bin_of[user]])) < len(whole.files(0))
    read.clear()
    assert checkpoint.to_arrow("count", where="user = 'u57'").num_rows == 1
    assert {len(bins) for _, bins in read} != {1}, "half of a key does not say which bin"
    assert checkpoint.to_arrow("count", where="user = 'nobody' and day = '2026-01-01'").num_rows == 0
    assert checkpoint.to_arrow("count", where="count = 6").num_rows == sum(n == 6 for n in expected.values())
    assert checkpoint.to_arrow("count", version=2).num_rows == 1500


@pytest.mark.parametrize(
    ("where", "sentence"),
    [
        ("user", "'user' cannot be read as conditions; write column = value"),
        ("user = 'a' or day = 'b'", "cannot be read as conditions"),
        ("user = 'a' and", "cannot be read as conditions"),
        ("name = 'a'", "there is no column 'name'; there are user, day, count"),
        ("user = 7", "user = 7 cannot be: the column is string"),
        ("count = 'x'", "count = 'x' cannot be: the column is int64"),
        ("count = 1.5", "count = 1.5 cannot be: the column is int64"),
        ("count = true", "the column is int64"),
        ("day = 'soon'", r"day = 'soon' cannot be: the column is date32\[day\]"),
        ("user = 'a' and user = 'b'", "the column 'user' is in two conditions"),
    ],
)
def test_a_slip_in_a_condition_is_one_sentence(counts, tmp_path, where, sentence):
    with pytest.raises(InvalidOption, match=sentence):
        opened(tmp_path).to_arrow("count", where=where)


def test_a_window_of_one_key_by_its_time(tmp_path):
    stream = me.stream(me.testing.source("user string, ts timestamp")).key_by("user").window("ts", "10s").count()
    start = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    with me.testing.harness(stream, checkpoint=tmp_path / "ck") as harness:
        harness.batch([{"user": user, "ts": start + dt.timedelta(seconds=n)} for n in range(25) for user in "ab"])
        for time in ("2026-01-01 00:00:20", "2026-01-01T00:00:20Z", "2026-01-01 02:00:20+02:00"):
            where = f"user = 'a' AND window_start = '{time}'"
            (row,) = opened(tmp_path).to_arrow("window", where=where).to_pylist()
            assert (row["user"], row["window_start"], row["count"]) == ("a", start + dt.timedelta(seconds=20), 5)


def test_the_limit_holds_for_every_form(counts, tmp_path, capsys):
    place = str(tmp_path / "ck")

    def lines(*arguments):
        assert main(["read", place, "count", *arguments]) == 0
        return capsys.readouterr().out.splitlines()

    assert len(lines("-f", "json")) == 1500
    assert len(lines("-f", "json", "--limit", "7")) == 7
    assert len(lines("-f", "table", "--limit", "7")) == 1 + 1 + 7 + 1
    (row,) = [json.loads(line) for line in lines("--where", "user = 'u3' AND day = '2026-01-01'")]
    assert (row["user"], row["count"]) == ("u3", 1)
    assert lines("-f", "table", "--where", "user = 'u3'")[0].endswith(": 1 row")
    assert lines("--out", str(tmp_path / "x.parquet"), "--limit", "1") == [f"1 row written to {tmp_path / 'x.parquet'}"]


# --- a copy -------------------------------------------------------------------------------------------


def test_a_copy_is_a_checkpoint_of_its_own(counts, tmp_path):
    leftover = Attempt(2, 0, 7, 0, 9).path("deltas")
    Location.of(tmp_path / "ck").write(leftover, b"left by an attempt")
    copy = opened(tmp_path).copy_to(tmp_path / "copies" / "one")
    assert (copy.version, copy.place) == (5, str(tmp_path / "copies" / "one"))
    files = [path for path in (tmp_path / "copies" / "one").rglob("*") if path.is_file()]
    assert (len(files), sum(path.stat().st_size for path in files)) == (copy.files, copy.bytes)
    assert not (tmp_path / "copies" / "one" / leftover).exists()
    counts.batch([{"user": "new", "day": DAY}])
    taken = me.checkpoint(copy.place)
    assert {row["user"]: row["count"] for row in taken.to_arrow("count").to_pylist()} == recount()
    assert [each.number for each in taken.versions() if each.is_restorable] == list(range(6))
    stream = me.stream(me.testing.source("user string, day date")).key_by("user", "day").count()
    with me.testing.harness(stream, checkpoint=copy.place) as harness:
        assert harness.batch([{"user": "u0", "day": DAY}]) == [{"user": "u0", "day": DAY, "count": 2}]


def test_a_copy_is_whole_or_not_there(counts, tmp_path, monkeypatch):
    checkpoint = opened(tmp_path)
    with pytest.raises(InvalidOption, match="is there already; name a folder that does not exist yet"):
        checkpoint.copy_to(tmp_path / "ck")
    with pytest.raises(InvalidOption, match="is in the checkpoint itself"):
        checkpoint.copy_to(tmp_path / "ck" / "copy")
    target = next(file.path for file in Log.open(Location.of(tmp_path / "ck")).index.files() if file.path)
    (tmp_path / "ck" / target).write_bytes(b"torn")
    with pytest.raises(Damaged, match=f"is not whole, so there is no backup of it: {target}"):
        checkpoint.copy_to(tmp_path / "copy")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ck"]


def test_a_copy_of_a_running_query_that_sweeps_meanwhile_is_of_one_moment(counts, tmp_path, monkeypatch):
    read, pending = Location.read, [40]

    def meddling(self, path):
        # While files are copied, the query makes a version now and then, and a sweep removes old files.
        pending[0] -= 1
        if pending[0] in (35, 20):
            monkeypatch.setattr(Location, "read", read)
            for _ in range(16):
                counts.batch([{"user": "u0", "day": DAY}])
            monkeypatch.setattr(Location, "read", meddling)
        return read(self, path)

    monkeypatch.setattr(Location, "read", meddling)
    copy = opened(tmp_path).copy_to(tmp_path / "copy")
    monkeypatch.setattr(Location, "read", read)
    expected = recount() | {"u0": 1 + copy.version - 5}
    assert copy.version > 5
    rows = me.checkpoint(copy.place).to_arrow("count").to_pylist()
    assert {row["user"]: row["count"] for row in rows} == expected


# --- repair -------------------------------------------------------------------------------------------


def test_a_whole_checkpoint_needs_no_repair(counts, tmp_path, capsys):
    with pytest.raises(CheckpointError, match="a query of this process runs"):
        opened(tmp_path).repair()
    assert main(["repair", str(tmp_path / "ck"), "--take-over", "-f", "table"]) == 0
    assert capsys.readouterr().out == "OK: there was nothing to mend\n"


@pytest.mark.parametrize("damage", [b"", b'{"kind":"comm'])
def test_a_torn_newest_entry_goes_and_its_version_is_made_again(counts, tmp_path, damage):
    newest = Log.open(Location.of(tmp_path / "ck")).next_sequence - 1
    (tmp_path / "ck" / path_of(newest)).write_bytes(damage)
    with pytest.raises(Damaged):
        opened(tmp_path).versions()
    repair = opened(tmp_path).repair(take_over=True)
    assert repair.left == ()
    assert f"{path_of(newest)} was torn and is removed: what came after version 4 is made again" in repair.mended[0]
    (kept,) = (tmp_path / "ck" / "undone").rglob("*.json")
    assert kept.read_bytes() == damage
    counts.restart()
    counts.batch([{"user": user, "day": DAY} for user in USERS[50:]])
    assert counts.query.version == 5
    assert {row["user"]: row["count"] for row in counts.state()} == recount()


def test_a_torn_entry_that_a_later_version_may_hang_on_is_left(counts, tmp_path):
    newest = Log.open(Location.of(tmp_path / "ck")).next_sequence - 1
    (tmp_path / "ck" / path_of(newest)).write_bytes(b"")
    (tmp_path / "ck" / SPARK / "offsets" / "6").write_text("v1\n{}\n{}")
    with pytest.raises(Damaged, match="a sink may have heard of a version after it"):
        opened(tmp_path).repair(take_over=True)
    assert (tmp_path / "ck" / path_of(newest)).exists()


def test_damage_in_old_entries_costs_old_versions_alone(counts, tmp_path):
    for _ in range(20):
        counts.batch([{"user": "u0", "day": DAY}])
    (tmp_path / "ck" / path_of(3)).write_bytes(b"torn")
    assert opened(tmp_path).verify().damaged
    repair = opened(tmp_path).repair(take_over=True)
    assert repair.left == ()
    assert "manifests/ was damaged up to entry 3: versions before" in repair.mended[0]
    assert opened(tmp_path).versions()[0].number > 2
    counts.restart()
    counts.batch([{"user": "u0", "day": DAY}])
    assert {row["user"]: row["count"] for row in counts.state()} == recount() | {"u0": 22}


def test_damaged_state_is_named_with_the_newest_version_that_is_whole(counts, tmp_path):
    log = Log.open(Location.of(tmp_path / "ck"))
    added = {file.path for file in log.index.files()} - {file.path for file in log.at(3).index.files()}
    torn = sorted(path for path in added if path)[0]
    version = int(torn.split("/v")[1][:12])
    (tmp_path / "ck" / torn).write_bytes(b"torn")
    repair = opened(tmp_path).repair(take_over=True)
    assert torn in repair.left[0]
    assert repair.left[-1] == f"version {version - 1} is whole: go back to it"
    opened(tmp_path).rollback(version - 1, take_over=True)
    assert not [each for each in opened(tmp_path).verify().damaged if torn not in each]
    counts.restart()
    for batch in range(version, 6):
        counts.batch([{"user": user, "day": DAY} for user in USERS[batch * 10 :]])
    assert {row["user"]: row["count"] for row in counts.state()} == recount()


def test_a_rollback_that_was_killed_is_finished_and_leftovers_go(counts, tmp_path, monkeypatch):
    place = Location.of(tmp_path / "ck")
    with monkeypatch.context() as patch:
        patch.setattr("meander.store.rollback.finish", lambda log: None)
        opened(tmp_path).rollback(2, take_over=True)
    place.write(Attempt(2, 0, 7, 0, 9).path("deltas"), b"left by an attempt")
    (tmp_path / "ck" / "deltas" / "v1.0123456789ab.tmp").write_bytes(b"half")
    assert len(list((tmp_path / "ck" / SPARK / "offsets").iterdir())) == 6
    repair = opened(tmp_path).repair(take_over=True)
    assert repair.left == ()
    assert repair.mended[0] == "version 6, a rollback, is carried out in Spark's logs"
    assert "of failed attempts and old versions removed" in repair.mended[-1]
    assert sorted(path.name for path in (tmp_path / "ck" / SPARK / "offsets").iterdir()) == ["0", "1", "2"]
    counts.restart()
    assert {row["user"]: row["count"] for row in counts.state()} == recount(3)


# --- the command line -----------------------------------------------------------------------------------


def test_commands_do_what_the_object_does(counts, tmp_path, capsys):
    place = str(tmp_path / "ck")

    def said(*arguments, code=0):
        assert main([*arguments]) == code
        return capsys.readouterr().out

    versions = json.loads(said("versions", place))
    assert [(each["number"], each["kind"], each["is_restorable"]) for each in versions] == [
        (number, "batch", True) for number in range(6)
    ]
    assert said("versions", place, "-f", "table").splitlines()[-1].split()[0] == "5"
    assert json.loads(said("backup", place, str(tmp_path / "copy")))["version"] == 5
    assert said("verify", str(tmp_path / "copy"), "-f", "table").startswith("OK: 7 entries of the log, ")
    dry = said("rollback", place, "--to", "3", "--dry-run", "-f", "table")
    assert dry == (
        "Would be done: version 6 has the state of version 3 and undoes versions 4 to 5; Spark brings 2 batches again\n"
    )
    assert json.loads(said("versions", place)) == versions
    done = json.loads(said("rollback", place, "--to", "4", "--take-over"))
    assert (done["number"], done["undone"], done["copies"], done["dry_run"]) == (6, [5], "undone/6", False)
    assert "undone by rollbacks: 5" in said("inspect", place, "-f", "table")
    assert json.loads(said("versions", place))[-1]["undoes"] == [5, 5]
    counts.restart()
    assert {row["user"]: row["count"] for row in counts.state()} == recount(5)


def test_one_of_a_thing_is_said_in_the_singular(tmp_path, capsys):
    stream = me.stream(me.testing.source("user string")).key_by("user").count()
    with me.testing.harness(stream, workers=1, bins=1, checkpoint=tmp_path / "ck") as harness:
        harness.batch([{"user": "ann"}])
        for command in (["inspect"], ["read"], ["verify"], ["rollback", "--to", "0"]):
            more = ["count"] if command == ["read"] else command[1:]
            main([command[0], str(tmp_path / "ck"), *more, "-f", "table"])
    text = capsys.readouterr().out
    assert "1 bin:" in text
    assert "1 row in" in text
    for many in ("1 bins", "1 rows", "1 files", "1 entries"):
        assert f" {many}" not in text


def test_a_copy_that_is_put_in_the_place_of_what_was_lost_goes_on(counts, tmp_path):
    copy = opened(tmp_path).copy_to(tmp_path / "copy")
    shutil.rmtree(tmp_path / "ck")
    shutil.copytree(copy.place, tmp_path / "ck")
    counts.restart()
    counts.batch([{"user": "u0", "day": DAY}])
    assert {row["user"]: row["count"] for row in counts.state()} == recount() | {"u0": 2}
