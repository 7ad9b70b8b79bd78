"""The parts of ./dev bench flink without Spark and Flink: keys, figures, configuration, what the job writes."""

import dataclasses
import json
import math
import socket
import subprocess
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meander.route.hashing import xxhash64
from meander_lab.benchmarks import flink as bench
from meander_lab.benchmarks import flink_cluster as cluster
from meander_lab.benchmarks import flink_figures as figures
from meander_lab.benchmarks import flink_install as install
from meander_lab.benchmarks import flink_keys as keys
from meander_lab.benchmarks import flink_report as report
from meander_lab.benchmarks import flink_run as job
from meander_lab.benchmarks.flink_figures import HEAP, OURS, ROCKSDB, Commit, PeerCase, PeerRecord

CASE = PeerCase("latency", OURS, keys=100, rate=1000)


# --- keys ------------------------------------------------------------------------------------


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20))
def test_hashes_are_sparks(numbers):
    rows = np.array(numbers, np.int64)
    assert keys.hashes(rows).tolist() == xxhash64([pa.array(rows)]).tolist()


def test_the_known_hash_of_a_number():
    # SELECT xxhash64(0L), xxhash64(123456789012L)
    assert keys.hashes(np.array([0])).view(np.int64).tolist() == [-5252525462095825812]


@pytest.mark.parametrize("law", figures.LAWS)
def test_keys_are_below_their_number(law):
    numbers, close = keys.keys_of(np.arange(50_000), law, 1000)
    assert 0 <= numbers.min() <= numbers.max() <= 1000
    assert close == 0


def test_zipf_has_its_shape():
    numbers, _ = keys.keys_of(np.arange(200_000), "zipf", 1000)
    share = np.bincount(numbers, minlength=1001) / 200_000
    for key in (1, 2, 10, 100):
        assert share[key] == pytest.approx(math.log(1 + 1 / key) / math.log(1000), rel=0.1)


@given(st.integers(0, 500), st.integers(1, 8), st.sampled_from([0, 50]))
def test_expected_counts_do_not_depend_on_the_lanes(rows, lanes, fill):
    positions = [len(range(lane, rows, lanes)) for lane in range(lanes)]
    of_lanes, _ = keys.expected_counts(positions, "ints", 50, fill)
    of_one, _ = keys.expected_counts([rows], "ints", 50, fill)
    assert of_lanes.tolist() == of_one.tolist()
    assert of_lanes.sum() == rows


def test_a_large_count_is_made_in_parts(monkeypatch):
    whole, _ = keys.expected_counts([1000, 990], "ints", 50, 50)
    monkeypatch.setattr(keys, "CHUNK", 7)
    assert keys.expected_counts([1000, 990], "ints", 50, 50)[0].tolist() == whole.tolist()


def test_right_counts_differ_in_nothing():
    wanted, close = keys.expected_counts([500], "ints", 50, 0)
    present = np.flatnonzero(wanted)
    assert keys.difference(present, wanted[present], wanted, close) is None


@pytest.mark.parametrize(
    ("numbers", "counts", "words"),
    [
        ([0, 1, 2], [4, 3, 2], "9 rows were counted instead of 10"),
        ([0, 1, 2], [4, 4, 2], "2 of 3 keys have a wrong count"),
        ([0, 1, 1, 2], [5, 2, 1, 2], "a key was counted in two places"),
        ([0, 1, 7], [5, 3, 2], r"outside 0\.\.3"),
        ([-1, 1, 2], [5, 3, 2], r"outside 0\.\.3"),
        ([], [], "0 rows were counted instead of 10"),
    ],
)
def test_wrong_counts_are_found(numbers, counts, words):
    wanted = np.array([5, 3, 2, 0])
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(keys.difference(np.array(numbers, int), np.array(counts, int), wanted, 0))


def test_a_row_too_close_to_call_may_be_with_its_neighbour():
    wanted = np.array([5, 3, 2, 0])
    given_keys, counts = np.array([0, 1, 2]), np.array([4, 4, 2])
    assert keys.difference(given_keys, counts, wanted, 1) is None


# --- figures ---------------------------------------------------------------------------------


def test_a_commit_without_new_rows_is_none():
    commits = [Commit(1.0, (5,)), Commit(3.0, (9,)), Commit(2.0, (5,)), Commit(0.5, (0,))]
    assert [each.at_s for each in figures.with_rows(commits)] == [1.0, 3.0]


