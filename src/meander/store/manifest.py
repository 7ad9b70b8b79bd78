"""The log of the checkpoint: the commits and their drivers. One file per entry; each entry follows one parent.

    manifests/000000000000.json    claim   epoch 0
    manifests/000000000001.json    commit  version 0
    manifests/000000000002.json    commit  version 1
    manifests/000000000003.json    announcement of version 2: a tick
    manifests/000000000004.json    claim   epoch 4: another driver has taken over
    manifests/000000000005.json    commit  version 2, as it was announced
    manifests/000000000006.json    claim   epoch 6: somebody rolls back to version 1
    manifests/000000000007.json    commit  version 3, which undoes 2: its state is that of version 1
    manifests/000000000008.json    settlement: Spark's logs and the sink know of it too

An entry is created exclusively under the next number and names its parent by checksum. A driver that was asleep while
another one claimed finds the next number in use: it is fenced without any lock, lease or clock. Every sixteenth entry
carries the full index, so that opening reads no more than that many files.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

from meander.errors import CheckpointError, Damaged, Exists, Fenced
from meander.store.entries import Announcement, Commit, Entry, FileRef, LogWriter, OperatorCommit, SnapshotRef
from meander.store.files import seal, seal_of, unseal
from meander.store.index import Index
from meander.store.location import Location

__all__ = ["Commit", "FileRef", "Log", "OperatorCommit", "Past", "SnapshotRef", "path_of", "sequences"]

FOLDER = "manifests"
FULL_EVERY = 16
REMEMBERED = 64
"""So many of the last commits are kept in memory."""
_NAME = re.compile(r"(\d{12})\.json")
_NO_PARENT = ""


@dataclass(frozen=True)
class Past:
    """A version as it was: its commit, the index after it, and the entry that reading it starts from."""

    commit: Commit
    index: Index
    start: int


def path_of(sequence: int) -> str:
    """The path of an entry of the log."""
    return f"{FOLDER}/{sequence:012d}.json"


def sequences(location: Location) -> list[int]:
    """The numbers of all entries in the folder, ascending; no file is opened."""
    return sorted(int(match[1]) for name in location.list(FOLDER) if (match := _NAME.fullmatch(name)))


def read_entry(location: Location, sequence: int) -> tuple[Entry, str]:
    """Return an entry of the log and its checksum; Damaged, naming the file, where it is not what was written."""
    path = path_of(sequence)
    data = location.read(path).to_pybytes()
    fields = unseal(data, path)
    try:
        entry = Entry.from_json(fields)
    except (KeyError, TypeError, ValueError) as error:
        raise Damaged(f"{path} is not an entry that this version can read ({error!r}); restore it") from None
    if entry.sequence != sequence:
        raise Damaged(f"{path} is entry {entry.sequence} under a wrong name; restore it from a copy")
    return entry, seal_of(data)


class Log:
    """The log as one driver sees it: what is committed, and the right to commit more once it has claimed."""

    def __init__(self, location: Location) -> None:
        self.location = location
        self.driver: LogWriter | None = None
        self._fence: str | None = None
        self._last: Commit | None
        self._writer: LogWriter | None
        self._forget()

    @classmethod
    def open(cls, location: Location) -> Log:
        """Read the newest entries, back to the last full index; the log may be empty."""
        log = cls(location)
        log.refresh()
        return log

    @property
    def epoch(self) -> int | None:
        """The epoch of this driver, None before it has claimed."""
        return self.driver.epoch if self.driver else None

    @property
    def last(self) -> Commit | None:
        """The last commit, or None."""
        return self._last

    @property
    def announced(self) -> Announcement | None:
        """What the next version is, where that has been announced: a sink may have heard of it."""
        return self._announced

    @property
    def is_owed(self) -> bool:
        """Whether the last commit is a rollback that Spark's logs and the sink may not know of yet."""
        return self._is_owed

    @property
    def index(self) -> Index:
        """Where the state is after the last commit."""
        return self._index

    @property
    def writer(self) -> LogWriter | None:
        """The driver that has claimed last, be it this one or another."""
        return self._writer

    @property
    def next_sequence(self) -> int:
        """The number of the entry that comes next."""
        return self._next

    def refresh(self) -> None:
        """Read what is new in the log, for instance to follow another driver; all of it where that does not follow."""
        while True:
            numbers = sequences(self.location)
            try:
                if not self._continue(numbers):
                    self._load(numbers)
                return
            except Damaged:
                # Another driver may have swept entries that the list still has.
                if sequences(self.location)[-1:] == numbers[-1:]:
                    raise

    def claim(self, host: str, pid: int) -> int:
        """Take over the log and return the epoch; every earlier driver is now fenced."""
        self.refresh()
        while True:
            sequence = self._next
            driver = LogWriter(sequence, host, pid)
            entry = self._entry(driver, self._announced)
            data = seal(entry.to_json())
            try:
                self.location.create(path_of(sequence), data)
            except Exists:
                if self._contents(sequence) != data:
                    self._follow()
                    continue
            except CheckpointError:
                if sequences(self.location)[-1:] > [sequence - 1]:  # another driver swept the temporary file
                    self.refresh()
                    continue
                raise
            # If others claimed, committed and swept while this driver slept, its number is free again: not the end.
            later = [each for each in sequences(self.location) if each > sequence]
            if later and not self._is_followed_by(later[0], sequence, seal_of(data)):
                self.refresh()
                continue
            self.driver, self._fence = driver, None
            self._append(entry, seal_of(data), self._index)
            return sequence

    def append(self, commit: Commit) -> None:
        """Commit the next version; Fenced, for ever, where another driver has claimed since."""
        driver = self._checked(commit)
        index = self._index.after(commit)
        full = index.to_json() if self._is_full_due() else None
        self._create(Entry(self._next, self._parent, driver, commit.version, commit, full), index)

    def announce(self, announcement: Announcement) -> None:
        """Put on record what the next version is, unless that is there already; Fenced as `append` is."""
        driver = self._claimed()
        if self._announced is not None and self._announced.is_of(announcement):
            self.check()
            return
        if self._announced is not None or announcement.version != self._index.version + 1:
            known = self._announced or f"version {self._index.version} is the last one"
            raise CheckpointError(f"{announcement} cannot be announced: {known}")
        self._create(self._entry(driver, announcement), self._index)

    def rewind(self, commit: Commit, past: Index) -> None:
        """Commit a rollback to a version that had the index `past`; Fenced as `append` is."""
        self._replace(commit, self._index.after_rollback(commit, past))

    def rebin(self, commit: Commit) -> None:
        """Commit a version that has all state in other bins; Fenced as `append` is."""
        self._replace(commit, self._index.after_rebin(commit))

    def _replace(self, commit: Commit, index: Index) -> None:
        driver, is_owed = self._claimed(), commit.undoes is not None
        entry = Entry(
            self._next, self._parent, driver, commit.version, commit, index.to_json(), is_owed=is_owed
        )  # fmt: skip
        self._create(entry, index)

    def settle(self) -> None:
        """Put on record that a rollback is carried out everywhere."""
        driver = self._claimed()
        if self._is_owed:
            self._create(replace(self._entry(driver, None), is_owed=False), self._index)

    def _entry(self, driver: LogWriter, announced: Announcement | None) -> Entry:
        """The next entry, if it is no commit."""
        index, last = (self._index.to_json(), self._last) if self._is_full_due() else (None, None)
        version, is_owed = self._index.version, self._is_owed
        return Entry(self._next, self._parent, driver, version, None, index, last, announced, is_owed)

    def _create(self, entry: Entry, index: Index) -> None:
        """Write the next entry of this driver, or find out that another one has claimed."""
        data = seal(entry.to_json())
        try:
            self.location.create(path_of(entry.sequence), data)
        except Exists:
            contents = self._contents(entry.sequence)
            if contents is None:
                self._raise_if_fenced()
                raise
            if contents != data:  # equal bytes: the create succeeded, only its reply was lost
                self._refuse(Entry.from_json(unseal(contents, path_of(entry.sequence))).driver)
        except CheckpointError:
            self._raise_if_fenced()  # another driver may have swept the temporary file
            raise
        self._check_parent()
        self._append(entry, seal_of(data), index)

    def check(self) -> None:
        """Raise Fenced where another driver has claimed since; a cheap look before work that cannot be undone."""
        self._claimed()
        if self.location.exists(path_of(self._next)):
            self._refuse(read_entry(self.location, self._next)[0].driver)
        self._check_parent()

    def commits(self, from_version: int) -> list[Commit]:
        """Return the commits from a version on, oldest first, without undone ones; Damaged where one is gone."""
        versions = range(max(from_version, 0), self._index.version + 1)
        wanted = [version for version in versions if not self._index.is_undone(version)]
        known = len(wanted)
        while known and wanted[known - 1] in self._recent:
            known -= 1
        older = self._read_commits(wanted[0], wanted[min(known, len(wanted) - 1)]) if known else []
        return older + [self._recent[version].state for version in wanted[len(older) :]]

    def tokens(self, first: int, last: int) -> list[Any]:
        """What sinks have prepared for the versions from `first` to `last`, undone ones too, newest first."""
        entries = (read_entry(self.location, each)[0] for each in range(self._next - 1, self.oldest() - 1, -1))
        within = takewhile(lambda entry: entry.version >= first, entries)
        commits = [entry.commit for entry in within if entry.commit is not None and entry.version <= last]
        return [commit.sink for commit in commits if commit.sink is not None]

    def _read_commits(self, first: int, last: int) -> list[Commit]:
        commits: list[Commit] = []
        parent = None
        for sequence in range(self._sequence_of(first), self._next):
            entry, mark = read_entry(self.location, sequence)
            _check_link(entry, parent)
            parent = mark
            if entry.commit is not None and not self._index.is_undone(entry.version):
                commits.append(entry.commit)
            elif entry.last is not None and not commits:
                commits.append(entry.last)
            if entry.version == last:
                break
        return commits

    def view(self) -> Log:
        """The log as it is now, for whoever reads it beside this driver; it cannot commit."""
        view = copy(self)
        view.driver = None
        return view

    def at(self, version: int) -> Past:
        """Return a version as it was committed, of those that are kept."""
        if self._index.is_undone(version):
            raise CheckpointError(f"version {version} was undone by a rollback; the last one is {self._index.version}")
        start = self._sequence_of(version)
        if (past := self._recall(version, start)) is not None:
            return past
        entries: list[Entry] = []
        while True:
            entry, mark = read_entry(self.location, start)
            if entries:
                _check_link(entries[-1], mark)
            entries.append(entry)
            if entry.index is not None or start == 0:
                break
            start -= 1
        index = Index.from_json(entry.index) if entry.index is not None else Index.empty()
        for each in reversed(entries):
            if each.commit is not None and each.commit.version > index.version:
                index = index.after(each.commit)
        return Past(entries[0].state, index, start)

    def _recall(self, version: int, sequence: int) -> Past | None:
        """A version of which all commits since the full index before it are in memory: only that index is read."""
        before = bisect_right(self._fulls, sequence)
        if before == 0 or version not in self._recent:
            return None
        start = self._fulls[before - 1]
        entry, _ = read_entry(self.location, start)
        index = Index.from_json(entry.index) if entry.index is not None else Index.empty()
        since = range(index.version + 1, version + 1)
        if not all(each in self._recent for each in since):
            return None
        for each in since:
            index = index.after(self._recent[each].state)
        return Past(self._recent[version].state, index, start)

    def first_version(self) -> int:
        """The oldest version that the log still describes in full; -1 where nothing is committed."""
        if self._last is None:
            return -1
        start = self.oldest()
        return max(read_entry(self.location, start)[0].version, 0)

    def oldest(self) -> int:
        """The number of the oldest entry without a gap to the newest; older ones are leftovers of a fenced driver."""
        numbers = sequences(self.location)
        at = len(numbers) - 1
        while at > 0 and numbers[at - 1] == numbers[at] - 1:
            at -= 1
        return numbers[at] if numbers else 0

    def _sequence_of(self, version: int) -> int:
        first = self.oldest()
        known = self._recent.get(version)
        if known is not None and known.sequence >= first:
            return known.sequence
        numbers = range(first, self._next)
        at = bisect_left(numbers, version, key=lambda sequence: read_entry(self.location, sequence)[0].version)
        if version <= self._index.version and at < len(numbers):
            entry, _ = read_entry(self.location, numbers[at])
            if entry.version == version and (entry.commit or entry.last):
                return numbers[at]
        raise CheckpointError(f"version {version} is not kept; the last one is version {self._index.version}")

    def _continue(self, numbers: list[int]) -> bool:
        """Read the entries after the last one that is known; False where that is gone or they do not follow it."""
        known = self._next - 1
        later = numbers[bisect_left(numbers, known) :]
        if later != list(range(known, known + len(later))) or self._parent_now() != self._parent:
            return False
        for sequence in later[1:]:
            entry, mark = read_entry(self.location, sequence)
            if entry.parent != self._parent:
                return False
            self._take(entry, mark)
        return True

    def _load(self, numbers: list[int]) -> None:
        self._forget()
        if not numbers:
            return
        entries: list[tuple[Entry, str]] = []
        for sequence in range(numbers[-1], -1, -1):
            entry, mark = read_entry(self.location, sequence)
            if entries:
                _check_link(entries[-1][0], mark)
            entries.append((entry, mark))
            if entry.index is not None:
                break
        for entry, mark in reversed(entries):
            self._take(entry, mark)
        self._fulls = [entries[-1][0].sequence]

    def _follow(self) -> None:
        """Read the new entries one by one, to catch up with a driver that commits without a pause."""
        before = self._next
        try:
            while self.location.exists(path_of(self._next)):
                entry, mark = read_entry(self.location, self._next)
                _check_link(entry, self._parent)
                self._take(entry, mark)
        except Damaged:
            self.refresh()
        if self._next == before:
            self.refresh()

    def _take(self, entry: Entry, mark: str) -> None:
        if entry.last is not None:
            self._last = entry.last
            self._remember({entry.version: entry.without_index(), **self._recent})
        commit = entry.commit
        if commit is not None and commit.is_plain and entry.version == self._index.version + 1:
            index = self._index.after(commit)
        else:
            index = self._index if entry.index is None else Index.from_json(entry.index)
        self._append(entry, mark, index)

    def _contents(self, sequence: int) -> bytes | None:
        """The bytes of an entry, None where it has been swept."""
        try:
            return bytes(self.location.read(path_of(sequence)).to_pybytes())
        except Damaged:
            return None

    def _is_followed_by(self, other: int, sequence: int, mark: str) -> bool:
        contents = self._contents(other) if other == sequence + 1 else None
        return contents is not None and Entry.from_json(unseal(contents, path_of(other))).parent == mark

    def _forget(self) -> None:
        self._next, self._parent, self._fulls = 0, _NO_PARENT, [0]
        self._last = self._writer = None
        self._announced: Announcement | None = None
        self._is_owed = False
        self._index = Index.empty()
        self._recent: Mapping[int, Entry] = {}

    def _append(self, entry: Entry, mark: str, index: Index) -> None:
        self._next, self._parent, self._index = entry.sequence + 1, mark, index
        self._writer, self._announced, self._is_owed = entry.driver, entry.announced, entry.is_owed
        if entry.index is not None:
            self._fulls = [*self._fulls[-REMEMBERED // FULL_EVERY :], entry.sequence]
        if entry.commit is not None:
            self._last = entry.commit
            self._remember({**self._recent, entry.version: entry.without_index()})

    def _remember(self, entries: dict[int, Entry]) -> None:
        # A new dictionary each time: views of the log share the old one.
        while len(entries) > REMEMBERED:
            del entries[min(entries)]
        self._recent = entries

    def _is_full_due(self) -> bool:
        return self._next - self._fulls[-1] >= FULL_EVERY

    def _raise_if_fenced(self) -> None:
        try:
            self.check()
        except Fenced:
            raise
        except CheckpointError:
            pass

    def _claimed(self) -> LogWriter:
        if self._fence:
            raise Fenced(self._fence)
        if self.driver is None:
            raise CheckpointError("this driver has not claimed the log; claim it before the first commit")
        return self.driver

    def _checked(self, commit: Commit) -> LogWriter:
        driver = self._claimed()
        if commit.version != self._index.version + 1:
            raise CheckpointError(f"version {commit.version} cannot follow version {self._index.version}")
        known = [operator.bins for operator in self._index.operators]
        now = [len(operator.owner) for operator in commit.operators]
        if known and known != (now if commit.design is None else now[: len(known)]):
            raise CheckpointError(f"version {commit.version} has other operators or bins than the versions before it")
        if self._announced is not None and not self._announced.is_kept_by(commit):
            raise CheckpointError(f"version {commit.version} is not what was announced: {self._announced}")
        return driver

    def _check_parent(self) -> None:
        # Others may have claimed, committed and swept old entries, so that this driver's number is free again.
        # Entries are swept from the oldest on: while the parent exists, the number has never been used.
        if self._parent_now() != self._parent:
            newest = sequences(self.location)[-1:]
            self._refuse(read_entry(self.location, newest[0])[0].driver if newest else None)

    def _parent_now(self) -> str:
        """The checksum of the last entry known, as it is there now; none where it has been swept."""
        contents = self._contents(self._next - 1)
        return "" if contents is None else seal_of(contents)

    def _refuse(self, other: LogWriter | None) -> None:
        if other is not None and other == self.driver:
            raise CheckpointError(
                f"entry {self._next} of {self.location.uri} was written by an attempt of this driver that seemed to "
                "fail; open the log again"
            )
        who = f"(epoch {other.epoch}, {other.host}, pid {other.pid})" if other else "that has gone"
        self._fence = (
            f"another driver {who} has taken over the checkpoint {self.location.uri}; this one commits nothing more"
        )
        raise Fenced(self._fence)


def _check_link(entry: Entry, parent: str | None) -> None:
    if parent is not None and entry.parent != parent:
        raise Damaged(
            f"{path_of(entry.sequence)} does not follow {path_of(entry.sequence - 1)}: one of them comes from "
            "elsewhere; restore both from a copy"
        )
