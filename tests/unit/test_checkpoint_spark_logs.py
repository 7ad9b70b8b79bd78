"""Spark's own logs in the checkpoint after a loss of power: durable first, mended at the start, never confused."""

import os
import shutil
import zlib
from collections import Counter
from pathlib import Path

import pytest

import meander as me
from meander.engine.driver import batch_loop
from meander.errors import Damaged, ForeignCheckpoint
from meander.route.hashing import checksum
from meander.store import identity, spark_logs
from meander.store import location as location_module
from meander.store.location import Location

WORDS = [["duck", "goose", "duck"], ["goose"], ["duck", "swan"], ["swan", "duck"]]


@pytest.fixture
def h(tmp_path):
    stream = me.stream(me.testing.source("word string")).key_by("word").count()
    with me.testing.harness(stream, bins=4, checkpoint=tmp_path / "ck", fsync=True) as harness:
        yield harness


@pytest.fixture
def logs(tmp_path):
    return tmp_path / "ck" / "spark"


def feed(h, *batches):
    for words in batches:
        h.batch([{"word": word} for word in words])


def is_counted_once(h, batches):
    """Whether state, and what the sink holds, are those of a recount."""
    counts = Counter(word for words in batches for word in words)
    state = {row["word"]: row["count"] for row in h.state()}
    latest = {row["word"]: row["count"] for row in h.latest("word")}
    return state == latest == counts