def test_a_time_with_few_commits_is_too_short():
    commits = [Commit(float(at), (at,)) for at in range(5)]
    assert figures.is_long_enough(commits, 1.5)
    assert not figures.is_long_enough(commits, 2.5)
    assert not figures.is_long_enough([*commits, Commit(9.0, (4,))], 2.5)


def test_throughput_is_between_commits():
    commits = [Commit(at_s, (int(at_s * 100), int(at_s * 100))) for at_s in (1.0, 2.0, 3.5, 9.0)]
    assert figures.rows_per_s(commits, 1.5, 4.0) == pytest.approx(200)
    assert math.isnan(figures.rows_per_s(commits, 1.5, 3.0))


def test_latency_runs_from_creation_to_commit():
    # Row m is created at 10 + m/1000 s; one lane, no fill.
    record = PeerRecord(CASE, [Commit(10.2, (100,)), Commit(10.5, (300,))], 10.0)
    latencies = figures.latencies_ms(record)
    assert len(latencies) == 300
    assert latencies.max() == pytest.approx(400)  # row 100, created at 10.1, committed at 10.5
    assert latencies.min() == pytest.approx(101)  # row 99
    assert figures.latencies_ms(record, (10.1, 10.2)).min() == pytest.approx(301)
    assert figures.latencies_ms(record, committed_in=(10.0, 10.2)).max() == pytest.approx(200)


def test_lanes_and_fill_change_no_latency():
    ends = [(10.2, 100), (10.5, 300)]
    plain = PeerRecord(CASE, [Commit(at_s, (rows,)) for at_s, rows in ends], 10.0)
    case = dataclasses.replace(CASE, fill=40)
    dealt = [Commit(at_s, tuple(len(range(lane, rows + 40, 8)) for lane in range(8))) for at_s, rows in ends]
    wanted = sorted(figures.latencies_ms(plain))
    assert sorted(figures.latencies_ms(PeerRecord(case, dealt, 10.0))) == pytest.approx(wanted)


def test_of_a_high_rate_a_sample_is_looked_at():
    record = PeerRecord(dataclasses.replace(CASE, rate=50_000), [Commit(2.0, (50_000,))], 0.0)
    latencies = figures.latencies_ms(record)
    assert len(latencies) == 1000
    assert latencies.max() == pytest.approx(2000)


def test_a_rescale_is_held_against_the_time_before_it():
    times = [0.5, 1.0, 1.5, 2.0, 2.5, 5.0, 5.5, 6.0, 6.5]
    commits = [Commit(at_s, (int(at_s * 1000),)) for at_s in times]
    marks = {"steady": 0.4, "rescale": 2.6, "end": 6.0}
    result = figures.figures(PeerRecord(dataclasses.replace(CASE, part="rescale"), commits, 0.0, marks))
    assert result["usual gap s"] == pytest.approx(0.5)
    assert result["longest silence s"] == pytest.approx(2.5)
    assert result["silence / usual gap"] == pytest.approx(5.0)
    assert result["worst before ms"] == pytest.approx(500)
    assert result["worst in rescale ms"] == pytest.approx(2500)  # row 2500, created before it, waited in it


def test_nothing_measured_is_no_figure():
    marks = {"steady": 0.0, "rescale": 1.0, "end": 2.0}
    result = figures.figures(PeerRecord(dataclasses.replace(CASE, part="rescale"), [], 0.0, marks))
    assert all(math.isnan(value) for value in result.values())


def throughput_record(system, rate, repeat=0, problem=None):
    case = PeerCase("throughput", system, repeat=repeat)
    commits = [Commit(float(at), (rate * at,)) for at in range(1, 10)]
    return PeerRecord(case, commits, 0.0, {"steady": 2.0, "end": 8.0}, 9 * rate, problem)


RECORDS = [
    throughput_record(OURS, 100),
    throughput_record(OURS, 300, 1),
    throughput_record(OURS, 200, 2),
    throughput_record(HEAP, 400),
    throughput_record(ROCKSDB, 7, 0, "its counts are wrong"),
]


def test_figures_are_medians_of_good_runs():
    assert figures.medians(RECORDS, "throughput") == {
        "ints, 1,000,000 keys": {OURS: {"rows/s": 200.0}, HEAP: {"rows/s": 400.0}}
    }


