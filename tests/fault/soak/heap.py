"""The live heap of a JVM: asked of it as `jcmd PID GC.run` and `GC.heap_info` do, which a JRE has not.

The heap that is touched tells little: garbage fills it. After a collection what grows is a leak. It also keeps resident
memory from creeping up with garbage that nobody has collected yet.
"""

from __future__ import annotations

import re
import signal
import socket
from contextlib import suppress
from pathlib import Path

from streams import kill, wait_until

ATTACH_S, ANSWER_S = 5.0, 20.0
_USED = re.compile(r"(?:generation|heap)\s+total \d+K, used (\d+)K")


def live_heap_mib(pid: int) -> float | None:
    """MiB of heap that a JVM uses after a collection; None if it does not answer. It must have started before."""
    try:
        _ask(pid, "GC.run")
        used = _USED.findall(_ask(pid, "GC.heap_info"))
    except (OSError, AssertionError):
        return None
    return sum(map(int, used)) / 1024 if used else None


def _ask(pid: int, command: str) -> str:
    path = Path(f"/tmp/.java_pid{pid}")  # where HotSpot has it, whatever TMPDIR is
    if not path.exists():
        _open_door(pid, path)
    with socket.socket(socket.AF_UNIX) as door:
        door.settimeout(ANSWER_S)
        door.connect(str(path))
        door.sendall(b"\0".join([b"1", b"jcmd", command.encode(), b"", b"", b""]))
        with door.makefile("rb") as answer:
            return answer.read().decode(errors="replace")


def _open_door(pid: int, path: Path) -> None:
    """Have the JVM listen: it looks for this file when it gets the signal."""
    wish = Path(f"/proc/{pid}/cwd/.attach_pid{pid}")
    wish.touch()
    try:
        kill(pid, signal.SIGQUIT)
        wait_until(path.exists, "a JVM to listen", ATTACH_S)
    finally:
        with suppress(OSError):
            wish.unlink()
