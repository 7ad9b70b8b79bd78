"""Numba's machine code on disk: compiled by one process while the others wait for it, and loaded by all.

Numba alone lets every process that finds no code compile it, all at once where several start together. It also keeps a
user's code apart from that of whoever installed the package, where the package's folder is not the user's.
Imports Numba, so it is itself imported when the first kernel is called, not before.
"""

from __future__ import annotations

import fcntl
import inspect
import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numba
from numba.core.caching import FunctionCache, IndexDataCacheFile

OPTIONS = {
    # Nothing is called through C, and without a check of every divisor there is less to compile.
    "no_cfunc_wrapper": True,
    "error_model": "numpy",
}

PATIENCE_S = 1.0
"""So long a process compiles before it says so."""

logger = logging.getLogger("meander.kernels")


@dataclass(frozen=True)
class Variant:
    """A kernel for the types of its arguments, as this process has got it.

    Args:
        kernel: module and name.
        types: those of its arguments.
        was_compiled: by this process; otherwise it was loaded.
        cpu_s: what that took of this thread's time, without the kernels it calls.
    """

    kernel: str
    types: str
    was_compiled: bool
    cpu_s: float


variants: list[Variant] = []
"""What this process has got so far, in order."""


def dispatcher(function: Callable[..., Any]) -> Any:
    """Numba's form of a function: it compiles when it is first called, or loads what was compiled before."""
    compiled: Any = numba.njit(**OPTIONS)(function)  # type: ignore[call-overload]
    # Without a place to write, neither the package's folder nor the user's cache, every process compiles for itself.
    with suppress(RuntimeError):
        compiled._cache = KernelCache(function)
    return compiled


class KernelCache(FunctionCache):
    """The code of one kernel on disk. Whoever finds none holds the kernel's lock until it has written it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._function = function
        self._lock: IO[str] | None = None
        folder = Path(inspect.getfile(function)).parent / "__pycache__"
        stamp, name = self._impl.locator.get_source_stamp(), self._impl.filename_base
        # What was compiled at installation serves everybody, also who may not write there.
        is_elsewhere = not os.environ.get("NUMBA_CACHE_DIR") and Path(self.cache_path) != folder
        self._installed = IndexDataCacheFile(str(folder), name, stamp) if is_elsewhere else None
        self._place = Path(self.cache_path) / f"{name}.lock"

    def load_overload(self, signature: Any, target: Any) -> Any:
        """The code for a signature, or None: then the caller compiles it, and `save_overload` comes next."""
        self._unlock()
        _watch.begin()
        code = self._load(signature, target)
        if code is None:
            _watch.speak()
            self._lock = _locked(self._place)
            code = self._load(signature, target)  # by who held the lock before
        if code is not None:
            self._unlock()
            self._note(signature, was_compiled=False)
        return code

    def save_overload(self, signature: Any, code: Any) -> None:
        """Write what was compiled and let the others have it."""
        try:
            super().save_overload(signature, code)
        finally:
            self._unlock()
            self._note(signature, was_compiled=True)

    def _load(self, signature: Any, target: Any) -> Any:
        code = super().load_overload(signature, target)
        if code is None and self._installed is not None:
            with suppress(OSError):
                data = self._installed.load(self._index_key(signature, target.codegen()))
                code = None if data is None else self._impl.rebuild(target, data)
        return code

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _note(self, signature: Any, was_compiled: bool) -> None:
        cpu_s = _watch.end(was_compiled)
        types = ", ".join(map(str, getattr(signature, "args", signature)))
        name = f"{self._function.__module__}.{self._function.__qualname__}"
        variants.append(Variant(name, types, was_compiled, cpu_s))


class _Watch:
    """How long compiling takes; Numba compiles in one thread at a time, a kernel within the one that calls it."""

    def __init__(self) -> None:
        self._open: list[tuple[float, float]] = []
        self._inner = [0.0]
        self._spent_s = 0.0
        self._has_spoken = False

    def begin(self) -> None:
        self._open.append((time.thread_time(), time.perf_counter()))
        self._inner.append(0.0)

    def end(self, was_compiled: bool) -> float:
        cpu, wall = self._open.pop()
        total = time.thread_time() - cpu
        own = total - self._inner.pop()
        self._inner[-1] += total
        if not self._open and was_compiled:
            self._spent_s += time.perf_counter() - wall
        return own

    def speak(self) -> None:
        """Say once that this process compiles, when that begins to last."""
        spent_s = self._spent_s + time.perf_counter() - self._open[0][1]
        if spent_s > PATIENCE_S and not self._has_spoken:
            self._has_spoken = True
            logger.info("compiling inner loops, once for this machine and version; 'meander warm' does it beforehand")


_watch = _Watch()


def _locked(path: Path) -> IO[str] | None:
    """The file, once no other process holds it; None where files cannot be locked: then both compile."""
    try:
        file = path.open("w")
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError:
        return None
    return file
