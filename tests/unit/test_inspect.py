"""`meander inspect` on a checkpoint written with nothing but the checkpoint room, against a plain dictionary."""

import datetime
import json
import random

import pyarrow as pa
import pytest
import typer
from pyarrow import parquet

from meander.cli.inspect import inspect
from meander.cli.rows import read
from meander.cli.upkeep import verify
from meander.errors import CheckpointError, InvalidOption
from meander.store import statefile
from meander.store.entries import Commit, OperatorCommit, SnapshotRef
from meander.store.files import Attempt, store, store_side
from meander.store.identity import Identity
from meander.store.location import Location
from meander.store.manifest import Log
from meander.store.retention import sweep

BINS, VERSIONS = 16, 40
DAY = datetime.date(2026, 1, 1)
STAGES = [
    {
        "operator": "count",
        "key": [["word", "string"]],
        "tables": {"counts": {"key": [["word", "string"]], "values": [["n", "int64"]]}},
        "options": {},
    },
    {
        "operator": "custom",
        "key": [["user", "int64"]],
        "tables": {
            "seen": {"key": [["user", "int64"], ["day", "date32[day]"]], "values": [["note", "binary"]]},
            "timers": {"key": [["user", "int64"]], "values": []},
        },
        "options": {},
    },
]


class History:
    """A checkpoint and what its state must be after each version."""

    def __init__(self, root):
        self.place = Location.of(root)
        self.rng = random.Random(5)
        self.counts, self.seen, self.after = {}, {}, []
        self.late = []
        Identity.of(BINS, STAGES, id="the-id").settle(self.place)
        self.log = Log.open(self.place)
        self.epoch = self.log.claim("box", 7)
        for version in range(VERSIONS):
            self.commit(version)

    def commit(self, version):
        operators = []
        for operator in range(2):
            attempt = Attempt(version, operator, 0, self.epoch, 0)
            before = dict(self.counts), dict(self.seen)
            changed = self.change(operator)
            inline = 10_000 if version % 3 == 0 else 0
            delta = store(self.place, attempt.path("deltas"), statefile.write(changed, BINS), 0, inline)
            snapshots = ()
            if version and version % 5 == operator:
                covers = [j for j in range(BINS) if j % 4 == version % 4]
                made = statefile.write(self.snapshot(operator, *before, covers), BINS, covers=covers)
                ref = store(self.place, attempt.path("snapshots"), made, 0)
                snapshots = (SnapshotRef(ref, version - 1),)
            side = ()
            if version % 10 == 3 and operator == 1:
                rows = pa.table({"user": [version], "reason": ["too late"]})
                self.late.append({"version": version, "operator": 1, "user": version, "reason": "too late"})
                side = (store_side(self.place, attempt.path("late"), rows, 0, "late", 10_000 if version > 20 else 0),)
            owner = tuple(0 if j < 10 else 3 for j in range(BINS))
            operators.append(OperatorCommit(version * 10, owner, (delta,), snapshots, side))
        self.log.append(
            Commit(version, version, 0, "q", "o", tuple(operators), rows=9, late=1, time_ms=1_700_000_000_000)
        )
        self.after.append((dict(self.counts), dict(self.seen)))

    def change(self, operator):
        rows = []
        for _ in range(6):
            if operator == 0:
                key = f"w{self.rng.randrange(30)}"
                gone, value = self.rng.random() < 0.2, self.rng.randrange(1000)
                rows.append((int(key[1:]) % BINS, gone, key, None if gone else value))
            else:
                key = (self.rng.randrange(20), DAY + datetime.timedelta(self.rng.randrange(2)))
                gone, value = self.rng.random() < 0.2, self.rng.choice([b"x", b"\xff", None])
                rows.append((key[0] % BINS, gone, *key, value))
        width = 3 if operator == 0 else 4
        rows = sorted({row[2:width]: row for row in rows}.values(), key=lambda row: row[0])
        held = self.counts if operator == 0 else self.seen
        for row in rows:
            held.pop(row[2:width], None)
            if not row[1]:
                held[row[2:width]] = row[-1]
        return self.tables(operator, rows)

    def snapshot(self, operator, counts, seen, covers):
        if operator == 0:
            rows = [(int(key[0][1:]) % BINS, False, *key, value) for key, value in counts.items()]
        else:
            rows = [(key[0] % BINS, False, *key, value) for key, value in seen.items()]
        return self.tables(operator, sorted((row for row in rows if row[0] in covers), key=lambda row: row[0]))

    def tables(self, operator, rows):
        start = [("__bin", pa.int32()), ("__deleted", pa.bool_())]
        if operator == 0:
            return {"counts": table(rows, [*start, ("word", pa.string()), ("n", pa.int64())])}
        columns = [*start, ("user", pa.int64()), ("day", pa.date32()), ("note", pa.binary())]
        return {"seen": table(rows, columns), "timers": table([], columns[:3])}


