"""Executors in namespaces of their own: a `java` that Spark starts them with, and the ways to cut one off.

Spark takes `java` from JAVA_HOME. The one made here starts an executor in a mount namespace, or in a network namespace
at a bridge, and everything else as it is. Root may do that, and nobody else.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

MOUNT = 'exec unshare --mount --propagation slave "$java" "$@"'
NETWORK = """
ns=mx$$
echo $ns >>"$networks"
own=$subnet.$(($(grep -nx $ns "$networks" | cut -d: -f1) + 1))
ip netns add $ns
ip link add ${ns}h type veth peer name ${ns}e netns $ns
ip link set ${ns}h master $bridge up
ip -n $ns addr add $own/24 dev ${ns}e
ip -n $ns link set ${ns}e up
ip -n $ns link set lo up
args=()
while (($#)); do
    args+=("$1")
    [[ $1 == --hostname ]] && { args+=($own); shift; }
    shift
done
exec ip netns exec $ns "$java" "${args[@]}"
"""


NETWORKS = "networks"
"""The file that names the network namespaces of a driver's executors."""


@dataclass(frozen=True)
class Bridge:
    """What a driver and its executors talk over: executors reach each other too, and this machine forwards nothing."""

    name: str
    subnet: str

    @classmethod
    def of(cls, folder: Path) -> Bridge:
        """The one of the driver that works in this folder."""
        number = zlib.crc32(bytes(folder))
        return cls(f"mx{number:08x}", f"10.{number % 250 + 1}.{number // 250 % 250 + 1}")

    @property
    def driver(self) -> str:
        """The driver's own address."""
        return f"{self.subnet}.1"

    def add(self) -> None:
        """Set it up."""
        _ip("link", "add", self.name, "type", "bridge")
        _ip("addr", "add", f"{self.driver}/24", "dev", self.name)
        _ip("link", "set", self.name, "up")

    def remove(self, folder: Path) -> None:
        """Remove it, and the namespaces of the executors at it; no process is in one any more."""
        path = folder / NETWORKS
        for name in path.read_text().split() if path.exists() else []:
            subprocess.run(["ip", "netns", "del", name], check=False)
        subprocess.run(["ip", "link", "del", self.name], check=False)


def java_home(folder: Path, way: str) -> Path:
    """A JAVA_HOME whose `java` starts executors in this way."""
    java = Path(os.environ["JAVA_HOME"]) / "bin" / "java"
    script = folder / "java" / "bin" / "java"
    script.parent.mkdir(parents=True)
    bridge = Bridge.of(folder)
    names = f"java={java} networks={folder / NETWORKS} bridge={bridge.name} subnet={bridge.subnet}"
    is_other = '[[ "$*" != *CoarseGrainedExecutorBackend* ]]'
    script.write_text(f'#!/usr/bin/env bash\n{names}\n{is_other} && exec "$java" "$@"\n{way}\n')
    script.chmod(0o755)
    return folder / "java"


@cache
def why_not(*commands: str) -> str | None:
    """Why there can be no such namespaces here; None if there can. Root may be kept from it too: it is tried."""
    if os.geteuid() != 0:
        return "namespaces take root"
    missing = [each for each in commands if shutil.which(each) is None]
    if missing:
        return f"there is no command {missing[0]} here"
    try:
        _try_network() if "ip" in commands else _checked("unshare", "--mount", "--propagation", "slave", "true")
    except (OSError, subprocess.SubprocessError) as problem:
        said = getattr(problem, "stderr", None) or str(problem)
        return f"no namespaces can be made here: {said.strip().splitlines()[-1]}"
    return None


def _try_network() -> None:
    """Make what an executor gets, and reach the driver's address from inside."""
    folder = Path(f"/{os.getpid()}")
    bridge, name = Bridge.of(folder), f"mx{os.getpid()}"
    try:
        bridge.add()
        _checked("ip", "netns", "add", name)
        _checked("ip", "link", "add", f"{name}h", "type", "veth", "peer", "name", f"{name}e", "netns", name)
        _checked("ip", "link", "set", f"{name}h", "master", bridge.name, "up")
        _checked("ip", "-n", name, "addr", "add", f"{bridge.subnet}.2/24", "dev", f"{name}e")
        _checked("ip", "-n", name, "link", "set", f"{name}e", "up")
        with socket.create_server((bridge.driver, 0)) as server:
            reach = f"import socket; socket.create_connection({server.getsockname()!r}, timeout=10)"
            _checked("ip", "netns", "exec", name, sys.executable, "-c", reach)
    finally:
        for words in (["netns", "del", name], ["link", "del", bridge.name]):
            subprocess.run(["ip", *words], check=False, capture_output=True)


def hide(pid: int, folder: Path) -> None:
    """Let a process see an empty folder, in which it can write nothing."""
    _inside(pid, "mount", "-t", "tmpfs", "-o", "ro", "meander-test", str(folder))


def show(pid: int, folder: Path) -> None:
    """Let it see the folder again."""
    _inside(pid, "umount", str(folder))


def _inside(pid: int, *command: str) -> None:
    subprocess.run(["nsenter", "--mount", "--target", str(pid), *command], check=True)


def set_link(pid: int, state: str) -> None:
    """Cut the network between an executor and everybody else (down), or mend it (up)."""
    name = subprocess.run(["ip", "netns", "identify", str(pid)], check=True, capture_output=True, text=True).stdout
    _ip("link", "set", f"{name.strip()}h", state)


def _ip(*words: str) -> None:
    _checked("ip", *words)


def _checked(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
