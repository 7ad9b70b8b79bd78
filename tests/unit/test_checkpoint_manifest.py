"""The log of manifests: claims, commits, fencing, and what it says when a file is not as it was."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from meander.errors import CheckpointError, Damaged, Exists, Fenced
from meander.store import location as location_module
from meander.store import manifest
from meander.store.bitmap import bitmap
from meander.store.entries import Announcement, Commit, FileRef, OperatorCommit
from meander.store.files import seal, unseal
from meander.store.location import Location
from meander.store.manifest import Log, path_of, sequences
from meander.store.retention import sweep

BINS = 8


def commit(version, **changes):
    file = FileRef(0, 10, 1, 77, f"deltas/v{version:012d}-s0-w0-0.0.state", bins=bitmap([version % BINS], BINS))
    operator = OperatorCommit(version, (0,) * BINS, (file,))
    return Commit(version, version, 0, "query", "offsets", (operator,), **changes)


@pytest.fixture
def place(tmp_path):
    return Location.of(tmp_path)


def driver(place, commits=0, pid=1):
    log = Log.open(place)
    log.claim("host", pid)
    for _ in range(commits):
        log.append(commit(log.index.version + 1))
    return log


class Counted:
    """A location that counts what is read."""

    def __init__(self, inner):
        self.inner, self.reads = inner, []

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def read(self, path):
        self.reads.append(path)
        return self.inner.read(path)


def test_an_empty_log_has_no_commit(place):
    log = Log.open(place)
    assert (log.last, log.epoch, log.next_sequence, log.index.version) == (None, None, 0, -1)
    assert log.commits(0) == []
    assert log.first_version() == -1


def test_the_epoch_is_the_number_of_the_claim(place):
    first = driver(place, 3)
    assert first.epoch == 0
    second = driver(place, pid=2)
    assert second.epoch == 4
    assert second.last == commit(2)
    assert json.loads((place.read(path_of(4))).to_pybytes())["pid"] == 2


def test_commits_without_a_claim_or_out_of_order_are_refused(place):
    with pytest.raises(CheckpointError, match="has not claimed the log"):
        Log.open(place).append(commit(0))
    log = driver(place, 1)
    for wrong in (
        commit(0),
        commit(2),
        replace(commit(1), operators=()),
        replace(commit(1), operators=commit(1).operators * 2),
    ):
        with pytest.raises(CheckpointError, match="version"):
            log.append(wrong)
    log.append(commit(1))


@pytest.mark.parametrize("commits_of_the_other", [0, 1, 40])
def test_a_driver_that_slept_is_fenced_for_ever_and_says_by_whom(place, commits_of_the_other):
    old = driver(place, 5)
    new = driver(place, commits_of_the_other, pid=4711)
    before = sequences(place)
    for _ in range(2):
        with pytest.raises(Fenced, match=r"another driver \(epoch 6, host, pid 4711\) has taken over .* nothing more"):
            old.append(commit(5))
        with pytest.raises(Fenced):
            old.check()
    assert sequences(place) == before
    new.check()
    new.append(commit(new.index.version + 1))


def test_a_driver_that_slept_until_its_number_was_swept_away_is_fenced_too(place):
    old = driver(place, 5)
    slept_twice = driver(place, 0, pid=2)
    new = driver(place, 80, pid=3)
    assert sweep(place, new, keep=3)
    assert old.next_sequence < sequences(place)[0]
    for late in (old, slept_twice):
        with pytest.raises(Fenced, match="pid 3"):
            late.append(commit(5))
    # what they have left behind disturbs nobody, and goes with the next sweep
    again = Log.open(place)
    assert again.last == commit(84)
    assert again.commits(83) == [commit(83), commit(84)]
    new.append(commit(85))
    sweep(place, new, keep=3)
    assert sequences(place) == list(range(sequences(place)[0], new.next_sequence))


def asleep_before_the_link(monkeypatch, meanwhile):
    """Let a driver sleep when its entry is written under a temporary name only."""
    real = os.link

    def link(source, target):
        monkeypatch.setattr(location_module.os, "link", real)
        meanwhile()
        real(source, target)

    monkeypatch.setattr(location_module.os, "link", link)


@pytest.mark.parametrize("commits", [0, 3, 60])
@pytest.mark.parametrize("is_claim", [True, False])
def test_a_driver_that_slept_when_its_entry_was_half_written(place, monkeypatch, commits, is_claim):
    old = driver(place, 5)
    others = []

    def meanwhile():
        others.append(driver(place, commits, pid=3))
        if commits == 60:
            sweep(place, others[0], keep=1)
            assert all(not name.endswith(".tmp") for name in place.list("manifests"))

    asleep_before_the_link(monkeypatch, meanwhile)
    if is_claim:
        assert old.claim("host", 9) == others[0].next_sequence
        old.append(commit(5 + commits))
        with pytest.raises(Fenced, match="pid 9"):
            others[0].append(commit(5 + commits))
    else:
        with pytest.raises(Fenced, match="pid 3"):
            old.append(commit(5))
        others[0].append(commit(5 + commits))
    assert Log.open(place).last == commit(5 + commits)


def test_a_disk_that_fails_is_no_fence(place, monkeypatch):
    log = driver(place, 2)

    def broken(source, target):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(location_module.os, "link", broken)
        for act in (lambda: log.append(commit(2)), lambda: Log.open(place).claim("host", 2)):
            with pytest.raises(CheckpointError, match="Input/output error") as caught:
                act()
            assert not isinstance(caught.value, Fenced)
    log.append(commit(2))


def test_a_claim_into_a_number_that_was_swept_away_is_made_again(place, monkeypatch):
    late = Log(place)
    new = driver(place, 60)
    sweep(place, new, keep=1)
    real = late.refresh
    calls = []

    def asleep():
        # the first time as if nothing had been there yet
        calls.append(1)
        if len(calls) > 1:
            real()

    monkeypatch.setattr(late, "refresh", asleep)
    assert late.claim("late", 9) == 61
    with pytest.raises(Fenced, match="late, pid 9"):
        new.append(commit(60))


def test_a_commit_whose_answer_got_lost_can_be_sent_again(place):
    log = driver(place, 1)
    real = place.create

    class Lossy(Counted):
        def create(self, path, data):
            real(path, data)
            raise Exists("sent twice by the network")

    log.location = Lossy(place)
    log.append(commit(1))
    assert Log.open(place).last == commit(1)

    class Broken(Counted):
        def create(self, path, data):
            real(path, data)
            raise CheckpointError("connection lost")

    log.location = Broken(place)
    with pytest.raises(CheckpointError, match="connection lost"):
        log.append(commit(2))
    log.location = place
    with pytest.raises(CheckpointError, match="attempt of this driver that seemed to fail; open the log again"):
        log.append(commit(2, rows=5))
    assert Log.open(place).last == commit(2)


@pytest.mark.parametrize(("commits", "claims"), [(0, 40), (15, 1), (16, 1), (17, 1), (500, 1), (100, 100)])
def test_opening_reads_no_more_than_sixteen_entries(place, commits, claims):
    driver(place, commits)
    for pid in range(claims):
        log = driver(place, pid=pid)
    counted = Counted(place)
    found = Log.open(counted)
    assert len(counted.reads) <= 16
    assert found.last == log.last == (commit(commits - 1) if commits else None)
    assert found.index.to_json() == log.index.to_json()
    counted.reads.clear()
    if commits > 20:
        assert found.at(3).commit == commit(3)
        assert len(counted.reads) <= 16 + 12
        counted.reads.clear()
        assert found.commits(commits - 1) == [commit(commits - 1)]
        assert len(counted.reads) <= 16 + 12


@pytest.mark.parametrize("number", [0, 7, 16, 20, 21])
def test_damage_is_named_when_the_entry_is_needed(place, tmp_path, number):
    driver(place, 20)
    assert sequences(place)[-1] == 20
    file = tmp_path / path_of(number)
    if number == 21:
        file.write_bytes(b"")  # torn at the very end of the log
    else:
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 4
        file.write_bytes(data)
    if number >= 16:
        with pytest.raises(Damaged, match=f"{path_of(number)} is torn or has been changed"):
            Log.open(place)
    else:
        log = Log.open(place)
        with pytest.raises(Damaged, match=path_of(number)):
            log.commits(0) if number else log.at(0)


def test_a_missing_or_foreign_entry_is_named(place, tmp_path):
    driver(place, 20)
    data = (tmp_path / path_of(18)).read_bytes()
    (tmp_path / path_of(18)).unlink()
    with pytest.raises(Damaged, match=f"{path_of(18)} of the checkpoint .* is missing"):
        Log.open(place)
    (tmp_path / path_of(18)).write_bytes((tmp_path / path_of(17)).read_bytes())
    with pytest.raises(Damaged, match=f"{path_of(18)} is entry 17 under a wrong name"):
        Log.open(place)
    (tmp_path / path_of(18)).write_bytes(data)
    other = Location.of(tmp_path / "other")
    driver(other, 20, pid=99)
    (tmp_path / path_of(18)).write_bytes(other.read(path_of(18)).to_pybytes())
    with pytest.raises(Damaged, match=f"{path_of(19)} does not follow {path_of(18)}"):
        Log.open(place)


def test_versions_that_are_not_kept_are_refused(place):
    log = driver(place, 60)
    sweep(place, log, keep=5)
    assert log.at(55).commit == commit(55)
    assert log.first_version() > 0
    for version in (0, 60):
        with pytest.raises(CheckpointError, match=f"version {version} is not kept"):
            log.at(version)
    assert Log.open(place).last == commit(59)


def test_a_log_that_begins_with_a_claim_still_tells_of_the_version_before_it(place, monkeypatch):
    driver(place, 5)
    for _ in range(40):
        log = driver(place)
    log.append(commit(5))
    assert sweep(place, log, keep=1)
    again = Log.open(place)
    assert again.oldest() > 20
    assert again.first_version() == 4
    for version in (4, 5):
        assert again.at(version).commit == commit(version)
        assert Log.open(place).commits(version) == [commit(each) for each in range(version, 6)]
    monkeypatch.setattr(manifest, "REMEMBERED", 0)
    assert Log.open(place).commits(4) == [commit(4), commit(5)], "also of what it does not remember"
    assert sweep(place, again, keep=10) == []


def test_temporary_files_in_the_folder_are_no_entries(place, tmp_path):
    driver(place, 2)
    (tmp_path / "manifests" / "000000000009.json.ab12.tmp").write_bytes(b"half")
    assert sequences(place) == [0, 1, 2]


FOUGHT = """
import os, sys
from meander.store.entries import Commit, OperatorCommit
from meander.store.location import Location
from meander.store.manifest import Log
from meander.errors import Fenced
place, wanted = Location.of(sys.argv[1]), int(sys.argv[2])
sys.stdin.readline()
done = 0
while done < wanted:
    log = Log.open(place)
    log.claim("host", os.getpid())
    try:
        for _ in range(5):
            version = log.index.version + 1
            log.append(Commit(version, version, 0, "q", "o", (OperatorCommit(None, (0,)),), rows=os.getpid()))
            done += 1
            print(version, flush=True)
    except Fenced:
        pass
