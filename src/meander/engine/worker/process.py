"""Which executor a Python process serves, where that may keep files, and loading everything before its first task.

Python's task context of Spark does not tell; the executor is the JVM above this process, known by host, process id and
the time it started, so that a new executor with a used-up id is never taken for the old one.
"""

from __future__ import annotations

import functools
import os
import shutil
import socket
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PREFIX = "meander-"
OWNER = "owner"


@dataclass(frozen=True)
class Host:
    """What a task has to know of the process it runs in.

    Args:
        identity: the executor: host, process id and start time, with colons between them.
        folder: where it may keep files.
    """

    identity: str
    folder: Path

    def home(self, name: str) -> Path:
        """A worker's folder, made if need be and marked with its owner."""
        home = self.folder / name
        mark = home / OWNER
        if not mark.exists():
            home.mkdir(0o700, parents=True, exist_ok=True)
            mark.touch(0o600)
            mark.write_text(self.identity)
        return home

    def sweep(self) -> None:
        """Remove what executors left behind that are gone; Spark does so only where it gave them a directory."""
        for mark in self.folder.glob(f"{PREFIX}*/{OWNER}"):
            with suppress(OSError):
                if not is_running(mark.read_text()):
                    shutil.rmtree(mark.parent, ignore_errors=True)


@functools.cache
def spark_host() -> Host:
    """The executor of Spark that this Python process serves."""
    return Host(process_identity(), local_folder())


def process_identity() -> str:
    """Host, process id and start time of the JVM above this process."""
    pid = os.getppid()
    for _ in range(4):
        name, parent, started = _name_parent_start(pid)
        if name == "java":
            return f"{socket.gethostname()}:{pid}:{started}"
        pid = parent
    raise RuntimeError(f"no JVM is above process {os.getpid()}: this runs only in the Python workers of Spark")


def is_running(identity: str) -> bool:
    """Whether the JVM of an identity of this host still runs."""
    host, pid, started = identity.split(":")
    if host != socket.gethostname():
        return True
    try:
        return _name_parent_start(int(pid))[2] == started
    except (OSError, subprocess.CalledProcessError):
        return False


def local_folder() -> Path:
    """The executor's local directory."""
    for variable in ("SPARK_EXECUTOR_DIRS", "LOCAL_DIRS", "SPARK_LOCAL_DIRS"):
        folders = os.environ.get(variable, "").replace(",", os.pathsep).split(os.pathsep)
        if folders[0]:
            return Path(folders[0])
    return Path(tempfile.gettempdir())


def _name_parent_start(pid: int) -> tuple[str, int, str]:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        command = ["ps", "-o", "ppid=,lstart=,comm=", "-p", str(pid)]
        words = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        return Path(words[-1]).name, int(words[0]), "-".join(words[1:-1])
    name = text[text.index("(") + 1 : text.rindex(")")]
    fields = text[text.rindex(")") + 2 :].split()
    return name, int(fields[1]), fields[19]


@functools.cache
def warm() -> None:
    """Take a tiny batch through all that a worker does, with each kind of key, in a folder that is thrown away."""
    import numpy as np
    import pyarrow as pa

    from meander.operators.count import Count
    from meander.operators.operator import Now
    from meander.state.holding import Holding
    from meander.store import statefile

    with tempfile.TemporaryDirectory(prefix="meander-warm-") as folder:
        for name, keys in (("words", pa.array([1, 2, 1], pa.int64())), ("bytes", pa.array(["a", "b", "a"]))):
            rows = pa.table({"key": keys})
            operator = Count(rows.schema, ["key"])
            holding = Holding.open(Path(folder) / name, operator.tables, 4)
            holding.install(np.arange(4), [], -1)
            for version in range(2):
                tables = holding.begin()
                operator.run(rows, operator.key.encode([rows["key"]]), tables, Now(version))
                deltas = {each: table.delta() for each, table in tables.items()}
                statefile.read(statefile.write(deltas, 4).data)
                holding.advance(version, deltas)
            holding.extract(np.arange(4))
            holding.close()