def test_ratios_are_ours_over_theirs():
    [case] = figures.medians(RECORDS, "throughput").values()
    assert figures.ratio(case, HEAP, "rows/s") == 0.5
    assert math.isnan(figures.ratio(case, ROCKSDB, "rows/s"))


def test_records_survive_json():
    for record in RECORDS:
        assert PeerRecord.from_dict(json.loads(json.dumps(record.to_dict()))) == record


# --- report ----------------------------------------------------------------------------------


def test_the_summary_is_json():
    summary = json.loads(json.dumps(report.summary_of(RECORDS, ["throughput"]), allow_nan=False))
    assert summary["throughput"]["ours_over_theirs"]["ints, 1,000,000 keys"] == {HEAP: {"rows/s": 0.5}}


def test_a_table_has_a_line_for_each_case_and_system():
    table = report.table_of(RECORDS, "throughput")
    assert table.row_count == 2
    assert list(table.columns[1].cells) == [OURS, HEAP]
    assert list(table.columns[2].cells) == ["3", "1"]
    assert list(table.columns[3].cells) == ["0.00 M", "0.00 M (0.50)"]


@pytest.mark.parametrize("parts", [[], ["throughput"], ["throughput", "latency", "rescale"]])
def test_the_plot_is_drawn(tmp_path, parts):
    marks = {"steady": 0.4, "rescale": 2.6, "end": 6.0}
    commits = [Commit(at_s, (int(at_s * 1000),)) for at_s in (0.5, 1.0, 1.5, 2.0, 2.5, 5.0, 5.5, 6.0, 6.5)]
    others = [PeerRecord(dataclasses.replace(CASE, part=part), commits, 0.0, marks) for part in ("latency", "rescale")]
    path = report.plot([*RECORDS, *others], parts, tmp_path / "new" / "flink.png")
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("rows/s", 1_234_567, "1.23 M"),
        ("p99 ms", 1234.5, "1,234"),
        ("usual gap s", 0.999, "1.00"),
        ("x", math.nan, "-"),
    ],
)
def test_figures_have_few_digits(name, value, text):
    assert report.number(name, value) == text


# --- cases and the command -------------------------------------------------------------------


def test_every_part_compares_all_systems():
    for part in bench.PARTS:
        assert {case.system for case in bench.cases_of([part])} == set(figures.SYSTEMS)


def test_flinks_latency_is_taken_at_both_intervals_and_ours_once():
    cases = bench.cases_of(["latency"])
    assert sum(case.system == OURS for case in cases) == len(bench.RATES)
    assert {case.interval_ms for case in cases if case.system == HEAP} == {200, 1000}
    assert len({(case.name, case.column) for case in cases}) == len(cases)


def test_the_large_form_rescales_more_keys():
    assert {case.keys for case in bench.cases_of(["rescale"])} == {10**6}
    assert {case.keys for case in bench.cases_of(["rescale"], large=True)} == {10**6, 10**7}


def test_cases_survive_json():
    for case in bench.cases_of(bench.PARTS, quick=True):
        assert PeerCase(**json.loads(json.dumps(dataclasses.asdict(case)))) == case


def test_the_command_line():
    options = bench.parsed(["--only", "latency,rescale", "--quick"])
    assert (options.only, options.repeat) == (["latency", "rescale"], 1)
    assert bench.parsed([]).repeat == 3
    assert bench.parsed(["--systems", "ours,flink heap"]).systems == [OURS, HEAP]


def test_an_unknown_part_is_refused(capsys):
    with pytest.raises(SystemExit):
        bench.parsed(["--only", "speed"])
    assert "there is no 'speed'; there are: throughput, latency, rescale" in capsys.readouterr().err


# --- what the job writes ---------------------------------------------------------------------


def positions(checkpoint, *ends, begin=5000):
    return [
        {"checkpoint": checkpoint, "split": split, "position": end, "begin": begin} for split, end in enumerate(ends)
    ]


def completed(checkpoint, *tasks):
    return [{"checkpoint": checkpoint, "at": at, "rows": rows, "tasks": len(tasks)} for at, rows in tasks]


def test_a_commit_is_out_when_its_last_task_knows():
    log = job.job_log(positions(1, 10, 20), completed(1, (6000, 13), (6100, 17)), splits=2)
    assert log == job.JobLog([Commit(6.1, (10, 20))], 5.0, None)


