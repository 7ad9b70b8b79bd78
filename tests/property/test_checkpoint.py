"""State files and the index against plain recomputation, and every bit of every file against being flipped."""

import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from effort import examples
from meander.errors import Damaged
from meander.store import statefile
from meander.store.bitmap import bitmap, from_text, members, to_text
from meander.store.entries import Commit, FileRef, OperatorCommit, SnapshotRef
from meander.store.files import Attempt, seal, unseal
from meander.store.index import Index
from meander.store.location import Location
from meander.store.manifest import Log
from meander.store.retention import garbage

TYPES = {
    "__deleted": (pa.bool_(), st.booleans()),
    "whole": (pa.int64(), st.none() | st.integers(-(2**63), 2**63 - 1)),
    "text": (pa.string(), st.none() | st.text(max_size=5)),
    "real": (pa.float64(), st.none() | st.floats(allow_nan=False)),
}


@st.composite
def tables(draw, bins):
    columns = ["__bin", *draw(st.lists(st.sampled_from(sorted(TYPES)), unique=True))]
    at = sorted(draw(st.lists(st.integers(0, bins - 1), max_size=40)))
    arrays = [pa.array(at, pa.int32())]
    for name in columns[1:]:
        kind, values = TYPES[name]
        arrays.append(pa.array(draw(st.lists(values, min_size=len(at), max_size=len(at))), kind))
    table = pa.table(arrays, columns)
    if len(at) > 1 and draw(st.booleans()):  # several chunks, and arrays that start in the middle of their buffers
        cut = draw(st.integers(1, len(at) - 1))
        table = pa.concat_tables([table.slice(0, cut), table.slice(cut)])
    return table


@st.composite
def files(draw):
    bins = draw(st.sampled_from([1, 2, 16, 64]))
    names = draw(st.lists(st.sampled_from(["counts", "timers", "ä"]), unique=True, max_size=3))
    return bins, {name: draw(tables(bins)) for name in names}


def as_file(data, tmp):
    path = tmp / "x.state"
    path.write_bytes(data)
    return pa.OSFile(str(path))


@examples(150)
@given(files(), st.sampled_from([64, 1 << 20]), st.booleans(), st.data())
def test_what_was_written_is_read_whole_or_by_bins(tmp_path_factory, given_, piece_bytes, on_disk, data):
    bins, sections = given_
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statefile, "PIECE_BYTES", piece_bytes)
        made = statefile.write(sections, bins)
    source = as_file(made.data, tmp_path_factory.mktemp("s")) if on_disk else made.data
    everything = statefile.read(source, expected=made.info.checksum)
    assert list(everything) == list(sections)
    assert all(everything[name].equals(sections[name]) for name in sections)
    wanted = data.draw(st.sets(st.integers(0, bins - 1)))
    some = statefile.read(source, wanted)
    for name, table in sections.items():
        rows = [row for row in table.to_pylist() if row["__bin"] in wanted]
        assert some[name].schema == table.schema
        assert some[name].to_pylist() == rows
    assert made.info.bytes == made.data.size
    assert made.info.rows == sum(table.num_rows for table in sections.values())
    touched = {j for table in sections.values() for j in table["__bin"].to_pylist()}
    assert set(members(made.info.bins).tolist()) == touched


@examples(60)
@given(files(), st.integers(0, 10**6), st.integers(0, 7), st.sampled_from([64, 1 << 20]), st.booleans())
def test_every_flipped_bit_of_a_state_file_is_noticed(tmp_path_factory, given_, at, bit, piece_bytes, on_disk):
    bins, sections = given_
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statefile, "PIECE_BYTES", piece_bytes)
        data = bytearray(statefile.write(sections, bins).data.to_pybytes())
    data[at % len(data)] ^= 1 << bit
    source = as_file(data, tmp_path_factory.mktemp("s")) if on_disk else bytes(data)
    with pytest.raises(Damaged, match="deltas/x is"):
        statefile.read(source, name="deltas/x")


@examples(60)
@given(files(), st.integers(0, 10**6), st.binary(max_size=30))
def test_every_torn_state_file_is_noticed(given_, at, rest):
    bins, sections = given_
    data = statefile.write(sections, bins).data.to_pybytes()
    torn = data[: at % len(data)] + rest
    if torn != data:
        with pytest.raises(Damaged, match="deltas/x is"):
            statefile.read(torn, name="deltas/x")


