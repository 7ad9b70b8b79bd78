"""A standalone cluster of Flink on this machine's loopback, and its REST interface. For `./dev bench flink`.

One process manages jobs, and so many run tasks, all of them children of the benchmark. They die with it: at the end of
the `with` block, on an error, on Ctrl-C and on SIGTERM, and on Linux the kernel ends them if the benchmark is killed.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any

from meander_lab.benchmarks.flink_install import OPENED, FlinkHome

LOOPBACK = "127.0.0.1"
MANAGER = "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint"
WORKER = "org.apache.flink.runtime.taskexecutor.TaskManagerRunner"
RESOURCES = "org.apache.flink.runtime.util.bash.BashJavaUtils"
RESULT = "BASH_JAVA_UTILS_EXEC_RESULT:"
START_S = 60.0
END_S = 10.0
PDEATHSIG = 1
LIBC = ctypes.CDLL(None)
LOGGING = """\
rootLogger.level = WARN
rootLogger.appenderRef.file.ref = file
logger.flink.name = org.apache.flink
logger.flink.level = INFO
appender.file.name = file
appender.file.type = File
appender.file.fileName = ${sys:log.file}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{HH:mm:ss,SSS} %-5p %c{1} %x - %m%n
"""


class FlinkFailed(Exception):
    """The cluster or the job did not do what it should; the message says what and where its logs are."""


class NotReady(FlinkFailed):
    """The cluster is still starting, or changing; ask again."""


@dataclass(frozen=True)
class ClusterShape:
    """How many processes run tasks, with how many slots and how much memory each."""

    workers: int = 1
    slots: int = 2
    memory_mb: int = 4096


# --- configuration ---------------------------------------------------------------------------


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on at the moment, all different."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind((LOOPBACK, 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def config_of(
    folder: Path, shape: ClusterShape, ports: tuple[int, int], options: Mapping[str, object]
) -> dict[str, object]:
    """Flink's configuration: where everything is, loopback only, and what is asked for beyond that.

    Args:
        folder: of the run, for state, uploads and temporary files.
        shape: of the cluster.
        ports: of the manager's RPC and of REST.
        options: more of Flink's own; they win.
    """
    rpc, rest = ports
    return {
        "jobmanager.rpc.address": LOOPBACK,
        "jobmanager.rpc.port": rpc,
        "jobmanager.bind-host": LOOPBACK,
        "jobmanager.memory.process.size": "1g",
        "jobmanager.execution.failover-strategy": "region",
        "taskmanager.host": LOOPBACK,
        "taskmanager.bind-host": LOOPBACK,
        "taskmanager.numberOfTaskSlots": shape.slots,
        "taskmanager.memory.process.size": f"{shape.memory_mb}m",
        "rest.address": LOOPBACK,
        "rest.bind-address": LOOPBACK,
        "rest.port": rest,
        "rest.bind-port": rest,
        "web.upload.dir": f"{folder}/upload",
        "io.tmp.dirs": f"{folder}/tmp",
        "execution.checkpointing.storage": "filesystem",
        "execution.checkpointing.dir": f"file://{folder}/checkpoints",
        "execution.checkpointing.savepoint-dir": f"file://{folder}/savepoints",
        **options,
    }


ADAPTIVE = {
    "jobmanager.scheduler": "adaptive",
    "jobmanager.adaptive-scheduler.submission.resource-stabilization-timeout": "1 s",
    "jobmanager.adaptive-scheduler.executing.cooldown-after-rescaling": "1 s",
}
"""The scheduler that rescales a job. It need not wait as long as by default after a submission and between rescales, so
that runs are short; neither is a part of how long a rescale takes."""


def job_options(backend: str, interval_ms: int, is_rescaled: bool = False) -> dict[str, object]:
    """What the job runs with: exactly once, on this backend, each record handed on without a copy."""
    return {
        "pipeline.object-reuse": True,
        "execution.checkpointing.mode": "EXACTLY_ONCE",
        "execution.checkpointing.interval": f"{interval_ms} ms",
        "execution.checkpointing.incremental": True,
        "state.backend.type": backend,
        # State on the heap has no use for managed memory, and much for the heap.
        **({"taskmanager.memory.managed.fraction": 0.0} if backend == "hashmap" else {}),
        **(ADAPTIVE if is_rescaled else {}),
    }


def config_text(options: Mapping[str, object]) -> str:
    """A configuration as the YAML that Flink reads, one flat key a line."""

    def value(each: object) -> str:
        return json.dumps(each) if isinstance(each, str | bool) else str(each)

    return "".join(f"{key}: {value(each)}\n" for key, each in options.items())


def resources_of(output: str) -> tuple[list[str], list[str]]:
    """What Flink's own arithmetic of memory says: options of the JVM, and arguments of the process."""
    lines = [line.removeprefix(RESULT) for line in output.splitlines() if line.startswith(RESULT)]
    if not lines:
        raise FlinkFailed(f"Flink did not say how much memory its processes take: {output.strip()[-300:]}")
    return lines[0].split(), lines[1].split() if len(lines) > 1 else []


