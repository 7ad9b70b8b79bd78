"""Memory of every process of a Spark application over time, by role, from /proc. For `./dev bench migrate`.

    driver jvm, driver python, executor N jvm, executor N python

An executor's Python is its daemon and the workers the daemon has forked. Meander keeps state in memory-mapped files, so
resident pages of files count: RSS is anonymous, file and shared pages together. Forked processes share pages, and the
sum of their RSS counts those once for each, so beside it stands the proportional size (PSS), which counts them once.
To find it the kernel walks all pages, so it is asked for Python's processes only; a JVM shares next to nothing, and its
RSS stands for it.
"""

from __future__ import annotations

import re
import threading
import time
from contextlib import suppress
from pathlib import Path

from meander_lab.benchmarks.migrate_measure import MemorySample

EVERY_S = 0.5


def processes() -> dict[int, tuple[int, str]]:
    """Every process that runs: its parent and its command line."""
    table = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                stat = (entry / "stat").read_text()
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                state, parent = stat[stat.rindex(")") + 2 :].split()[:2]
                if state != "Z":
                    table[int(entry.name)] = (int(parent), command)
    return table


def below(pid: int, every: dict[int, tuple[int, str]]) -> dict[int, tuple[int, str]]:
    """The processes that a process has started, and those that they have."""
    descendants: dict[int, tuple[int, str]] = {}
    wanted = {pid}
    while wanted:
        wanted = {each for each, (parent, _) in every.items() if parent in wanted and each not in descendants}
        descendants.update({each: every[each] for each in wanted})
    return descendants


def roles(driver: int, every: dict[int, tuple[int, str]]) -> dict[int, str]:
    """The role of each process of the application whose driver this is; shells and launchers have none."""
    mine = below(driver, every)
    names = {driver: "driver python"} if driver in every else {}
    for pid, (_, command) in mine.items():
        executor = re.search(r"CoarseGrainedExecutorBackend.* --executor-id (\S+)", command)
        if executor:
            names[pid] = f"executor {executor[1]} jvm"
        elif "org.apache.spark.deploy.SparkSubmit" in command and Path(command.split(" ", 1)[0]).name == "java":
            names[pid] = "driver jvm"
    for pid, (parent, command) in mine.items():
        if pid in names or "python" not in command:
            continue
        while parent in mine and parent not in names:
            parent = mine[parent][0]
        if parent in names and parent != driver:
            names[pid] = f"{names[parent].rpartition(' ')[0]} python"
    return names


def rss_bytes(pid: int) -> int:
    """The resident pages of a process: its own, of files, and shared ones."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(("RssAnon", "RssFile", "RssShmem")))


def pss_bytes(pid: int) -> int:
    """The same with every page shared out over those who share it."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))


def sample(driver: int) -> list[MemorySample]:
    """The memory of every role now."""
    now = time.time()
    sums: dict[str, tuple[int, int]] = {}
    for pid, role in roles(driver, processes()).items():
        with suppress(OSError):
            rss = rss_bytes(pid)
            pss = pss_bytes(pid) if role.endswith("python") else rss
            before = sums.get(role, (0, 0))
            sums[role] = (before[0] + rss, before[1] + pss)
    return [MemorySample(now, role, rss, pss) for role, (rss, pss) in sorted(sums.items())]


class MemoryWatch:
    """Samples the processes of an application, from a process that is none of them, until it is left."""

    def __init__(self, driver: int) -> None:
        self.samples: list[MemorySample] = []
        self._driver = driver
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory", daemon=True)

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(EVERY_S):
            self.samples += sample(self._driver)