def test_a_checkpoint_that_not_all_know_of_is_no_commit_yet():
    lines = completed(1, (6000, 13), (6100, 17))
    assert job.job_log(positions(1, 10, 20), lines[:1], splits=2).commits == []
    assert job.job_log(positions(1, 10), lines, splits=2).commits == []


def test_rows_that_are_lost_between_source_and_sink_are_found():
    log = job.job_log(positions(7, 10, 20), completed(7, (6000, 13), (6100, 16)), splits=2)
    assert log.disagreement == "checkpoint 7: 30 rows went in, 29 came out"


def test_the_load_has_not_begun_before_a_reader_says_so():
    assert job.job_log(positions(1, 10, 20, begin=0), [], splits=2).begin_s == 0.0


def test_the_last_checkpoint_has_the_last_positions():
    lines = positions(2, 10, 20) + positions(9, 30, 25) + positions(4, 15, 22)
    assert job.last_positions(lines, splits=2) == (30, 25)
    assert job.last_positions([], splits=2) == (0, 0)


def test_lines_are_read_from_all_files_and_only_whole_ones(tmp_path):
    (tmp_path / "commits-a.jsonl").write_text('{"a": 1}\n{"a": 2}\n{"a"')
    (tmp_path / "commits-b.jsonl").write_text('{"a": 3}\n')
    (tmp_path / "positions-c.jsonl").write_text("")
    assert job.lines_of(tmp_path, "commits") == [{"a": 1}, {"a": 2}, {"a": 3}]
    assert job.lines_of(tmp_path, "positions") == []


def test_final_counts_are_those_of_all_tasks(tmp_path):
    for task, rows in enumerate([[(3, 5), (1, 2)], [(2, 7)]]):
        np.array(rows, ">i8").tofile(tmp_path / f"counts-{task}.bin")
    numbers, counts = job.final_counts(tmp_path)
    assert dict(zip(numbers.tolist(), counts.tolist(), strict=True)) == {3: 5, 1: 2, 2: 7}
    assert job.final_counts(tmp_path / "nothing")[0].size == 0


def test_the_job_gets_the_scale_to_the_last_bit(tmp_path):
    arguments = job.arguments_of(PeerCase("throughput", HEAP, "zipf"), tmp_path)
    options = dict(zip(arguments[::2], arguments[1::2], strict=True))
    assert float(options["--scale"]) == keys.scale_of(10**6)
    assert options["--splits"] == str(job.SPLITS)


def test_a_rescale_has_a_process_for_each_worker():
    assert job.shape_of(PeerCase("rescale", HEAP)).workers == job.MORE_WORKERS
    assert job.shape_of(PeerCase("latency", HEAP)) == cluster.ClusterShape(1, 2)
    much = job.shape_of(PeerCase("rescale", HEAP, keys=10**7)).memory_mb
    assert much > job.shape_of(PeerCase("rescale", HEAP)).memory_mb


# --- the cluster -----------------------------------------------------------------------------


def test_everything_listens_on_the_loopback(tmp_path):
    config = cluster.config_of(tmp_path, cluster.ClusterShape(), (1, 2), {})
    hosts = {key: value for key, value in config.items() if key.endswith(("host", "address"))}
    assert len(hosts) == 6
    assert set(hosts.values()) == {cluster.LOOPBACK}


def test_options_of_the_job_win(tmp_path):
    config = cluster.config_of(tmp_path, cluster.ClusterShape(), (1, 2), {"jobmanager.memory.process.size": "2g"})
    assert config["jobmanager.memory.process.size"] == "2g"


def test_a_job_is_exactly_once_on_its_backend():
    options = cluster.job_options("rocksdb", 200)
    assert options["execution.checkpointing.mode"] == "EXACTLY_ONCE"
    assert options["execution.checkpointing.interval"] == "200 ms"
    assert options["state.backend.type"] == "rocksdb"
    assert "jobmanager.scheduler" not in options


def test_only_a_rescale_takes_the_adaptive_scheduler():
    assert cluster.job_options("rocksdb", 1000, is_rescaled=True)["jobmanager.scheduler"] == "adaptive"


def test_state_on_the_heap_has_the_memory_of_rocksdb():
    assert cluster.job_options("hashmap", 1000)["taskmanager.memory.managed.fraction"] == 0.0


def test_a_configuration_is_flat_yaml():
    text = cluster.config_text({"rest.port": 8081, "pipeline.object-reuse": True, "io.tmp.dirs": "/a b: c"})
    assert text == 'rest.port: 8081\npipeline.object-reuse: true\nio.tmp.dirs: "/a b: c"\n'


