"""Where a Python process of Spark runs: which executor it serves, and where that executor may keep files.

Python's task context does not tell; the executor is the JVM above this process, known by host, process id and the time
it started, so that a new executor with a used-up id is never taken for the old one.
"""

from __future__ import annotations

import functools
import os
import shutil
import socket
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path


def _parent_and_start(pid: int) -> tuple[str, int, str]:
    """A process' name, its parent, and when it started."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        asked = ["ps", "-o", "ppid=,lstart=,comm=", "-p", str(pid)]
        told = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()
        return Path(told[-1]).name, int(told[0]), "-".join(told[1:-1])
    name = text[text.index("(") + 1 : text.rindex(")")]
    fields = text[text.rindex(")") + 2 :].split()
    return name, int(fields[1]), fields[19]


@functools.cache
def here() -> str:
    """The place this process serves: host, process id and start time of the executor's JVM."""
    pid = os.getppid()
    for _ in range(4):
        name, parent, started = _parent_and_start(pid)
        if name == "java":
            return f"{socket.gethostname()}:{pid}:{started}"
        pid = parent
    raise RuntimeError(f"no JVM is above process {os.getpid()}: this runs only in the Python workers of Spark")


def is_running(place: str) -> bool:
    """Whether the JVM of a place of this host still runs."""
    host, pid, started = place.split(":")
    if host != socket.gethostname():
        return True
    try:
        return _parent_and_start(int(pid))[2] == started
    except (OSError, subprocess.CalledProcessError):
        return False


PREFIX = "meander-"
OWNER = "owner"


def home(name: str) -> Path:
    """A worker's folder in the executor's local directory, made if need be and marked with its owner."""
    folder = directory(name)
    folder.mkdir(parents=True, exist_ok=True)
    mark = folder / OWNER
    if not mark.exists():
        mark.write_text(here())
    return folder


def sweep() -> None:
    """Remove what executors left behind that are gone; Spark does so itself only where it gave them a directory."""
    for mark in directory(PREFIX).parent.glob(f"{PREFIX}*/{OWNER}"):
        with suppress(OSError):
            if not is_running(mark.read_text()):
                shutil.rmtree(mark.parent, ignore_errors=True)


def directory(name: str) -> Path:
    """The folder of that name in the executor's local directory."""
    for variable in ("SPARK_EXECUTOR_DIRS", "LOCAL_DIRS", "SPARK_LOCAL_DIRS"):
        listed = os.environ.get(variable, "").replace(",", os.pathsep).split(os.pathsep)
        if listed[0]:
            return Path(listed[0]) / name
    return Path(tempfile.gettempdir()) / name
