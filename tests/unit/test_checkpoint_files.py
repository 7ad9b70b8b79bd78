"""Files of a checkpoint: their names, inline or on disk, here and elsewhere."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import fs as pafs

from meander.errors import Damaged, Exists, InvalidOption
from meander.store import statefile
from meander.store.entries import Commit, FileRef, OperatorCommit, SnapshotRef
from meander.store.files import Attempt, attempt_of, read_side, read_state, store, store_side
from meander.store.index import Index
from meander.store.location import Location
from meander.store.manifest import Log
from meander.store.retention import sweep
from meander.store.verify import verify

BINS = 64
ROWS = pa.table(
    {"__bin": pa.array([1, 1, 5, 60], pa.int32()), "__deleted": [False] * 4, "k": [1, 2, 3, 4], "v": list("abcd")}
)
PATH = Attempt(3, 0, 1, 7, 2).path("deltas")


def make():
    return statefile.write({"t": ROWS}, BINS)


@pytest.fixture(params=["local", "elsewhere"])
def place(request, tmp_path):
    if request.param == "local":
        return Location.of(tmp_path)
    tree = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())
    made = {}

    def exclusive(path, data):
        if made.setdefault(path, data) is not data:
            raise Exists(path)
        tree.create_dir(f"ck/{path.rpartition('/')[0]}", recursive=True)
        with tree.open_output_stream(f"ck/{path}") as file:
            file.write(data)

    return Location.of("ck", filesystem=tree, exclusive=exclusive)


@pytest.mark.parametrize("inline_bytes", [0, 10**6])
def test_a_reference_is_read_alike_inline_or_from_disk(place, inline_bytes):
    ref = store(place, PATH, make(), 1, inline_bytes)
    assert (ref.path is None, ref.inline is None) == (bool(inline_bytes), not inline_bytes)
    assert place.exists(PATH) == (not inline_bytes)
    again = FileRef.from_json(ref.to_json())
    assert again == ref
    assert again.members() == [1, 5, 60]
    assert read_state(place, again)["t"].equals(ROWS)
    assert read_state(place, again, [5, 60, 61])["t"].to_pylist() == ROWS.slice(2).to_pylist()
    assert read_state(place, again, np.array([1]))["t"]["k"].to_pylist() == [1, 2]


@pytest.mark.parametrize("inline_bytes", [0, 10**6])
def test_side_outputs_are_plain_arrow_files(place, inline_bytes):
    path = Attempt(3, 0, 1, 7, 2).path("late")
    ref = store_side(place, path, ROWS, 1, "late", inline_bytes)
    again = FileRef.from_json(ref.to_json())
    assert (again, again.kind, again.rows) == (ref, "late", 4)
    assert read_side(place, again).equals(ROWS)
    if not inline_bytes:
        assert pa.ipc.open_file(place.read(path)).read_all().equals(ROWS)
        place.write(path, place.read(path).to_pybytes()[:-1])
        with pytest.raises(Damaged, match=f"{path} is torn or has been changed"):
            read_side(place, ref)


def test_another_whole_file_under_the_same_name_is_noticed(place):
    ref = store(place, PATH, make(), 1)
    store(place, PATH, statefile.write({"t": ROWS.slice(1)}, BINS), 1)
    for bins in (None, [1]):
        with pytest.raises(Damaged, match=f"{PATH} is damaged: it is not the file that the manifest names"):
            read_state(place, ref, bins)
    place.delete(PATH)
    with pytest.raises(Damaged, match=f"{PATH} .* is missing"):
        read_state(place, ref)


def test_a_reference_has_a_path_or_contents():
    with pytest.raises(ValueError, match="either a path or its contents"):
        FileRef(0, 1, 1, 1)
    with pytest.raises(ValueError, match="either a path or its contents"):
        FileRef(0, 1, 1, 1, "deltas/x", b"x")


@pytest.mark.parametrize(
    ("path", "version"),
    [
        ("deltas/v000000000003-s0-w1-7.2.state", 3),
        ("snapshots/v000000000003-s0-w1-7.2.state.0a1b2c3d4e5f.tmp", 3),
        ("side/v000000000012-s1-w0-0.0.dead.arrow", 12),
        ("deltas/notes.txt", None),
        ("other/v000000000003-s0-w1-7.2.state", None),
        ("manifests/000000000003.json", None),
    ],
)
def test_who_wrote_a_file_is_in_its_name(path, version):
    found = attempt_of(path)
    assert (found.version if found else None) == version
    for what in ("deltas", "snapshots", "late", "dead"):
        attempt = Attempt(123456789, 2, 30, 4, 5)
        assert attempt_of(attempt.path(what)) == attempt


def test_tables_that_make_no_state_file():
    for wrong in (
        ROWS.take([2, 0, 1]),
        ROWS.drop_columns(["__bin"]),
        ROWS.append_column("d", ROWS["v"].dictionary_encode()),
    ):
        with pytest.raises(InvalidOption, match="table 't'"):
            statefile.write({"t": wrong}, BINS)
    for bins in (60, 32):
        with pytest.raises(InvalidOption, match="table 't' is not sorted by bin, or has a bin that is none of"):
            statefile.write({"t": ROWS}, bins)


def test_a_snapshot_says_that_a_bin_is_empty():
    made = statefile.write({"t": ROWS}, BINS, covers=[1, 5, 60, 7])
    ref = FileRef.of(made.info, 0, inline=made.data.to_pybytes())
    assert ref.members() == [1, 5, 7, 60]
    operator = OperatorCommit(None, (0,) * BINS, (store_delta([7, 8]),))
    index = Index.empty().after(Commit(0, 0, 0, "q", "o", (operator,)))
    assert [part.bins for part in index.parts(0, [7, 8])] == [[7, 8]]
    snapshot = replace(operator, deltas=(), snapshots=(SnapshotRef(ref, 0),))
    after = index.after(Commit(1, 1, 0, "q", "o", (snapshot,)))
    assert [(part.file.path, part.bins) for part in after.parts(0, [7, 8])] == [(None, [7]), ("deltas/d", [8])]
    assert after.chains(0)[[7, 8]].tolist() == [0, 1]
    assert after.snapshot_versions(0)[[7, 8]].tolist() == [0, -1]


def store_delta(bins):
    made = statefile.write({"t": pa.table({"__bin": pa.array(bins, pa.int32())})}, BINS)
    return FileRef.of(made.info, 0, path="deltas/d")


def test_a_few_bins_cost_a_few_reads(place):
    rows = 400_000
    table = pa.table({"__bin": pa.array(np.arange(rows) * BINS // rows, pa.int32()), "x": np.arange(rows)})
    ref = store(place, PATH, statefile.write({"t": table}, BINS), 0)
    assert ref.bytes > 4_000_000

    with place.open_input(PATH) as file:
        data = file.read_buffer()
    read = []

    class Source:
        closed = False

        def __init__(self):
            self.at = 0

        def size(self):
            return data.size

        def seek(self, to, whence=0):
            self.at = to if whence == 0 else data.size + to
            return self.at

        def tell(self):
            return self.at

        def read(self, count=-1):
            found = data.slice(self.at, count).to_pybytes()
            self.at += len(found)
            read.append(len(found))
            return found

        def readable(self):
            return True

        def seekable(self):
            return True

        def close(self):
            pass

        def flush(self):
            pass

    found = statefile.read(pa.PythonFile(Source(), mode="r"), [17], expected=ref.checksum)["t"]
    assert found.equals(table.filter(pa.compute.equal(table["__bin"], 17)))
    assert sum(read) < ref.bytes / 2
    assert len(read) <= 4


def test_the_whole_life_of_a_checkpoint_elsewhere(place):
    log = Log.open(place)
    epoch = log.claim("here", 1)
    for version in range(40):
        attempt = Attempt(version, 0, 0, epoch, 0)
        delta = store(place, attempt.path("deltas"), make(), 0)
        log.append(Commit(version, version, 0, "q", "o", (OperatorCommit(None, (0,) * BINS, (delta,)),)))
    assert Log.open(place).last == log.last
    assert [part.bins for part in Log.open(place).index.parts(0, [5])] == [[5]] * 40
    made = statefile.write({"t": ROWS}, BINS, covers=range(BINS))
    snapshot = SnapshotRef(store(place, Attempt(40, 0, 0, epoch, 0).path("snapshots"), made, 0), 39)
    operator = OperatorCommit(None, (0,) * BINS, (), (snapshot,))
    log.append(Commit(40, 40, 0, "q", "o", (operator,)))
    assert len(sweep(place, log, keep=1)) > 40
    assert [part.file.path for part in Log.open(place).index.parts(0, [5])] == [snapshot.file.path]
    assert verify(place).damaged == ["meander.json is missing"]
