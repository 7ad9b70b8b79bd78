"""Space in one memory-mapped file, in extents that can be given back.

The file is sparse and longer than what is used, so that it is mapped anew only when it has grown fourfold. Space is
reserved on the disk before anybody writes to it: a full disk is an error here, not a SIGBUS in a kernel.
"""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from meander.errors import NoSpace
from meander.state.extents_kernel import fit

Words = NDArray[np.int64]
Octets = NDArray[np.uint8]

GRANULE = 8
"""Extents are whole multiples of so many words: one line of the cache."""

FIRST_LENGTH = 1 << 21
"""The words of a new file; it is sparse."""

MUCH = 8
"""Free space goes back to the disk when there is more of it than this part of what is in use."""

PAGE = mmap.PAGESIZE // 8

GENERATION, TAIL, LENGTH = 0, 1, 2
"""Words of the header that others map too: changes so far, the word behind the last extent, the words of the file."""


def mapped(path: Path, words: int) -> Words:
    """A file as an array of words that all processes share."""
    with path.open("r+b") as file:
        area = mmap.mmap(file.fileno(), words * 8)
    return np.frombuffer(area, dtype=np.int64)


def identity(path: Path) -> tuple[int, int]:
    """What tells a file from another of the same name; (0, 0) where there is none."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return 0, 0
    return status.st_dev, status.st_ino


def sized(path: Path, words: int) -> None:
    """Make a file of zeros at least so many words long, without taking space for them."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if os.fstat(descriptor).st_size < words * 8:
            os.ftruncate(descriptor, words * 8)
    except OSError as error:
        raise _no_space(path, words * 8, error) from error
    finally:
        os.close(descriptor)


