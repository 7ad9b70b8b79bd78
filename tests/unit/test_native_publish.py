"""Observations as files: whole or not at all, for this user alone, and never in the way of the query."""

import json
import logging
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from meander.errors import InvalidOption
from meander.native import publish
from meander.native.observation import ExecutorFigures, Observation, PartitionFigures
from meander.native.publish import Publication, folder, published

DAY_MS = 24 * 60 * 60 * 1000


def seen(query="words", run="run-1", ago_ms=0):
    return Observation(
        query, run, 12, 431.0, 1000.0, 12.5, int(time.time() * 1000) - ago_ms,
        (PartitionFigures("0:stateStoreSave", 0, "1", 10, 2048, 3.5, 12),), (ExecutorFigures("1", "host", 2),),
    )  # fmt: skip


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("MEANDER_RUNTIME_DIR", str(tmp_path))
    return tmp_path


def put(name, content):
    folder().mkdir(mode=0o700, exist_ok=True)
    path = folder() / name
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


def gone_pid():
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    return done.pid


def test_what_is_written_can_be_read_and_close_removes_it(root):
    first, second = Publication("run-1"), Publication("run-2")
    assert published() == []
    one, other = seen(ago_ms=500), seen("clicks", "run-2")
    first.write(one)
    second.write(other)
    assert published() == [other, one], "newest first"
    newer = seen()
    first.write(newer)
    assert set(published()) == {newer, other}
    first.close()
    first.close()
    assert published() == [other]
    assert [each.name for each in (root / "native").iterdir()] == ["run-2.json"]


def test_nothing_is_written_after_close(root):
    publication = Publication("run-1")
    publication.write(seen())
    publication.close()
    publication.write(seen())
    assert list((root / "native").iterdir()) == []


def test_only_the_user_can_read_them(root, monkeypatch):
    monkeypatch.setenv("MEANDER_RUNTIME_DIR", str(root / "new"))
    before = os.umask(0)
    try:
        Publication("run-1").write(seen())
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in [root / "new", *(root / "new").rglob("*")]}
    assert modes == {"new": 0o700, "native": 0o700, "run-1.json": 0o600}


def test_a_reader_never_sees_half_a_file():
    publication = Publication("run-1")
    large = replace(seen(), partitions=seen().partitions * 2000)
    publication.write(large)
    done = threading.Event()

    def keep_writing():
        while not done.is_set():
            publication.write(large)

    writer = threading.Thread(target=keep_writing)
    writer.start()
    try:
        assert all(len(published()) == 1 for _ in range(20))
    finally:
        done.set()
        writer.join()


@pytest.mark.parametrize("run", ["", "Run", "a/b", "../x", "x.json", "x\n", "x" * 65])
def test_names_of_files_are_checked(run):
    with pytest.raises(InvalidOption, match="a name has 1 to 64 of the characters"):
        Publication(run)


def test_the_folder_is_the_one_told_else_of_the_session_else_temporary(root, monkeypatch):
    assert folder() == root / "native"
    monkeypatch.delenv("MEANDER_RUNTIME_DIR")
    monkeypatch.setattr(publish.tempfile, "gettempdir", lambda: str(root))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(root / "session"))
    fallback = root / f"meander-{os.geteuid()}" / "native"
    assert folder() == fallback, "the folder of a session that has ended is no place"
    (root / "session").mkdir()
    assert folder() == root / "session" / "meander" / "native"
    monkeypatch.setenv("XDG_RUNTIME_DIR", "")
    assert folder() == fallback
    assert not fallback.exists(), "asking makes nothing"


def test_readers_find_what_jobs_outside_a_session_write(root, monkeypatch):
    monkeypatch.delenv("MEANDER_RUNTIME_DIR")
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(publish.tempfile, "gettempdir", lambda: str(root))
    job = seen()
    Publication("run-1").write(job)
    (root / "session").mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(root / "session"))
    assert published() == [job]
    mine = seen(run="run-2", ago_ms=-10)
    Publication("run-2").write(mine)
    assert published() == [mine, job]
    (root / f"meander-{os.geteuid()}").chmod(0o777)
    assert published() == [mine], "the other place does not spoil this one"


def refused(sentence, caplog):
    """Asking and reading are refused; writing is not done, says so once, and goes on."""
    with pytest.raises(InvalidOption, match=sentence):
        folder()
    with pytest.raises(InvalidOption, match=sentence):
        published()
    publication = Publication("run-1")
    with caplog.at_level(logging.WARNING, "meander"):
        for _ in range(3):
            publication.write(seen())
    publication.close()
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "run run-1 goes on, but 'meander native top' cannot show it" in record.getMessage()


