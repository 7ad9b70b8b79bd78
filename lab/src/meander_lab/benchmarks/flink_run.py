"""One run of Flink: a cluster of its own, our job in it, and what came of it. For `./dev bench flink`.

The job writes two kinds of lines into the run's folder (see `flink_job/`): how many rows of each split a checkpoint
covers, and when the sink has been told that the checkpoint is complete. At the end the job is stopped with a savepoint
and drained, and every key's final count is read and counted again.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meander_lab.benchmarks.flink_cluster import ClusterShape, FlinkCluster, FlinkFailed, job_options, running_cluster
from meander_lab.benchmarks.flink_figures import BACKENDS, Commit, PeerCase, PeerRecord, is_long_enough
from meander_lab.benchmarks.flink_install import MAIN_CLASS, FlinkHome
from meander_lab.benchmarks.flink_keys import difference, expected_counts, scale_of

SPLITS = 8
WORKERS, MORE_WORKERS = 2, 4
LARGE = 4_000_000
"""Keys above which a process gets more memory."""

Line = Mapping[str, Any]


# --- what the job has written ----------------------------------------------------------------


def lines_of(folder: Path, kind: str) -> list[Line]:
    """The lines of all tasks' files of a kind; a last line that is not whole yet is left out."""
    lines: list[Line] = []
    for file in sorted(folder.glob(f"{kind}-*.jsonl")):
        whole, _, _ = file.read_text().rpartition("\n")
        lines += [json.loads(line) for line in whole.splitlines()]
    return lines


@dataclass(frozen=True)
class JobLog:
    """The commits of a job, when its load began, and where its sink's own count of rows disagrees."""

    commits: list[Commit]
    begin_s: float
    disagreement: str | None


def job_log(positions: Iterable[Line], completed: Iterable[Line], splits: int = SPLITS) -> JobLog:
    """Put together what sources and sinks have written.

    A commit is a checkpoint of which every task of the sink knows that it is complete, at the time of the last one,
    with the rows that the sources had emitted before it. The sink counts its rows in its own state; their sum is
    compared.
    """
    covered: dict[int, dict[int, int]] = {}
    begin_ms = 0
    for line in positions:
        covered.setdefault(line["checkpoint"], {})[line["split"]] = line["position"]
        begin_ms = max(begin_ms, line["begin"])
    tasks: dict[int, list[Line]] = {}
    for line in completed:
        tasks.setdefault(line["checkpoint"], []).append(line)
    commits, disagreement = [], None
    for checkpoint, lines in sorted(tasks.items()):
        lanes = covered.get(checkpoint, {})
        if len(lines) < lines[0]["tasks"] or len(lanes) < splits:
            continue
        commit = Commit(max(line["at"] for line in lines) / 1000, tuple(lanes[split] for split in range(splits)))
        rows = sum(line["rows"] for line in lines)
        if rows != commit.rows:
            disagreement = disagreement or f"checkpoint {checkpoint}: {commit.rows:,} rows went in, {rows:,} came out"
        commits.append(commit)
    return JobLog(commits, begin_ms / 1000, disagreement)


def final_counts(folder: Path) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The keys of all tasks, as numbers, and their counts."""
    parts = [np.fromfile(file, ">i8").astype(np.int64).reshape(-1, 2) for file in sorted(folder.glob("counts-*.bin"))]
    table = np.concatenate(parts) if parts else np.empty((0, 2), np.int64)
    return table[:, 0], table[:, 1]


def arguments_of(case: PeerCase, folder: Path) -> list[str]:
    """The job's command line."""
    options = {
        "law": case.law, "keys": case.keys, "fill": case.fill, "rate": case.rate, "splits": SPLITS,
        "scale": repr(scale_of(case.keys)), "folder": folder,
    }  # fmt: skip
    return [text for name, value in options.items() for text in (f"--{name}", str(value))]


# --- the run ---------------------------------------------------------------------------------