def test_every_single_bit_of_one_state_file():
    table = pa.table({"__bin": pa.array([0, 3], pa.int32()), "text": ["a", None]})
    data = statefile.write({"t": table}, 4).data.to_pybytes()
    for at in range(len(data)):
        for bit in (0, 7):
            wrong = bytearray(data)
            wrong[at] ^= 1 << bit
            with pytest.raises(Damaged):
                statefile.read(bytes(wrong))


@examples(200)
@given(
    st.dictionaries(st.text(max_size=4), st.integers() | st.text(max_size=9)), st.integers(0, 10**6), st.integers(0, 7)
)
def test_every_flipped_bit_and_every_torn_end_of_a_sealed_object_is_noticed(fields, at, bit):
    fields.pop("checksum", None)
    fields[""] = 1
    data = seal(fields)
    assert unseal(data, "x") == fields
    assert set(json.loads(data)) == {*fields, "checksum"}
    wrong = bytearray(data)
    wrong[at % len(data)] ^= 1 << bit
    for changed in (bytes(wrong), data[: at % len(data)], data + b"\n"):
        with pytest.raises(Damaged, match="m.json is torn or has been changed"):
            unseal(changed, "m.json")


@given(st.sets(st.integers(0, 99)), st.integers(100, 130))
def test_bitmaps_keep_their_members(wanted, bins):
    bits = bitmap(sorted(wanted), bins)
    assert set(members(bits).tolist()) == wanted
    assert from_text(to_text(bits)) == bits


def test_a_full_bitmap_is_a_short_text():
    assert to_text(bitmap(range(4096), 4096)) == "*512"
    assert from_text("*512") == bitmap(range(4096), 4096)
    assert from_text(to_text(b"")) == b""


@st.composite
def histories(draw):
    """Commits of one or two operators; deltas of a version share no bin, snapshots may be older than the commit."""
    bins, operators = draw(st.sampled_from([4, 16])), draw(st.integers(1, 2))
    commits = []
    for version in range(draw(st.integers(0, 25))):
        parts = []
        for operator in range(operators):
            owner = tuple(draw(st.lists(st.integers(0, 2), min_size=bins, max_size=bins)))
            touched = draw(st.sets(st.integers(0, bins - 1)))
            deltas, snapshots = [], []
            for worker in range(3):
                mine = [j for j in touched if owner[j] == worker]
                if mine:
                    deltas.append(ref(version, operator, worker, "deltas", mine, bins))
            for worker in range(draw(st.sampled_from([0, 0, 1, 2]))):
                covered = draw(st.sets(st.integers(0, bins - 1)))
                of = version - draw(st.integers(0, min(version + 1, 3)))
                file = ref(version, operator, worker, "snapshots", sorted(covered), bins)
                snapshots.append(SnapshotRef(file, of))
            parts.append(OperatorCommit(version * 1000, owner, tuple(deltas), tuple(snapshots)))
        commits.append(Commit(version, version, 0, "q", "o", tuple(parts)))
    return bins, operators, commits


def ref(version, operator, worker, what, mine, bins):
    path = Attempt(version, operator, worker, 0, 0).path(what)
    if (version + worker) % 3 == 0:
        return FileRef(worker, 1, len(mine), version, inline=path.encode(), bins=bitmap(mine, bins))
    return FileRef(worker, 1, len(mine), version, path, bins=bitmap(mine, bins))


def name(file):
    return file.path or file.inline.decode()


def needed(commits, operator, j):
    """Which files rebuild bin j, from the whole history: newest snapshot, then every later delta that speaks of it."""
    parts = [(commit.version, commit.operators[operator]) for commit in commits]
    best = max((s.version for _, part in parts for s in part.snapshots if j in s.file.members()), default=-1)
    first = {name(s.file) for _, part in parts for s in part.snapshots if j in s.file.members() and s.version == best}
    chain = [name(d) for version, part in parts for d in part.deltas if version > best and j in d.members()]
    return first, chain