def table(rows, columns):
    return pa.table(
        [pa.array([row[i] for row in rows], kind) for i, (_, kind) in enumerate(columns)], [n for n, _ in columns]
    )


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    return History(tmp_path_factory.mktemp("ck"))


app = typer.Typer()
for command in (inspect, read, verify):
    app.command()(command)


@pytest.fixture
def run(capsys, history):
    def call(command, *arguments, place=None):
        place = str(place or history.place.root)
        code = app(args=[command, place, *map(str, arguments)], standalone_mode=False)
        return code or 0, capsys.readouterr().out

    return call


def test_the_summary_for_programs(run, history):
    code, text = run("inspect", "-f", "json")
    answer = json.loads(text)
    assert (code, answer["id"], answer["bins"], answer["workers"]) == (0, "the-id", BINS, [0, 3])
    assert (answer["version"], answer["last_version"]) == (VERSIONS - 1, VERSIONS - 1)
    assert answer["driver"] == {"epoch": 0, "host": "box", "pid": 7}
    first = answer["operators"][0]
    assert first["owner"] == [[0, 10, 0], [10, 16, 3]]
    assert first["stored_bytes"] == sum(file.bytes for file in history.log.index.files(0))
    assert first["longest_chain"] == history.log.index.longest_chain(0) > 0
    assert json.loads(run("inspect", "--version", 7)[1])["version"] == 7


def test_the_summary_for_people(run):
    _, text = run("inspect", "-f", "table")
    assert "the-id" in text
    assert "version 39 of 0 to 39: batch 39" in text
    assert "0 count" in text
    assert "operator 1, worker 3: 6 bins: 10-15" in text


def committed(folder, **journal):
    """A checkpoint with one version, and this in its journal."""
    place = Location.of(folder)
    Identity.of(BINS, STAGES[:1], id="the-id").settle(place)
    log = Log.open(place)
    log.claim("box", 7)
    operator = OperatorCommit(None, (0,) * BINS)
    log.append(Commit(0, 0, 0, "q", "o", (operator,), journal={"wanted": [2], **journal}))


def test_a_migration_under_way_is_shown(run, tmp_path):
    left = {
        "migration": 3,
        "total": 5,
        "rules": {},
        "steps": [{"number": 4, "shifts": [[0, 1, 0, 1, 8], [0, 2, 0, 1, 8]]}],
    }
    committed(tmp_path, migration=left)
    told = json.loads(run("inspect", "-f", "json", place=tmp_path)[1])
    assert (
        "migration 3 is under way: 1 of 5 steps and 2 bins are left" in run("inspect", "-f", "table", place=tmp_path)[1]
    )
    assert told["migration"] == {"number": 3, "steps": 5, "steps_left": 1, "bins_left": 2}
    assert told["control"] is None


def test_a_migration_whose_steps_have_all_flipped_is_not_under_way(run, tmp_path):
    committed(tmp_path, migration={"migration": 3, "total": 1, "rules": {}, "steps": []})
    assert "under way" not in run("inspect", "-f", "table", place=tmp_path)[1]
    assert json.loads(run("inspect", "-f", "json", place=tmp_path)[1])["migration"] is None


def test_rows_of_the_control_stream_that_wait_are_shown(run, tmp_path):
    committed(tmp_path, control={"rules": {}, "rows": [[7, 0, 1, 1], [9, 0, 1, 0]]})
    assert (
        "2 rows of the control stream wait, the first for batch 7" in run("inspect", "-f", "table", place=tmp_path)[1]
    )
    assert json.loads(run("inspect", "-f", "json", place=tmp_path)[1])["control"] == {"rows": 2, "next_batch": 7}