def torn(path, how):
    data = path.read_bytes()
    if how == "missing":
        path.unlink()
    else:
        path.write_bytes({"empty": b"", "zeros": bytes(len(data)), "half": data[: len(data) // 2]}[how])


@pytest.fixture
def format_1(monkeypatch):
    """Commits note the checksum of Spark's offsets alone, as they did in format 1."""
    real = spark_logs.offsets_of
    with monkeypatch.context() as patch:
        patch.setattr(batch_loop, "offsets_of", lambda *of: f"{checksum(real(*of).encode()):016x}")
        patch.setattr(identity, "FORMAT", 1)
        yield patch


def test_logs_beside_a_commit_of_format_1_are_left_as_they_are(h, logs, format_1):
    feed(h, *WORDS[:3])
    before = {path.name: path.read_bytes() for path in (logs / "offsets").iterdir()}
    format_1.undo()
    h.restart()
    assert {path.name: path.read_bytes() for path in (logs / "offsets").iterdir()} == before
    with h.driver.loop.lock:  # a tick repeats what the last batch noted
        h.driver.loop.tick()
    h.restart()
    last = h.driver.log.last
    assert identity.is_done(h.driver.log, last.batch, last.query, spark_logs.offsets_of(h.driver.log.location, 2))
    feed(h, *WORDS[3:])
    h.restart()
    assert is_counted_once(h, WORDS)


def test_a_checksum_alone_restores_nothing(h, logs, format_1):
    feed(h, *WORDS[:3])
    format_1.undo()
    torn(logs / "offsets" / "2", "half")
    before = (logs / "offsets" / "2").read_bytes()
    with pytest.raises(ForeignCheckpoint, match="does not hold batch 2 as it was committed"):
        h.restart()
    assert (logs / "offsets" / "2").read_bytes() == before


@pytest.mark.parametrize("commit", ["whole", "missing", "empty", "zeros", "half"])
@pytest.mark.parametrize("offsets", ["whole", "missing", "empty", "zeros", "half"])
def test_torn_logs_of_the_last_batch_are_mended(h, logs, offsets, commit):
    feed(h, *WORDS[:3])
    before = (logs / "offsets" / "2").read_bytes()
    for name in ("offsets", "commits"):
        (logs / name / ".2.crc").write_bytes(b"crc\0")
    for path, how in ((logs / "offsets" / "2", offsets), (logs / "commits" / "2", commit)):
        if how != "whole":
            torn(path, how)
    h.restart()
    assert (logs / "offsets" / "2").read_bytes() == before
    assert not [*logs.rglob("*.crc")], "Hadoop would refuse to read or to write the files"
    assert (logs / "commits" / "2").exists() == (commit == "whole")
    feed(h, WORDS[3])
    assert is_counted_once(h, WORDS)


def test_offsets_torn_at_any_byte_are_written_again(h, logs):
    feed(h, *WORDS[:3])
    path = logs / "offsets" / "2"
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        h.restart()
        assert path.read_bytes() == whole
    feed(h, WORDS[3])
    assert is_counted_once(h, WORDS)


@pytest.mark.parametrize("how", ["empty", "zeros", "half"])
def test_a_batch_that_nobody_has_heard_of_is_made_anew(h, logs, how):
    feed(h, *WORDS[:3])
    path = logs / "offsets" / "3"
    path.write_bytes((logs / "offsets" / "2").read_bytes())
    torn(path, how)
    (logs / "offsets" / ".3.crc").write_bytes(b"")
    h.restart()
    assert not path.exists()
    assert not (logs / "offsets" / ".3.crc").exists()
    feed(h, WORDS[3])
    assert is_counted_once(h, WORDS)


def test_torn_metadata_is_written_again(h, logs):
    feed(h, *WORDS[:3])
    path = logs / "metadata"
    whole = path.read_bytes().replace(b" ", b"")
    path.write_bytes(b"")
    h.restart()
    assert path.read_bytes() == whole
    feed(h, WORDS[3])
    assert is_counted_once(h, WORDS)


def another(logs):
    path = logs / "offsets" / "2"
    path.write_bytes(path.read_bytes().replace(b"2", b"7"))


@pytest.mark.parametrize(
    "replace",
    [
        another,
        shutil.rmtree,
        lambda logs: shutil.rmtree(logs / "offsets"),
        lambda logs: (logs / "metadata").write_text('{"id":"another"}'),
    ],
)
def test_a_foreign_or_reset_part_is_refused_and_left_alone(h, logs, replace):
    feed(h, *WORDS[:3])
    replace(logs)
    before = {path: path.read_bytes() for path in logs.rglob("*") if path.is_file()}
    with pytest.raises(ForeignCheckpoint, match="start with a new checkpoint"):
        h.restart()
    assert {path: path.read_bytes() for path in logs.rglob("*") if path.is_file()} == before


def test_checksums_of_hadoop_go_only_where_they_are_wrong(tmp_path):
    place = Location.of(tmp_path)
    right = bytes.fromhex("6372630000000200") + zlib.crc32(b"v1\n{}").to_bytes(4, "big")
    for number in range(3):
        place.write(f"spark/commits/{number}", b"v1\n{}")
        place.write(f"spark/commits/.{number}.crc", right)
    place.write("spark/commits/.1.crc", right[:-1])
    place.write("spark/commits/.3.crc", right)
    spark_logs.drop_torn(place)
    assert place.list("spark/commits") == [".0.crc", ".2.crc", "0", "1", "2"]


def test_before_the_first_commit_all_that_is_torn_goes(tmp_path):
    place = Location.of(tmp_path)
    for name in ("offsets/0", "commits/0", "metadata"):
        place.write(f"spark/{name}", b"")
    place.write("spark/offsets/1", b'v1\n{"a":1}\n{"row":3}')
    assert spark_logs.query_of(place) is None
    spark_logs.drop_torn(place)
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()] == [
        "spark/offsets/1"
    ]


OFFSETS = 'v1\n{"batchWatermarkMs":0}\n{"logOffset":9}\n-\n{"t":{"0":5}}'


def test_a_torn_list_of_files_read_is_damage_and_a_newer_one_goes_with_its_batch(tmp_path):
    place = Location.of(tmp_path)
    for number in range(10):
        place.write(f"spark/offsets/{number}", OFFSETS.replace("9", str(number)).encode())
        place.write(f"spark/sources/0/{number}{'.compact' if number == 9 else ''}", b'v1\n{"path":"a"}')
    place.write("spark/offsets/10", OFFSETS.replace("9", "10").encode())
    place.write("spark/sources/0/10", b'v1\n{"path"')
    spark_logs.restore(place, 9, OFFSETS)
    spark_logs.drop_torn(place, batch=9, offsets=OFFSETS)
    assert not place.exists("spark/offsets/10")
    assert not place.exists("spark/sources/0/10")
    assert place.list("spark/offsets") == [str(number) for number in range(10)]
    place.write("spark/sources/0/9.compact", b"")
    with pytest.raises(Damaged, match="spark/sources/0/9 of the checkpoint .* is torn or missing.*which files"):
        spark_logs.restore(place, 9, OFFSETS)


def test_with_fsync_a_version_is_committed_after_sparks_logs_are_on_the_disk(h, logs, monkeypatch):
    feed(h, *WORDS[:2])
    done = []
    real_sync, real_link = os.fsync, os.link

    def sync(descriptor):
        done.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))  # noqa: PTH115
        real_sync(descriptor)

    def link(source, target):
        done.append(Path(target))
        real_link(source, target)

    monkeypatch.setattr(location_module.os, "fsync", sync)
    monkeypatch.setattr(location_module.os, "link", link)
    feed(h, WORDS[2])
    entry = next(at for at, path in enumerate(done) if path.suffix == ".json" and path.parent.name == "manifests")
    assert {logs / "offsets" / "2", logs / "offsets", logs / "commits" / "1", logs / "commits"} <= set(done[:entry])
    assert logs / "offsets" / "1" not in done, "each file once"


def test_without_fsync_sparks_logs_are_left_to_spark(tmp_path, monkeypatch):
    stream = me.stream(me.testing.source("word string")).key_by("word").count()
    with me.testing.harness(stream, bins=4, checkpoint=tmp_path / "ck") as h:
        monkeypatch.setattr(location_module.os, "fsync", lambda _: pytest.fail("nobody asked for it"))
        feed(h, *WORDS)