@pytest.mark.parametrize("place", ["top", "top/native"])
def test_a_link_is_refused(place, root, monkeypatch, caplog):
    monkeypatch.setenv("MEANDER_RUNTIME_DIR", str(root / "top"))
    (root / "elsewhere").mkdir()
    (root / place).parent.mkdir(exist_ok=True)
    (root / place).symlink_to(root / "elsewhere")
    refused(f"{place} is a symbolic link; set MEANDER_RUNTIME_DIR to a folder of your own", caplog)
    assert list((root / "elsewhere").iterdir()) == []


def test_a_file_in_its_place_is_refused(root, caplog):
    (root / "native").write_text("")
    refused("native is not a folder", caplog)


def test_a_folder_that_others_can_write_is_refused(root, caplog):
    (root / "native").mkdir()
    (root / "native").chmod(0o770)
    refused("native can be written by others", caplog)


def test_a_folder_of_somebody_else_is_refused(root, monkeypatch, caplog):
    monkeypatch.setattr(publish.os, "geteuid", lambda: root.stat().st_uid + 1)
    refused(f"belongs to user {root.stat().st_uid}", caplog)


def test_a_write_that_fails_is_logged_once_and_leaves_nothing(root, monkeypatch, caplog):
    publication = Publication("run-1")
    first = seen()
    publication.write(first)

    def no_space(self, target):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", no_space)
        publication.write(seen())
        publication.write(seen())
    publication.write(replace(seen(), batch_ms=float("nan")))
    assert [record.getMessage().endswith("No space left on device") for record in caplog.records] == [True]
    assert published() == [first], "the last one that was whole"
    assert [each.name for each in (root / "native").iterdir()] == ["run-1.json"]
    later = seen(ago_ms=-50)
    publication.write(later)
    assert published() == [later]


def test_a_folder_whose_parent_is_missing_is_only_logged(root, monkeypatch, caplog):
    monkeypatch.setenv("MEANDER_RUNTIME_DIR", str(root / "no" / "where"))
    Publication("run-1").write(seen())
    assert len(caplog.records) == 1
    assert published() == []


GOOD = {"pid": os.getpid(), "observation": seen().to_dict()}


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"\xff", b"7", b"[]", b"null", b"[" * 100_000, b"9" * 10_000,
        {}, {"pid": os.getpid()}, {"observation": GOOD["observation"]},
        {**GOOD, "pid": "1"}, {**GOOD, "pid": 0}, {**GOOD, "pid": -1}, {**GOOD, "pid": 2**40}, {**GOOD, "pid": True},
        {**GOOD, "observation": []}, {**GOOD, "observation": {**GOOD["observation"], "batch": "x"}},
    ],
    ids=lambda content: str(content)[:20],
)  # fmt: skip
def test_files_that_are_no_observations_are_passed_over_and_left(content):
    Publication("run-1").write(seen())
    other = put("other.json", content)
    assert [each.run for each in published()] == ["run-1"]
    assert other.exists()


def test_a_good_file_by_hand_is_read():
    put("other.json", GOOD)
    assert published() == [Observation.from_dict(GOOD["observation"])]


@pytest.mark.parametrize("name", ["Other.json", "other.txt", "other", ".json", "other.json.part", "o ther.json"])
def test_other_names_are_passed_over(name):
    path = put(name, GOOD)
    assert published() == []
    assert path.exists()


def test_links_pipes_and_folders_are_passed_over(root):
    Publication("run-1").write(seen())
    outside = root / "outside.json"
    outside.write_text(json.dumps(GOOD))
    (root / "native" / "link.json").symlink_to(outside)
    os.mkfifo(root / "native" / "pipe.json")
    (root / "native" / "folder.json").mkdir()
    assert [each.run for each in published()] == ["run-1"]


def test_a_file_that_is_too_large_is_passed_over(monkeypatch):
    put("other.json", GOOD)
    monkeypatch.setattr(publish, "LARGEST_FILE", 100)
    assert published() == []


def test_the_file_of_a_process_that_is_gone_is_removed():
    path = put("other.json", {**GOOD, "pid": gone_pid()})
    assert published() == []
    assert not path.exists()


def test_a_process_of_somebody_else_is_there(monkeypatch):
    def not_allowed(pid, signal):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(publish.os, "kill", not_allowed)
    put("other.json", GOOD)
    assert len(published()) == 1


@pytest.mark.parametrize(("ago_ms", "stays"), [(DAY_MS - 60_000, True), (DAY_MS + 1000, False)])
def test_what_is_a_day_old_is_removed(ago_ms, stays):
    path = put("other.json", {**GOOD, "observation": seen(ago_ms=ago_ms).to_dict()})
    assert len(published()) == stays
    assert path.exists() is stays


def test_what_a_killed_writer_left_is_removed_after_a_day():
    old, new = put("run-1.abc.part", b"{"), put("run-1.def.part", b"{")
    os.utime(old, (time.time() - 100_000,) * 2)
    assert published() == []
    assert (old.exists(), new.exists()) == (False, True)