def test_what_flink_says_of_memory_is_found_among_its_logs():
    output = "some log\nBASH_JAVA_UTILS_EXEC_RESULT:-Xmx1g -Xms1g\nBASH_JAVA_UTILS_EXEC_RESULT:-D a=1b -D c=2\n"
    assert cluster.resources_of(output) == (["-Xmx1g", "-Xms1g"], ["-D", "a=1b", "-D", "c=2"])
    with pytest.raises(cluster.FlinkFailed, match="no such class"):
        cluster.resources_of("Error: no such class")


class Refusals(BaseHTTPRequestHandler):
    """Answers every request with the code that its path names."""

    def do_GET(self):
        self.send_response(int(self.path[1:]))
        self.end_headers()
        self.wfile.write(b'{"errors": ["not started yet"]}')

    def log_message(self, *_):
        pass


@pytest.fixture
def refusing():
    with ThreadingHTTPServer((cluster.LOOPBACK, 0), Refusals) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield cluster.FlinkRest(server.server_address[1])
        server.shutdown()
        thread.join()


def test_a_cluster_that_starts_is_asked_again_and_one_that_refuses_is_not(refusing):
    with pytest.raises(cluster.NotReady, match="not started yet"):
        refusing.get("/503")
    with pytest.raises(cluster.FlinkFailed, match="GET /404: 404") as problem:
        refusing.get("/404")
    assert not isinstance(problem.value, cluster.NotReady)
    assert refusing.get("/200") == {"errors": ["not started yet"]}


def test_waiting_asks_again_until_it_is_ready(tmp_path):
    answers = iter([cluster.NotReady("no"), OSError("no"), False, True])

    def ready():
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    home = install.FlinkHome(tmp_path, tmp_path, tmp_path)
    each = cluster.FlinkCluster(home, tmp_path, tmp_path, cluster.FlinkRest(0))
    each.wait("it", ready)
    assert next(answers, None) is None
    with pytest.raises(cluster.FlinkFailed, match="it did not come within 0 s"):
        each.wait("it", lambda: False, 0.0)


def test_a_process_that_has_ended_is_noticed_and_the_others_are_ended(tmp_path):
    home = install.FlinkHome(tmp_path, tmp_path, tmp_path)
    each = cluster.FlinkCluster(home, tmp_path, tmp_path, cluster.FlinkRest(0))
    each.processes = [subprocess.Popen(["sleep", "60"]), subprocess.Popen(["false"])]
    each.processes[1].wait()
    with pytest.raises(cluster.FlinkFailed, match="task manager 1 of Flink has ended with 1"):
        each.check()
    each.end()
    assert each.processes[0].poll() is not None


def test_free_ports_are_different_and_free():
    ports = cluster.free_ports(5)
    assert len(set(ports)) == 5
    for port in ports:
        with socket.socket() as each:
            each.bind((cluster.LOOPBACK, port))


# --- installing ------------------------------------------------------------------------------


def test_the_job_is_in_the_package():
    sources = install.source_files()
    assert {"CountByKey.java", "LoadReader.java", "CommitRecorder.java"} <= set(sources)
    for name, text in sources.items():
        assert f" {name.removesuffix('.java')}" in text.decode(), name
        assert text.decode().startswith("package meander.bench;")


def test_the_version_is_pinned():
    assert f"=={install.VERSION}" in install.PACKAGE


def test_a_jar_names_its_main_class(tmp_path):
    (tmp_path / "classes" / "meander").mkdir(parents=True)
    (tmp_path / "classes" / "meander" / "A.class").write_bytes(b"x")
    install.pack(tmp_path / "classes", tmp_path / "job.jar")
    with zipfile.ZipFile(tmp_path / "job.jar") as archive:
        assert archive.namelist() == ["META-INF/MANIFEST.MF", "meander/A.class"]
        assert f"Main-Class: {install.MAIN_CLASS}" in archive.read("META-INF/MANIFEST.MF").decode()


def test_a_java_without_a_compiler_is_said_in_one_sentence(tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    java = tmp_path / "bin" / "java"
    java.write_text("#!/bin/sh\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(install.Unavailable, match="this Java has no javac; install a JDK"):
        install.java_programs()


def test_flink_is_kept_in_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert install.default_folder() == tmp_path / "meander" / "flink"