@examples(30)
@given(histories(), st.data())
def test_the_index_finds_what_the_whole_history_says(history, data):
    bins, operators, commits = history
    index = Index.empty()
    for commit in commits:
        index = index.after(commit)
    again = Index.from_json(json.loads(json.dumps(index.to_json())))
    assert again.to_json() == index.to_json()
    if not commits:
        assert index.parts(0, range(bins)) == []
        return
    for found in (index, again):
        for operator in range(operators):
            chains = []
            for j in range(bins):
                snapshots, chain = needed(commits, operator, j)
                parts = found.parts(operator, [j])
                assert all(mine == [j] for _, mine in parts)
                names = [name(file) for file, _ in parts]
                assert names[len(names) - len(chain) :] == chain
                rest = names[: len(names) - len(chain)]
                assert (len(rest) == 1 and rest[0] in snapshots) if snapshots else rest == []
                chains.append(len(chain))
            assert found.chains(operator).tolist() == chains
            assert found.longest_chain(operator) == max(chains)
            wanted = sorted(data.draw(st.sets(st.integers(0, bins - 1))))
            together = found.parts(operator, wanted)
            for j in wanted:
                alone = [name(file) for file, _ in found.parts(operator, [j])]
                assert [name(file) for file, mine in together if j in mine] == alone
            assert {name(file) for file in found.files(operator)} == {
                name(file) for file, _ in found.parts(operator, range(bins))
            }


@examples(8)
@given(histories(), st.data())
def test_a_log_read_again_is_the_log_that_was_written(tmp_path_factory, history, data):
    _, _, commits = history
    place = Location.of(tmp_path_factory.mktemp("log"))
    log = Log.open(place)
    log.claim("here", 1)
    for commit in commits:
        for _ in range(data.draw(st.sampled_from([0, 0, 0, 1, 20]))):
            log = Log.open(place)
            log.claim("here", 2)
        log.append(commit)
    again = Log.open(place)
    assert again.last == log.last == (commits[-1] if commits else None)
    assert again.index.to_json() == log.index.to_json()
    assert again.next_sequence == log.next_sequence
    if commits:
        version = data.draw(st.integers(0, len(commits) - 1))
        assert again.commits(version) == commits[version:]
        past = again.at(version)
        index = Index.empty()
        for commit in commits[: version + 1]:
            index = index.after(commit)
        assert past.commit == commits[version]
        assert past.index.to_json() == index.to_json()


@examples(15)
@given(histories(), st.data())
def test_garbage_is_all_that_no_kept_version_needs_and_nothing_else(history, data):
    bins, operators, commits = history
    if not commits:
        return
    kept = data.draw(st.integers(0, len(commits) - 1))
    last = commits[-1].version
    named = {file.path for commit in commits for file in commit.files() if file.path}
    strays = {
        Attempt(version, 0, 0, 9, 9).path(what) for version in (0, last, last + 1) for what in ("deltas", "snapshots")
    }
    index = Index.empty()
    for commit in commits[: kept + 1]:
        index = index.after(commit)
    pinned = set(data.draw(st.lists(st.sampled_from(sorted(named)), max_size=2))) if named else set()
    paths = [*named, *strays, "deltas/notes.txt"]
    found = garbage(paths, index=index, commits=commits[kept + 1 :], last=last, pinned=pinned)
    wanted = set()
    for version in range(kept, len(commits)):
        for operator in range(operators):
            for j in range(bins):
                # another snapshot of the same version may stand for the one that the index chose
                snapshots, chain = needed(commits[: version + 1], operator, j)
                wanted |= set(chain)
                assert not snapshots or snapshots - set(found)
    assert not wanted & set(found)
    assert not pinned & set(found)
    assert "deltas/notes.txt" not in found
    assert {path for path in strays if f"v{last + 1:012d}" in path} & set(found) == set()
    assert {path for path in strays if f"v{last + 1:012d}" not in path} <= set(found)
    later = {file.path for commit in commits[kept + 1 :] for file in commit.files()}
    assert set(found) == set(paths) - {"deltas/notes.txt"} - pinned - later - {file.path for file in index.files()} - {
        path for path in strays if f"v{last + 1:012d}" in path
    }
    assert np.all(np.diff([found.index(path) for path in found]) > 0)
