"""Executors in namespaces of their own: a `java` that Spark starts them with, and the ways to cut one off.

Spark takes `java` from JAVA_HOME. The one made here starts an executor in a mount namespace, or in a network namespace
behind a pair of virtual devices, and everything else as it is. Root may do that, and nobody else.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

MOUNT = 'exec unshare --mount --propagation slave "$java" "$@"'
NETWORK = """
n=$(($$ % 250 + 1)); m=$(($$ / 250 % 250 + 1)); ns=mx$$
echo $ns >>"$networks"
ip netns add $ns
ip link add ${ns}h type veth peer name ${ns}e netns $ns
ip addr add 10.$m.$n.1/30 dev ${ns}h
ip link set ${ns}h up
ip -n $ns addr add 10.$m.$n.2/30 dev ${ns}e
ip -n $ns link set ${ns}e up
ip -n $ns link set lo up
ip -n $ns route add default via 10.$m.$n.1
args=()
while (($#)); do
    args+=("$1")
    [[ $1 == --hostname ]] && { args+=(10.$m.$n.2); shift; }
    shift
done
exec ip netns exec $ns "$java" "${args[@]}"
"""


NETWORKS = "networks"
"""The file that names the network namespaces of a driver's executors."""


def java_home(folder: Path, way: str) -> Path:
    """A JAVA_HOME whose `java` starts executors in this way."""
    java = Path(os.environ["JAVA_HOME"]) / "bin" / "java"
    script = folder / "java" / "bin" / "java"
    script.parent.mkdir(parents=True)
    is_other = '[[ "$*" != *CoarseGrainedExecutorBackend* ]]'
    script.write_text(
        f'#!/usr/bin/env bash\njava={java} networks={folder / NETWORKS}\n{is_other} && exec "$java" "$@"\n{way}\n'
    )
    script.chmod(0o755)
    return folder / "java"


def why_not(*commands: str) -> str | None:
    """Why there can be no such namespaces here; None if there can."""
    if os.geteuid() != 0:
        return "namespaces take root"
    missing = [each for each in commands if shutil.which(each) is None]
    return f"there is no command {missing[0]} here" if missing else None


def own_address() -> str:
    """An address of this machine that is not its loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect(("192.0.2.1", 9))  # sends nothing
        return str(probe.getsockname()[0])
    return "127.0.0.1"


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
    subprocess.run(["ip", "link", "set", f"{name.strip()}h", state], check=True)


def remove_networks(folder: Path) -> None:
    """Remove the network namespaces of the executors that were started from here; no process is in one any more."""
    path = folder / NETWORKS
    for name in path.read_text().split() if path.exists() else []:
        subprocess.run(["ip", "netns", "del", name], check=False)