class FlinkJob:
    """The job in a cluster."""

    def __init__(self, cluster: FlinkCluster, case: PeerCase, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        jar = cluster.rest.upload(cluster.home.jar)
        # Without it the job would run with parallelism 1, whatever the configuration's default is.
        body = {"entryClass": MAIN_CLASS, "parallelism": WORKERS, "programArgsList": arguments_of(case, folder)}
        self.id = str(cluster.rest.post(f"/jars/{jar}/run", body)["jobid"])

    @property
    def log(self) -> JobLog:
        """What it has written so far."""
        return job_log(lines_of(self.folder, "positions"), lines_of(self.folder, "commits"))

    @property
    def status(self) -> str:
        """RUNNING, FINISHED, ..."""
        return str(self.cluster.rest.get(f"/jobs/{self.id}")["state"])

    def check(self) -> None:
        """Raise if it has failed or ended."""
        self.cluster.check()
        if self.status in ("FAILED", "FAILING", "CANCELED", "FINISHED"):
            causes = self.cluster.rest.get(f"/jobs/{self.id}/exceptions")["exceptionHistory"]["entries"]
            words = causes[0]["stacktrace"].splitlines()[0] if causes else "it does not say why"
            raise FlinkFailed(f"the job of Flink is {self.status}: {words[:300]}; see {self.cluster.logs}")

    def sleep(self, seconds: float) -> None:
        """Wait while it runs."""
        end = time.time() + seconds
        while (left := end - time.time()) > 0:
            self.check()
            time.sleep(min(left, 1.0))

    def wait_for_load(self, within_s: float) -> None:
        """Until the state is filled and the load has begun."""
        self.cluster.wait("the load", lambda: self.log.begin_s > 0, within_s)
        if self.parallelism() != WORKERS:
            raise FlinkFailed(f"the job of Flink has {self.parallelism()} tasks of an operator instead of {WORKERS}")

    def rescale(self, workers: int) -> None:
        """Ask for so many slots for each operator, as users of the adaptive scheduler do."""
        vertices = self.cluster.rest.get(f"/jobs/{self.id}")["vertices"]
        bounds = {"parallelism": {"lowerBound": workers, "upperBound": workers}}
        self.cluster.rest.put(f"/jobs/{self.id}/resource-requirements", {each["id"]: bounds for each in vertices})

    def parallelism(self) -> int:
        """How many tasks each operator has, at least."""
        vertices = self.cluster.rest.get(f"/jobs/{self.id}")["vertices"]
        return int(min(each["parallelism"] for each in vertices))

    def drain(self, within_s: float) -> None:
        """Stop with a savepoint after everything that was read is out."""
        request = self.cluster.rest.post(f"/jobs/{self.id}/stop", {"drain": True})["request-id"]

        def stopped() -> bool:
            answer = self.cluster.rest.get(f"/jobs/{self.id}/savepoints/{request}")
            failure = (answer.get("operation") or {}).get("failure-cause")
            if failure:
                words = failure["stack-trace"].splitlines()[0]
                raise FlinkFailed(f"Flink did not stop with a savepoint: {words[:300]}; see {self.cluster.logs}")
            return answer["status"]["id"] == "COMPLETED" and self.status == "FINISHED"

        self.cluster.wait("the end of the job", stopped, within_s)


def shape_of(case: PeerCase) -> ClusterShape:
    """One process with two slots; for a rescale four with one, as ours has four executors."""
    if case.part == "rescale":
        return ClusterShape(MORE_WORKERS, 1, 3072 if case.keys > LARGE else 1728)
    return ClusterShape(1, WORKERS, 4096)


def run_flink(home: FlinkHome, case: PeerCase, logs: Path) -> PeerRecord:
    """Run a case of Flink's in a cluster of its own, whose logs are kept if the run is worth nothing.

    Raises:
        FlinkFailed: the cluster or the job did not do what it should.
    """
    # State is where that of ours is, which may be another disk than that of the logs.
    with tempfile.TemporaryDirectory(prefix="meander-bench-", ignore_cleanup_errors=True) as folder:
        record = _run(home, case, Path(folder), logs)
    if record.problem is None:
        shutil.rmtree(logs, ignore_errors=True)
    return record


def _run(home: FlinkHome, case: PeerCase, folder: Path, logs: Path) -> PeerRecord:
    records = folder / "records"
    records.mkdir()
    record = PeerRecord(case)
    options = job_options(BACKENDS[case.system], case.interval_ms, is_rescaled=case.part == "rescale")
    patience_s = 120 + case.fill / 20_000
    with running_cluster(home, folder, logs, shape_of(case), options) as cluster:
        job = FlinkJob(cluster, case, records)
        job.wait_for_load(patience_s)
        job.sleep(case.warm_s)
        record.marks["steady"] = time.time()
        job.sleep(case.seconds)
        steady_s = record.marks["steady"]
        cluster.wait("enough commits", lambda: is_long_enough(job.log.commits, steady_s), patience_s)
        if case.part == "rescale":
            record.marks["rescale"] = time.time()
            job.rescale(MORE_WORKERS)
            cluster.wait("the rescale", lambda: job.parallelism() == MORE_WORKERS, patience_s)
            record.marks["rescaled"] = time.time()
            job.sleep(max(0.0, record.marks["rescale"] + case.seconds - time.time()))
        record.marks["end"] = time.time()
        if case.rate:
            # Rows that were created before the end are out with one of the next commits.
            wanted = case.fill + (record.marks["end"] - job.log.begin_s) * case.rate
            cluster.wait(
                "the last rows", lambda: max((each.rows for each in job.log.commits), default=0) >= wanted, patience_s
            )
        job.drain(patience_s)
    log = job_log(lines_of(records, "positions"), lines_of(records, "commits"))
    record.commits, record.begin_s = log.commits, log.begin_s
    numbers, counts = final_counts(records)
    record.rows_counted = int(counts.sum())
    wanted_counts, close = expected_counts(
        last_positions(lines_of(records, "positions")), case.law, case.keys, case.fill
    )
    record.problem = log.disagreement or difference(numbers, counts, wanted_counts, close)
    return record


def last_positions(positions: Iterable[Line], splits: int = SPLITS) -> tuple[int, ...]:
    """How many rows of each split the last checkpoint covers, which here is the savepoint of the stop."""
    last: dict[int, tuple[int, int]] = {}
    for line in positions:
        last[line["split"]] = max(last.get(line["split"], (0, 0)), (line["checkpoint"], line["position"]))
    return tuple(last[split][1] if split in last else 0 for split in range(splits))