def reserve(path: Path, ranges: list[tuple[int, int]]) -> None:
    """Take space on the disk for ranges of (first word, words) of a file."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        for start, words in ranges:
            os.posix_fallocate(descriptor, start * 8, words * 8)
    except OSError as error:
        raise _no_space(path, sum(words for _, words in ranges) * 8, error) from error
    finally:
        os.close(descriptor)


def made(path: Path, words: int) -> bool:
    """Make a file of zeros of just so many words, with its space taken, unless it is there; whether it was made."""
    if path.exists() and path.stat().st_size == words * 8:
        return False
    path.unlink(missing_ok=True)
    fresh = path.with_name(path.name + ".new")
    fresh.unlink(missing_ok=True)
    try:
        sized(fresh, words)
        reserve(fresh, [(0, words)])
        fresh.rename(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
    return True


def merged(starts: Words, sizes: Words) -> tuple[Words, Words]:
    """Extents as the starts and sizes of ranges in order, neighbours joined."""
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], starts[order] + sizes[order]
    apart = starts[1:] != ends[:-1]
    some = np.full(min(1, starts.size), True)
    first, last = np.append(some, apart), np.append(apart, some)
    return starts[first], ends[last] - starts[first]


def _no_space(path: Path, bytes_: int, error: OSError) -> Exception:
    if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return error
    return NoSpace(
        f"{path} needs {bytes_} more bytes and gets none ({error.strerror}); "
        "free space there, or give the executors another local directory"
    )


class Extents:
    """The extents of one file. Who owns which is written elsewhere; what nobody owns is free.

    `header` is shared with other processes. `owned()` says which (starts, sizes) are in use; it is asked again
    whenever another process has changed something.
    """

    def __init__(self, path: Path, header: Words) -> None:
        self.path, self.header = path, header
        self.words: Words = np.empty(0, np.int64)
        self.octets: Octets = np.empty(0, np.uint8)
        self._known = -1
        self._starts, self._sizes = np.empty(0, np.int64), np.empty(0, np.int64)
        self._given_back = 0
        self._area: mmap.mmap | None = None
        self.file = identity(path)

    @property
    def free_words(self) -> int:
        """The words below the last extent that nobody owns."""
        return int(self._sizes.sum())

    def refresh(self, owned: tuple[Words, Words] | None) -> None:
        """Map the file if it has grown, and learn what is free from what is owned."""
        length = int(self.header[LENGTH])
        if self.words.size != length:
            self._map(length)
        if owned is not None:
            starts, sizes = owned
            order = np.argsort(starts)
            starts, ends = starts[order], starts[order] + sizes[order]
            self._starts = np.concatenate([np.zeros(1, np.int64), ends])
            self._sizes = np.append(starts, self.header[TAIL]) - self._starts
            keep = self._sizes > 0
            self._starts, self._sizes = self._starts[keep], self._sizes[keep]
            self._known, self._given_back = int(self.header[GENERATION]), 0

    @property
    def is_current(self) -> bool:
        """Whether no other process has changed the extents since this one looked."""
        return self._known == int(self.header[GENERATION])

    def take(self, sizes: Words) -> Words:
        """Return the starts of new extents, whose space is reserved; nothing has changed where that fails."""
        starts, sizes_left, begins = np.empty(sizes.size, np.int64), self._sizes.copy(), self._starts.copy()
        tail = int(self.header[TAIL])
        behind = int(fit(begins, sizes_left, sizes, tail, starts))
        length = max(int(self.header[LENGTH]), FIRST_LENGTH)
        while length < behind:
            length *= 4
        sized(self.path, length)
        reused = starts < tail
        ranges = [each.tolist() for each in merged(starts[reused], sizes[reused])]
        reserve(self.path, [*zip(*ranges, strict=True), *([(tail, behind - tail)] if behind > tail else [])])
        self.header[LENGTH] = length
        self.header[TAIL] = behind
        keep = sizes_left > 0
        self._starts, self._sizes = begins[keep], sizes_left[keep]
        self._given_back = max(0, self._given_back - int(sizes[reused].sum()))
        self._changed()
        if self.words.size != length:
            self._map(length)
        return starts

    def free(self, starts: Words, sizes: Words, for_good: bool = False) -> None:
        """Give extents back; to the disk too if `for_good`, or where much has come together."""
        starts, sizes = starts[sizes > 0], sizes[sizes > 0]
        self._starts, self._sizes = merged(np.append(self._starts, starts), np.append(self._sizes, sizes))
        tail = int(self.header[TAIL])
        if self._starts.size and self._starts[-1] + self._sizes[-1] == tail:
            self._discard(int(self._starts[-1]), tail)
            self.header[TAIL] = self._starts[-1]
            self._starts, self._sizes = self._starts[:-1].copy(), self._sizes[:-1].copy()
        self._changed()
        free = self.free_words
        self._given_back = min(self._given_back, free)
        if (free - self._given_back) * MUCH > int(self.header[TAIL]) - free:
            for start, size in zip(self._starts.tolist(), self._sizes.tolist(), strict=True):
                self._discard(start, start + size)
            self._given_back = free
        elif for_good:
            for k in np.unique(np.searchsorted(self._starts, starts, side="right") - 1).tolist():
                if k >= 0:
                    self._discard(int(self._starts[k]), int(self._starts[k] + self._sizes[k]))

    def clear(self) -> None:
        """Give everything back."""
        self.header[TAIL] = 0
        self._starts, self._sizes, self._given_back = np.empty(0, np.int64), np.empty(0, np.int64), 0
        self._changed()
        if self._area is not None:
            self._discard(0, self.words.size)

    def close(self) -> None:
        """Let go of the file."""
        self.words, self.octets, self._area = np.empty(0, np.int64), np.empty(0, np.uint8), None
        self._known = -1

    def _map(self, length: int) -> None:
        if not length:
            return self.close()
        with self.path.open("r+b") as file:
            self._area = mmap.mmap(file.fileno(), length * 8)
        self.file = identity(self.path)
        self.words = np.frombuffer(self._area, dtype=np.int64)
        self.octets = np.frombuffer(self._area, dtype=np.uint8)
        return None

    def _changed(self) -> None:
        self.header[GENERATION] += 1
        self._known = int(self.header[GENERATION])

    def _discard(self, start: int, stop: int) -> None:
        # Whole pages only: the rest of a page belongs to a neighbour.
        first, last = -(-start // PAGE), stop // PAGE
        if self._area is None or first >= last:
            return
        try:
            self._area.madvise(mmap.MADV_REMOVE, first * PAGE * 8, (last - first) * PAGE * 8)
        except OSError as error:
            # Some file systems have no holes: the space is used again, but not given back.
            if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
                raise