@pytest.mark.parametrize("version", [0, 1, 7, 23, VERSIONS - 1, None])
def test_state_read_from_snapshots_and_deltas_is_what_the_stream_made(run, history, version):
    counts, seen = history.after[-1 if version is None else version]
    at = [] if version is None else ["--version", version]
    rows = [json.loads(line) for line in run("read", "count", *at)[1].splitlines()]
    assert {row["word"]: row["n"] for row in rows} == {key: n for (key,), n in counts.items()}
    assert len(rows) == len(counts)
    assert all(row["bin"] == int(row["word"][1:]) % BINS for row in rows)
    assert [row["bin"] for row in rows] == sorted(row["bin"] for row in rows)
    rows = [json.loads(line) for line in run("read", "1", "--table", "seen", *at)[1].splitlines()]
    notes = {b"x": "x", b"\xff": "/w==", None: None}
    assert {(row["user"], row["day"]): row["note"] for row in rows} == {
        (user, day.isoformat()): notes[note] for (user, day), note in seen.items()
    }


def test_state_as_a_table_says_how_much_is_left_out(run, history):
    total = len(history.counts)
    text = run("read", 0, "-f", "table", "--limit", 3)[1]
    assert f"counts of operator 0 (count): {total} rows" in text
    assert f"and {total - 3} more" in text
    assert len(text.splitlines()) == 1 + 1 + 3 + 1


def test_state_as_parquet(run, history, tmp_path):
    out = tmp_path / "counts.parquet"
    assert run("read", "count", "--out", out) == (0, f"{len(history.counts)} rows written to {out}\n")
    found = parquet.read_table(out)
    assert found.schema.names == ["bin", "word", "n"]
    assert dict(zip(found["word"].to_pylist(), found["n"].to_pylist(), strict=True)) == {
        key: n for (key,), n in history.counts.items()
    }
    run("read", "1", "--table", "timers", "--out", tmp_path / "empty.parquet")
    assert parquet.read_table(tmp_path / "empty.parquet").num_rows == 0
    assert sorted(each.name for each in tmp_path.iterdir()) == ["counts.parquet", "empty.parquet"]


def test_late_rows(run, history):
    rows = [json.loads(line) for line in run("read", "--side", "late")[1].splitlines()]
    assert rows == history.late
    assert run("read", "--side", "dead") == (0, "")
    assert run("read", "count", "--side", "late") == (0, "")
    assert len(run("read", "--side", "late", "--version", 13)[1].splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "error", "sentence"),
    [
        (["read", "sum"], InvalidOption, r"there is no operator 'sum'; there are 0 \(count\), 1 \(custom\)"),
        (["read", "2"], InvalidOption, "there is no operator '2'"),
        (["read", "1"], InvalidOption, "operator 1 has the tables seen, timers; choose one"),
        (["read", "0", "--table", "x"], InvalidOption, "operator 0 has no table 'x'; there are counts"),
        (["read", "0", "--version", "99"], CheckpointError, "version 99 is not kept; the last one is version 39"),
        (["read"], InvalidOption, "name an operator, whose state is to be read, or give --side late or --side dead"),
        (["read", "0", "--side", "late", "--where", "n = 1"], InvalidOption, "--table and --where are about state"),
        (["read", "0", "--out", "/nowhere/x.parquet"], InvalidOption, "its folder is missing"),
        (["read", "0", "--out", "/tmp"], InvalidOption, "it is a folder"),
    ],
)
def test_slips_are_one_sentence(run, arguments, error, sentence):
    with pytest.raises(error, match=sentence):
        run(*arguments)


def test_places_without_a_checkpoint(run, tmp_path):
    with pytest.raises(CheckpointError, match="there is no checkpoint at .*: no such folder"):
        run("inspect", place=tmp_path / "gone")
    for more in (["inspect"], ["verify"]):
        with pytest.raises(CheckpointError, match="is not a checkpoint of meander: it has no meander.json"):
            run(*more, place=tmp_path)


def test_a_checkpoint_without_commits(run, tmp_path):
    place = Location.of(tmp_path)
    Identity.of(BINS, STAGES).settle(place)
    assert "nothing is committed yet" in run("inspect", "-f", "table", place=tmp_path)[1]
    assert run("read", "0", place=tmp_path) == (0, "")
    assert json.loads(run("verify", place=tmp_path)[1])["ok"]
    with pytest.raises(CheckpointError, match="there are no rows"):
        run("read", "0", "--out", tmp_path / "x.parquet", place=tmp_path)


