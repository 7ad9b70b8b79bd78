"""Space in one memory-mapped file, in extents that can be freed.

The file is sparse and longer than its used part, so that it is mapped again only after it has grown fourfold. Disk
space is reserved before any write: a full disk raises an error, not a SIGBUS in a kernel.
"""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from meander.errors import NoSpace
from meander.kernel import kernel

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
"""Words of the shared header: changes so far, the word behind the last extent, the words of the file."""


def mapped(path: Path, words: int) -> Words:
    """A file as an array of words that all processes share."""
    with path.open("r+b") as file:
        area = mmap.mmap(file.fileno(), words * 8)
    return np.frombuffer(area, dtype=np.int64)


def identity(path: Path) -> tuple[int, int]:
    """Device and inode of a file, which differ for a new file of the same name; (0, 0) where there is none."""
    try:
        status = os.stat(path)  # noqa: PTH116 (called for every file in every task)
    except FileNotFoundError:
        return 0, 0
    return status.st_dev, status.st_ino


def sized(path: Path, words: int) -> None:
    """Make a file of zeros at least this many words long, without reserving space."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if os.fstat(descriptor).st_size < words * 8:
            os.ftruncate(descriptor, words * 8)
    except OSError as error:
        raise _no_space(path, words * 8, error) from error
    finally:
        os.close(descriptor)


def reserve(path: Path, ranges: list[tuple[int, int]]) -> None:
    """Reserve disk space for ranges of (first word, words) of a file."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        for start, words in ranges:
            os.posix_fallocate(descriptor, start * 8, words * 8)
    except OSError as error:
        raise _no_space(path, sum(words for _, words in ranges) * 8, error) from error
    finally:
        os.close(descriptor)


def create(path: Path, words: int) -> None:
    """Create a file of exactly this many zero words, with its space reserved, unless there is one."""
    if path.exists() and path.stat().st_size == words * 8:
        return
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
    """The extents of one file. The caller records which are owned; all other space is free.

    `header` is shared with other processes. The caller passes the owned (starts, sizes) to `refresh` whenever
    another process has changed them.
    """

    def __init__(self, path: Path, header: Words) -> None:
        self.path, self.header = path, header
        self.words: Words = np.empty(0, np.int64)
        self.octets: Octets = np.empty(0, np.uint8)
        self._known = -1
        self._starts, self._sizes = np.empty(0, np.int64), np.empty(0, np.int64)
        self._discarded = 0
        self._area: mmap.mmap | None = None
        self.file = identity(path)

    def refresh(self, owned: tuple[Words, Words] | None) -> None:
        """Map the file if it has grown, and derive the free extents from the owned ones."""
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
            self._known, self._discarded = int(self.header[GENERATION]), 0

    @property
    def is_current(self) -> bool:
        """Whether no other process has changed the extents since the last refresh."""
        return self._known == int(self.header[GENERATION])

    def take(self, sizes: Words) -> Words:
        """Allocate extents, reserve their space and return their starts; a failure changes nothing."""
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
        self._discarded = max(0, self._discarded - int(sizes[reused].sum()))
        self._changed()
        if self.words.size != length:
            self._map(length)
        return starts

    def free(self, starts: Words, sizes: Words, for_good: bool = False) -> None:
        """Free extents; their space goes back to the disk if `for_good`, or once much is free."""
        starts, sizes = starts[sizes > 0], sizes[sizes > 0]
        self._starts, self._sizes = merged(np.append(self._starts, starts), np.append(self._sizes, sizes))
        tail = int(self.header[TAIL])
        if self._starts.size and self._starts[-1] + self._sizes[-1] == tail:
            self._discard(int(self._starts[-1]), tail)
            self.header[TAIL] = self._starts[-1]
            self._starts, self._sizes = self._starts[:-1].copy(), self._sizes[:-1].copy()
        self._changed()
        free = int(self._sizes.sum())
        self._discarded = min(self._discarded, free)
        if (free - self._discarded) * MUCH > int(self.header[TAIL]) - free:
            for start, size in zip(self._starts.tolist(), self._sizes.tolist(), strict=True):
                self._discard(start, start + size)
            self._discarded = free
        elif for_good:
            for k in np.unique(np.searchsorted(self._starts, starts, side="right") - 1).tolist():
                if k >= 0:
                    self._discard(int(self._starts[k]), int(self._starts[k] + self._sizes[k]))

    def clear(self) -> None:
        """Free all extents."""
        self.header[TAIL] = 0
        self._starts, self._sizes, self._discarded = np.empty(0, np.int64), np.empty(0, np.int64), 0
        self._changed()
        if self._area is not None:
            self._discard(0, self.words.size)

    def close(self) -> None:
        """Unmap the file."""
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
            # Some file systems have no holes: the space is reused, but does not return to the disk.
            if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
                raise


@kernel
def fit(begins: Words, left: Words, wanted: Words, tail: int, starts: Words) -> int:
    """Place each wanted size in the first free extent it fits after the last one, or behind the tail.

    `begins` and `left`, the free extents, are cut down. Returns the new tail.
    """
    rover, failed = 0, np.int64(1) << 62
    for i in range(wanted.size):
        size = wanted[i]
        placed = False
        # What was too large for every extent once is too large still.
        if size < failed:
            for k in range(begins.size):
                j = rover + k
                if j >= begins.size:
                    j -= begins.size
                if left[j] >= size:
                    starts[i] = begins[j]
                    begins[j] += size
                    left[j] -= size
                    rover, placed = j, True
                    break
            if not placed:
                failed = size
        if not placed:
            starts[i] = tail
            tail += size
    return tail
