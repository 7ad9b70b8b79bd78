"""Late and dead rows of old versions: few files, every row once, whenever a sweep ends, and only as old as wanted."""

import random

import pyarrow as pa
import pytest

from meander.errors import Damaged
from meander.store import side
from meander.store.entries import Commit, OperatorCommit
from meander.store.files import Attempt, store_side
from meander.store.identity import Identity
from meander.store.location import Location
from meander.store.manifest import Log
from meander.store.reader import Reader
from meander.store.retention import sweep
from meander.store.verify import verify

OPERATOR = {"operator": "count", "key": [["k", "int64"]], "tables": {}, "options": {}}
SCHEMA = pa.schema([("k", pa.int64()), ("version", pa.string())])
EVERY, FAN_IN = 8, 4


@pytest.fixture(autouse=True)
def _small_levels(monkeypatch):
    monkeypatch.setattr(side, "FAN_IN", FAN_IN)


class Aside:
    """A checkpoint whose versions set rows aside: two workers late ones, one of them dead ones too."""

    def __init__(self, root):
        self.place = Location.of(root)
        Identity.of(4, [OPERATOR, OPERATOR], id="id").settle(self.place)
        self.log = Log.open(self.place)
        self.epoch = self.log.claim("host", 1)

    def commit(self, rows=None):
        version = self.log.index.version + 1
        parts = []
        for operator in range(2):
            files = []
            for worker in range(2):
                for kind in ("late", "dead") if worker else ("late",):
                    table = rows or pa.table([[version], [f"{operator}{worker}"]], schema=SCHEMA)
                    path = Attempt(version, operator, worker, self.epoch, 0).path(kind)
                    files.append(store_side(self.place, path, table, worker, kind))
            parts.append(OperatorCommit(None, (0,) * 4, side=tuple(files)))
        self.log.append(Commit(version, version, 0, "q", "o", tuple(parts)))

    def run(self, versions, retain_side=None, keep=2):
        for _ in range(versions):
            self.commit()
            last = self.log.index.version
            if last % EVERY == EVERY - 1:
                sweep(self.place, self.log, keep, side_from=None if retain_side is None else last - retain_side + 1)

    def rows(self, kind):
        """Number, operator and worker of each row, from the checkpoint alone."""
        tables = Reader.open(self.place.root).side(kind)
        return [(row["k"], row["operator"], row["version"][1]) for rows in tables for row in rows.to_pylist()]

    def is_whole(self, first=0):
        versions = range(first, self.log.index.version + 1)
        late = [(version, operator, worker) for version in versions for operator in range(2) for worker in "01"]
        dead = [(version, operator, "1") for version in versions for operator in range(2)]
        return sorted(self.rows("late")) == late and sorted(self.rows("dead")) == dead

    @property
    def files(self):
        return self.place.list("side")


@pytest.fixture
def aside(tmp_path):
    return Aside(tmp_path)


def test_many_versions_are_few_files_and_every_row_is_there_once_and_in_order(aside):
    aside.run(200)
    assert aside.is_whole()
    # Of each operator and kind at most three files of each of four levels; then those that the log still names.
    assert len(aside.files) <= 4 * 4 * (FAN_IN - 1) + 6 * (EVERY + 16)
    for operator in range(2):
        numbers = [number for number, at, _ in aside.rows("late") if at == operator]
        assert numbers == sorted(numbers), "oldest first"
    (piece,) = [rows for rows in Reader.open(aside.place.root).side("late", operator=1, version=70) if rows.num_rows]
    assert piece.to_pylist() == [
        {"operator": 1, "k": 70, "version": "10"},
        {"operator": 1, "k": 70, "version": "11"},
    ], "a column of the user's keeps its name"


def test_rows_of_dropped_versions_that_wait_to_be_merged_are_no_leftovers(aside, monkeypatch):
    monkeypatch.setattr(side, "FAN_IN", 1000)
    aside.run(10 * EVERY)
    assert aside.log.first_version() > 0
    assert verify(aside.place).unnamed == 0
    stray = Attempt(aside.log.index.version, 0, 1, aside.epoch, 7).path("late")
    aside.place.write(stray, b"leaving")
    assert verify(aside.place).unnamed == 1


def test_rows_that_are_too_old_go(aside):
    counts = []
    for _ in range(4):
        aside.run(100, retain_side=60)
        last = aside.log.index.version
        for kind in ("late", "dead"):
            numbers = [number for number, _, _ in aside.rows(kind)]
            assert last - 2 * (60 + EVERY) <= min(numbers) <= last - 60 + 1
            assert {*numbers} == {*range(min(numbers), last + 1)}
        counts.append(sum("-v" in name for name in aside.files))
    assert max(counts) <= 4 * 3 * (FAN_IN - 1), "three levels are enough for so many versions, at any age"


