"""Whether this version's kernels have been compiled on this machine, and a process beside that compiles them.

Knows nothing of Numba, which takes half a second to import: a mark in the folder of the compiled code says so. A wrong
answer costs time and nothing else.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import logging
import os
import platform
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

PACKAGE = Path(__file__).parent
DECORATOR = "\n@kernel\n"

logger = logging.getLogger("meander")


def is_warm() -> bool:
    """Whether every kernel of this version has been compiled for this machine."""
    return any((folder / mark()).exists() for folder in _folders())


def mark_warm() -> None:
    """Remember that every kernel has been compiled."""
    for folder in _folders():
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / mark()).touch()
            return


def warm_beside() -> None:
    """Have another process compile every kernel, where that has not been done; it outlives this one if need be."""
    if _beside or is_warm():
        return
    with suppress(OSError):
        _beside.append(
            subprocess.Popen(
                [sys.executable, "-m", "meander", "warm", "--processes", "1"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        )
        logger.info("compiling all inner loops in a process beside, once for this machine; a first batch may wait")


_beside: list[subprocess.Popen[bytes]] = []


def _folders() -> list[Path]:
    """Where Numba may keep code: the place that the user names, or the package's own and else the user's."""
    named = os.environ.get("NUMBA_CACHE_DIR")
    if named:
        return [Path(named)]
    users = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return [PACKAGE / "__pycache__", Path(users) / "meander"]


@functools.cache
def mark() -> str:
    """A name that is another one for other kernels, another Numba, another Python and another kind of processor."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text()
        if DECORATOR in text:
            digest.update(text.encode())
    of_machine = (importlib.metadata.version("numba"), platform.python_version(), _processor())
    digest.update("\n".join(of_machine).encode())
    return f"kernels-{digest.hexdigest()[:16]}.warm"


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line
    return platform.machine()