"""


def start(code, *arguments):
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_drivers_that_fight_commit_every_version_once(place, tmp_path):
    fighters = [start(FOUGHT, tmp_path, 40) for _ in range(2)]
    for fighter in fighters:
        fighter.stdin.write("\n")
        fighter.stdin.flush()
    said = {fighter.pid: [int(line) for line in fighter.communicate()[0].split()] for fighter in fighters}
    assert [fighter.returncode for fighter in fighters] == [0, 0]
    commits = Log.open(place).commits(0)
    assert [each.version for each in commits] == list(range(len(commits)))
    for pid, versions in said.items():
        assert [each.version for each in commits if each.rows == pid] == versions


STOPPED = """
import os, sys
from meander.store.entries import Commit, OperatorCommit
from meander.store.location import Location
from meander.store.manifest import Log
from meander.errors import Fenced
log = Log.open(Location.of(sys.argv[1]))
log.claim("host", os.getpid())
for version in range(10**6):
    try:
        log.append(Commit(version, version, 0, "q", "o", (OperatorCommit(None, (0,)),), rows=1))
    except Fenced as error:
        print("fenced", error)
        break
    print(version, flush=True)
"""


def test_a_driver_stopped_at_any_moment_commits_nothing_after_the_next_claim(place, tmp_path):
    for round_ in range(2):
        place = Location.of(tmp_path / str(round_))
        old = start(STOPPED, place.root)
        said = [old.stdout.readline() for _ in range(3 + 11 * round_)]
        os.kill(old.pid, signal.SIGSTOP)
        new = Log.open(place)
        epoch = new.claim("new", 5)
        taken = new.index.version
        for version in range(taken + 1, taken + (4 if round_ % 2 else 50)):
            new.append(Commit(version, version, 0, "q", "o", (OperatorCommit(None, (0,)),), rows=2))
        if round_ % 2 == 0:
            sweep(place, new, keep=1)
            assert sequences(place)[0] > epoch
        os.kill(old.pid, signal.SIGCONT)
        *more, end = [*said, *old.stdout.read().splitlines()]  # communicate() forgets what readline() has read ahead
        old.communicate()
        assert end.startswith("fenced another driver")
        assert "new, pid 5" in end
        assert int(more[-1]) <= taken
        new.append(Commit(new.index.version + 1, 0, 0, "q", "o", (OperatorCommit(None, (0,)),), rows=2))
        kept = Log.open(place).commits(max(taken + 1, new.first_version()))
        assert {each.rows for each in kept} == {2}


# --- what is in memory is not read again -----------------------------------------------------------


def test_a_claim_after_opening_reads_no_entry_but_its_parent(place):
    driver(place, 10)
    counted = Counted(place)
    log = Log.open(counted)
    counted.reads.clear()
    log.claim("host", 2)
    assert counted.reads == [path_of(10)]


def test_a_refresh_reads_the_new_entries_only(place):
    other = driver(place, 10)
    counted = Counted(place)
    log = Log.open(counted)
    for version in (10, 11):
        other.append(commit(version))
    counted.reads.clear()
    log.refresh()
    assert counted.reads == [path_of(10), path_of(11), path_of(12)]
    assert (log.last, log.next_sequence) == (commit(11), 13)
    assert log.index.to_json() == other.index.to_json()


def test_what_a_driver_that_slept_has_left_behind_is_not_taken_for_the_next_entry(place):
    slept, reader = driver(place, 5), Log.open(place)
    new = driver(place, 80, pid=3)
    sweep(place, new, keep=3)
    with pytest.raises(Fenced):
        slept.append(commit(5))
    assert reader.next_sequence in sequences(place)
    reader.refresh()
    assert reader.last == new.last


def test_a_view_stays_as_it_was_and_cannot_commit(place):
    log = driver(place, 3)
    view = log.view()
    log.append(commit(3))
    assert view.commits(0) == [commit(version) for version in range(3)]
    with pytest.raises(CheckpointError, match="has not claimed"):
        view.append(commit(3))


def test_a_version_from_memory_is_the_one_that_is_read(place):
    driver(place, 100)
    log = driver(place, 3, pid=2)
    for version in range(70, 103):
        mine, read = log.at(version), Log.open(place).at(version)
        assert (mine.commit, mine.start) == (read.commit, read.start)
        assert mine.index.to_json() == read.index.to_json()


def tick(version, frontier=7):
    """The announcement of a tick after the commit of the version before."""
    return Announcement(version, version - 1, 1, "offsets", (frontier,))


def tick_commit(version, frontier=7):
    operator = replace(commit(version).operators[0], seen=frontier)
    return replace(commit(version), batch=version - 1, tick=1, operators=(operator,))


def test_what_was_announced_stays_until_it_is_committed_whoever_claims(place):
    log = driver(place, 3)
    assert log.announced is None
    log.announce(tick(3))
    before = log.next_sequence
    log.announce(tick(3))
    assert log.next_sequence == before, "it is announced once"
    for pid in (2, 3):
        later = driver(place, pid=pid)
        assert later.announced == Log.open(place).announced == tick(3)
        assert (later.index.version, later.last) == (2, commit(2))
        for old in (log, log.view()):
            with pytest.raises(CheckpointError):
                old.announce(tick(3))
    with pytest.raises(Fenced, match="pid 2"):
        log.append(tick_commit(3))
    for wrong in (commit(3), tick_commit(3, 8), replace(tick_commit(3), journal={"hook": {"name": "x", "note": {}}})):
        with pytest.raises(CheckpointError, match="version 3 is not what was announced"):
            later.append(wrong)
    for wrong in (tick(3, 8), tick(4)):
        with pytest.raises(CheckpointError, match="cannot be announced"):
            later.announce(wrong)
    later.append(tick_commit(3))
    assert later.announced is None is Log.open(place).announced
    with pytest.raises(CheckpointError, match="cannot be announced: version 3 is the last one"):
        later.announce(tick(5))
    assert Log.open(place).commits(0) == [commit(0), commit(1), commit(2), tick_commit(3)]


def test_a_log_with_announcements_is_read_and_swept_as_one_without(place):
    log = driver(place, 1)
    for version in range(1, 60):
        log.announce(tick(version))
        log.append(tick_commit(version))
        if version % 7 == 0:
            log = driver(place, pid=version)
        if version % 9 == 0:
            sweep(place, log, keep=3)
        counted = Counted(place)
        opened = Log.open(counted)
        assert len(counted.reads) <= manifest.FULL_EVERY
        assert opened.last == tick_commit(version)
        first = opened.first_version()
        assert opened.commits(first)[-1].version == version
        for kept in range(max(first, version - 2), version + 1):
            past = opened.at(kept)
            assert (past.commit.version, past.index.version) == (kept, kept)


def test_an_entry_of_a_later_version_of_the_library_is_refused(place):
    driver(place, 2)
    fields = unseal(place.read(path_of(2)).to_pybytes(), "")
    place.write(path_of(2), seal({**fields, "kind": "promise"}))
    with pytest.raises(Damaged, match=r"000000000002.json is not an entry that this version can read .*'promise'"):
        Log.open(place)