def test_a_whole_checkpoint_is_ok(run, history):
    code, text = run("verify")
    answer = json.loads(text)
    assert (code, answer["ok"], answer["damaged"], answer["unnamed"]) == (0, True, [], 0)
    assert answer["entries"] == VERSIONS + 1
    assert run("verify", "-f", "table")[1].startswith("OK: 41 entries of the log, ")


def every_file(root):
    return sorted(path for path in root.rglob("*") if path.is_file())


def test_every_damaged_file_is_named(run, tmp_path):
    history = History(tmp_path)
    needed = {file.path for file in history.log.index.files()}
    rng = random.Random(3)
    for path in rng.sample(every_file(tmp_path), 12):
        name, data = path.relative_to(tmp_path).as_posix(), path.read_bytes()
        wrong = bytearray(data)
        wrong[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        for damage in (bytes(wrong), data[: rng.randrange(len(data))]):
            path.write_bytes(damage)
            code, text = run("verify", place=tmp_path)
            found = json.loads(text)
            assert (code, found["ok"]) == (1, False), name
            assert any(name in sentence for sentence in found["damaged"]), (name, found)
        path.unlink()
        code, text = run("verify", place=tmp_path)
        newest = f"manifests/{VERSIONS:012d}.json"
        if name in needed or name == "meander.json" or (name.startswith("manifests") and name < newest):
            assert code == (0 if _is_below_an_index(tmp_path, name) else 1), name
            assert code == 0 or any(name in sentence for sentence in json.loads(text)["damaged"])
        path.write_bytes(data)
    assert run("verify", place=tmp_path)[0] == 0


def _is_below_an_index(root, name):
    """Whether a manifest is the last before one with a full index: the log may begin there."""
    if not name.startswith("manifests"):
        return False
    after = root / "manifests" / f"{int(name[10:22]) + 1:012d}.json"
    return after.exists() and "index" in json.loads(after.read_bytes())


def test_a_damaged_checkpoint_for_people(run, tmp_path):
    history = History(tmp_path)
    path = next(file.path for file in history.log.index.files() if file.path)
    (tmp_path / path).write_bytes(b"")
    code, text = run("verify", "-f", "table", place=tmp_path)
    assert code == 1
    assert f"{path} is damaged: it is torn" in text
    assert "1 DAMAGED: " in text


def test_after_a_sweep_everything_kept_is_there_and_late_rows_remain(run, tmp_path):
    history = History(tmp_path)
    strays = [Attempt(5, 0, 2, 0, 3).path(what) for what in ("deltas", "late")]
    for stray in strays:
        history.place.write(stray, b"leaving")
    assert json.loads(run("verify", place=tmp_path)[1])["unnamed"] == 2
    assert late_rows(run, tmp_path) == history.late
    gone = sweep(history.place, history.log, keep=4)
    assert set(strays) <= set(gone)
    assert len(gone) > 50
    assert history.log.first_version() > 23
    assert json.loads(run("verify", place=tmp_path)[1])["ok"]
    for version in range(VERSIONS - 4, VERSIONS):
        rows = [json.loads(line) for line in run("read", "0", "--version", version, place=tmp_path)[1].splitlines()]
        assert {row["word"]: row["n"] for row in rows} == {key: n for (key,), n in history.after[version][0].items()}
    assert late_rows(run, tmp_path) == history.late
    assert sweep(history.place, history.log, keep=4) == []
    assert any("side/" in path for path in sweep(history.place, history.log, keep=4, side_from=20))
    assert late_rows(run, tmp_path) == [row for row in history.late if row["version"] >= 20]


def late_rows(run, place):
    return [json.loads(line) for line in run("read", "--side", "late", place=place)[1].splitlines()]


def test_a_sweep_that_was_interrupted_shows_no_late_row_twice(run, tmp_path, monkeypatch):
    history = History(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Location, "delete", lambda self, paths: None)
        sweep(history.place, history.log, keep=1)
    assert late_rows(run, tmp_path) == history.late
    again = Log.open(history.place)
    again.claim("box", 8)
    sweep(history.place, again, keep=1)
    assert late_rows(run, tmp_path) == history.late