# --- REST ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FlinkRest:
    """The REST interface of a cluster."""

    port: int

    def call(self, method: str, path: str, body: bytes | None = None, content: str = "application/json") -> Any:
        """Send a request and return the JSON of the answer."""
        request = urllib.request.Request(
            f"http://{LOOPBACK}:{self.port}{path}", body, {"Content-Type": content}, method=method
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=60) as response:
                text = response.read()
        except urllib.error.HTTPError as problem:
            words = problem.read().decode(errors="replace")
            kind = NotReady if problem.code == HTTPStatus.SERVICE_UNAVAILABLE else FlinkFailed
            raise kind(f"{method} {path}: {problem.code}: {words[:600]}") from None
        return json.loads(text) if text.strip() else {}

    def get(self, path: str) -> Any:
        """What is there."""
        return self.call("GET", path)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Ask for something."""
        return self.call("POST", path, json.dumps(body).encode())

    def put(self, path: str, body: Mapping[str, Any]) -> Any:
        """Say how something shall be."""
        return self.call("PUT", path, json.dumps(body).encode())

    def upload(self, jar: Path) -> str:
        """Bring a jar to the cluster, and return its id there."""
        boundary = uuid.uuid4().hex
        head = (
            f"--{boundary}\r\n"
            f'Content-Disposition: form-data; name="jarfile"; filename="{jar.name}"\r\n'
            "Content-Type: application/x-java-archive\r\n\r\n"
        )
        body = head.encode() + jar.read_bytes() + f"\r\n--{boundary}--\r\n".encode()
        answer = self.call("POST", "/jars/upload", body, f"multipart/form-data; boundary={boundary}")
        return Path(answer["filename"]).name


# --- processes -------------------------------------------------------------------------------


@dataclass
class FlinkCluster:
    """A running cluster."""

    home: FlinkHome
    folder: Path
    logs: Path
    rest: FlinkRest
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def check(self) -> None:
        """Raise if one of the processes has ended."""
        for at, each in enumerate(self.processes):
            if each.poll() is not None:
                role = f"task manager {at}" if at else "the job manager"
                raise FlinkFailed(f"{role} of Flink has ended with {each.returncode}; see {self.logs}")

    def wait(self, what: str, ready: Callable[[], bool], within_s: float = START_S) -> None:
        """Until it is ready."""
        deadline = time.monotonic() + within_s
        while True:
            self.check()
            with suppress(OSError, NotReady):
                if ready():
                    return
            if time.monotonic() > deadline:
                raise FlinkFailed(f"Flink: {what} did not come within {within_s:.0f} s; see {self.logs}")
            time.sleep(0.1)

    def end(self) -> None:
        """End all processes, those that do not listen by force."""
        for each in reversed(self.processes):
            if each.poll() is None:
                each.terminate()
        deadline = time.monotonic() + END_S
        for each in self.processes:
            try:
                each.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                each.kill()
                each.wait()


@contextmanager
def running_cluster(
    home: FlinkHome, folder: Path, logs: Path, shape: ClusterShape, options: Mapping[str, object]
) -> Iterator[FlinkCluster]:
    """A cluster with this configuration, gone at the end however that comes; only its logs stay."""
    ports = free_ports(2)
    conf = folder / "conf"
    for each in (conf, logs, folder / "tmp", folder / "upload"):
        each.mkdir(parents=True, exist_ok=True)
    (conf / "config.yaml").write_text(config_text(config_of(folder, shape, (ports[0], ports[1]), options)))
    (conf / "log4j.properties").write_text(LOGGING)
    cluster = FlinkCluster(home, folder, logs, FlinkRest(ports[1]))
    with _sigterm_as_exit():
        try:
            _start(cluster, "jobmanager", MANAGER, "GET_JM_RESOURCE_PARAMS")
            for at in range(shape.workers):
                _start(cluster, f"taskmanager-{at}", WORKER, "GET_TM_RESOURCE_PARAMS")
            slots = shape.workers * shape.slots
            cluster.wait(f"{slots} slots", lambda: cluster.rest.get("/overview")["slots-total"] == slots)
            yield cluster
        finally:
            cluster.end()


def _start(cluster: FlinkCluster, name: str, main: str, question: str) -> None:
    """Start a process as Flink's scripts would: with the memory that its configuration amounts to."""
    home, conf = cluster.home, str(cluster.folder / "conf")
    class_path = f"{home.resources_jar}{os.pathsep}{home.class_path}"
    command = [str(home.java), "-cp", class_path, RESOURCES, question, "--configDir", conf]
    output = subprocess.run(command, capture_output=True, text=True, env=_environment(cluster), cwd=cluster.folder)
    jvm, arguments = resources_of(output.stdout + output.stderr)
    opened = [f"--add-opens={each}=ALL-UNNAMED" for each in OPENED]
    logging = [f"-Dlog.file={cluster.logs}/{name}.log", f"-Dlog4j.configurationFile={conf}/log4j.properties"]
    with (cluster.logs / f"{name}.out").open("wb") as out:
        process = subprocess.Popen(
            [str(home.java), *jvm, *opened, *logging, "-cp", home.class_path, main, "--configDir", conf, *arguments],
            stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, cwd=cluster.folder,
            env=_environment(cluster), preexec_fn=_die_with_parent if sys.platform == "linux" else None,
        )  # fmt: skip
    cluster.processes.append(process)


def _environment(cluster: FlinkCluster) -> dict[str, str]:
    """Of the processes: what this one has, without settings of another Flink or Hadoop."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FLINK_", "HADOOP_"))}
    return {**kept, "FLINK_CONF_DIR": str(cluster.folder / "conf")}


def _die_with_parent() -> None:
    # Without this, a benchmark that is killed with -9 would leave a cluster behind.
    LIBC.prctl(PDEATHSIG, signal.SIGKILL)


@contextmanager
def _sigterm_as_exit() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