class Interrupted(Exception):
    pass


def test_a_sweep_may_end_after_any_write_and_any_delete(tmp_path, monkeypatch):
    # Of each kind enough files for several levels, swept at once, with an end that is cut off.
    at, whole = 0, False
    monkeypatch.setattr(side, "FAN_IN", 2)
    while not whole:
        aside = Aside(tmp_path / str(at))
        for _ in range(20):
            aside.commit()
        left = [at]

        def counted(act, left=left):
            def run(self, *arguments):
                if left[0] == 0:
                    raise Interrupted
                left[0] -= 1
                act(self, *arguments)

            return run

        def one_by_one(self, paths, delete=Location.delete, counted=counted):
            for path in [paths] if isinstance(paths, str) else paths:
                counted(delete)(self, path)

        with monkeypatch.context() as patch:
            patch.setattr(Location, "write", counted(Location.write))
            patch.setattr(Location, "delete", one_by_one)
            try:
                sweep(aside.place, aside.log, 1)
                whole = True
            except Interrupted:
                pass
        assert aside.is_whole()
        aside.log = Log.open(aside.place)
        aside.log.claim("host", 2)
        aside.run(EVERY)
        assert aside.is_whole()
        at += 1 if at < 12 else 11


def test_a_column_more_begins_another_file(aside):
    aside.run(40)
    wider = pa.table({"k": [7], "version": ["01"], "more": [1.5]})
    for _ in range(40):
        aside.commit(wider)
    sweep(aside.place, aside.log, 1)
    columns = [rows.column_names for rows in Reader.open(aside.place.root).side("dead", operator=0)]
    assert ["operator", "k", "version"] in columns
    assert columns[-1] == ["operator", "k", "version", "more"]
    assert sum(rows.num_rows for rows in Reader.open(aside.place.root).side("dead", operator=0)) == 80


def test_large_files_are_not_written_again_and_again(aside, monkeypatch):
    monkeypatch.setattr(side, "FULL_BYTES", 400)
    aside.run(60)
    assert aside.is_whole()
    full = {name for name in aside.files if f"-{side.FULL}-" in name}
    assert full
    written = []
    real = Location.write
    monkeypatch.setattr(Location, "write", lambda self, path, data: (written.append(path), real(self, path, data)))
    aside.run(60)
    assert not {f"side/{name}" for name in full} & set(written)
    assert full <= set(aside.files)


@pytest.mark.parametrize("seed", range(3))
def test_large_versions_between_small_ones_are_kept(aside, monkeypatch, seed):
    monkeypatch.setattr(side, "FULL_BYTES", 4000)
    written = []
    real = Location.write
    monkeypatch.setattr(Location, "write", lambda self, path, data: (written.append(path), real(self, path, data)))
    rng = random.Random(seed)
    expected = []
    for version in range(12 * EVERY):
        count = rng.choice([1, 1, 1, 1, 1, 10, 300])
        aside.commit(pa.table([[version] * count, ["01"] * count], schema=SCHEMA))
        expected += [version] * count
        if version % EVERY == EVERY - 1:
            sweep(aside.place, aside.log, 2)
    levels = {file.level for file in side.side_files(aside.place)}
    assert side.FULL in levels, "it has made what it is about"
    assert len(written) < 4 * 6 * len(set(expected)), "a row is written a few times"
    for operator in range(2):
        rows = [rows["k"].to_pylist() for rows in Reader.open(aside.place.root).side("dead", operator)]
        assert sorted(number for numbers in rows for number in numbers) == expected


def test_a_reader_that_is_overtaken_by_a_sweep_reads_again(aside, monkeypatch):
    aside.run(100)
    reader = Reader.open(aside.place.root)
    swept = []
    real = Location.read

    def read(self, path):
        if path.startswith("side/") and not swept:
            swept.append(path)
            for _ in range(40):
                aside.commit()
            sweep(aside.place, aside.log, 1)
        return real(self, path)

    monkeypatch.setattr(Location, "read", read)
    rows = [row["k"] for rows in reader.side("dead", operator=0) for row in rows.to_pylist()]
    assert rows == list(range(140))
    monkeypatch.undo()


def test_a_flipped_bit_of_a_merged_file_is_noticed(aside):
    aside.run(40)
    merged = [name for name in aside.files if "-v" in name]
    assert not verify(aside.place).damaged
    data = bytearray(aside.place.read(f"side/{merged[0]}").to_pybytes())
    data[len(data) // 3] ^= 1
    aside.place.write(f"side/{merged[0]}", data)
    with pytest.raises(Damaged, match=f"side/{merged[0]} is torn or has been changed"):
        aside.rows(merged[0].split(".")[1])
    (sentence,) = verify(aside.place).damaged
    assert merged[0] in sentence
