"""State in the cases that a random history would hardly meet: collisions, full disks, killed processes, many bins."""

import errno
import os
import shutil
import signal
import subprocess
import sys
from functools import partial

import numpy as np
import pyarrow as pa
import pytest

from meander.errors import InvalidOption, NoSpace
from meander.kernel import Kernel
from meander.route.columns import whole_column
from meander.route.keys import Keys, KeyType
from meander.state import base_kernel, binfiles, columns, extents, overlay, records_kernel, write_kernel
from meander.state.base import Base
from meander.state.binfiles import Layout
from meander.state.columns import Probe, probe
from meander.state.holding import Holding
from meander.state.spec import TableSpec
from meander.state.table import Table

NUMBERS = KeyType((("k", pa.int64()),))
TEXTS = KeyType((("k", pa.string()),))
COUNTS = TableSpec("counts", NUMBERS, (("n", pa.int64()),))
NAMES = TableSpec("names", NUMBERS, (("s", pa.string()),))


def encoded(ids, type_=NUMBERS):
    return type_.encode([pa.array(ids, type_.types[0])])


def count(holding, ids, by=1):
    """One batch that counts keys, applied."""
    table = holding.begin()["counts"]
    rows = table.touch(encoded(ids))
    table.add("n", rows, by)
    table.mark(rows)
    holding.advance(holding.version + 1, {"counts": table.delta()})


def counted(holding):
    table = holding.extract(np.flatnonzero(holding.held))["counts"]
    return dict(zip(table["k"].to_pylist(), table["n"].to_pylist(), strict=True))


def opened(path, bins=16, specs=(COUNTS,)):
    holding = Holding.open(path, list(specs), bins)
    if holding.version < 0:
        holding.install(np.arange(bins), [], 0)
    return holding


def test_kernels_and_layout_name_the_same_fields():
    for module in (base_kernel, write_kernel):
        for name in ("HELD", "ROWS", "HIGH", "GAP", "CAPACITY", "START", "WORDS", "HEAP", "HEAP_WORDS", "USED"):
            assert getattr(module, name) == getattr(binfiles, name), name
        assert (module.GARBAGE, module.LOWEST, module.BLOCK) == (binfiles.GARBAGE, binfiles.LOWEST, binfiles.BLOCK)
    assert write_kernel.NEVER == binfiles.NEVER


@pytest.mark.parametrize("type_", [NUMBERS, TEXTS], ids=["numbers", "texts"])
def test_keys_of_equal_hash_are_kept_apart(tmp_path, type_, monkeypatch):
    """Every key has the same 64-bit hash: only equality tells them apart, in the overlay and in the base."""
    for name in ("hash_words", "pack_keys"):
        monkeypatch.setattr(columns, name, partial(_of_equal_hashes, getattr(columns, name)))
    monkeypatch.setattr(KeyType, "encode", lambda self, columns: _with_equal_hashes(self, whole_column(columns[0])))
    spec = TableSpec("t", type_, (("n", pa.int64()),))
    base = Base.open(tmp_path, spec, 4)
    base.install(range(4))
    ids = list(range(100)) if type_ is NUMBERS else [f"{k}" * (k % 5) + f"key {k}" for k in range(100)]
    oracle = {}
    for batch in (ids[:60], ids[30:], ids[::3], ids[::7]):
        table = Table(base, spec, 4)
        rows = table.touch(type_.encode([pa.array(batch + batch[:5], type_.types[0])]))
        assert len(set(rows.tolist())) == len(batch)
        table.add("n", rows[: len(batch)], 1)
        table.mark(rows)
        gone = rows[: len(batch) : 5]
        table.discard(gone)
        base.apply(table.delta())
        for place, key in enumerate(batch):
            oracle[key] = oracle.get(key, 0) + 1
            if place % 5 == 0:
                del oracle[key]
        found = base.extract(range(4))
        assert dict(zip(found["k"].to_pylist(), found["n"].to_pylist(), strict=True)) == oracle
        keys = type_.encode([pa.array(ids, type_.types[0])])
        handles = base.find(probe(keys, 4, base.secret))
        assert (handles >= 0).tolist() == [key in oracle for key in ids]


def _of_equal_hashes(kernel, *options):
    kernel(*options)
    options[-1].fill(0xC0FFEE_0000_0000_00)


_plain_encode = KeyType.encode


def _with_equal_hashes(type_, column):
    keys = _plain_encode(type_, [column])
    same = np.full(len(keys), 0xC0FFEE_0000_0000_00, np.uint64)
    return Keys(type_, keys.words, keys.offsets, keys.data, same)


def test_equal_marks_in_the_index_with_different_hashes(tmp_path):
    """The 32 bits that the index keeps are equal, the keys are not; some keys sought are not there at all."""
    spec = TableSpec("t", NUMBERS)
    base = Base.open(tmp_path, spec, 1)
    base.install([0])
    table = Table(base, spec, 1)
    ids = np.arange(3000)
    table.mark(table.touch(encoded(ids)))
    base.apply(table.delta())
    sought = probe(encoded(np.append(ids, -1 - ids)), 1, base.secret)
    # The hash of a key that is there, the number of one that is not.
    handles = base.find(Probe(np.tile(sought.hashes[:3000], 2), sought.words, sought.heap))
    assert (handles[:3000] >= 0).all()
    assert (handles[3000:] == -1).all()
    assert sorted(handles[:3000].tolist()) == list(range(3000))


@pytest.mark.parametrize("bins", [1, 64, 65536])
def test_any_number_of_bins(tmp_path, bins):
    holding = opened(tmp_path, bins)
    rng = np.random.default_rng(bins)
    oracle = {}
    for _ in range(3):
        ids = rng.integers(0, 4000, 6000)
        count(holding, ids)
        for each in ids.tolist():
            oracle[each] = oracle.get(each, 0) + 1
    assert counted(holding) == oracle
    assert holding.rows().sum() == len(oracle)
    assert holding.bytes().sum() == holding.bases["counts"].bytes_of(range(bins)).sum()
    holding.close()
    assert counted(opened(tmp_path, bins)) == oracle


def test_empty_batches_change_nothing(tmp_path):
    holding = opened(tmp_path)
    count(holding, [])
    assert (holding.version, counted(holding)) == (1, {})
    holding.advance(2, {})
    table = holding.begin()["counts"]
    assert table.delta().num_rows == 0
    assert table.touch(encoded([])).size == 0
    assert table.size == 0
    holding.advance(3, {"counts": table.delta()})
    assert holding.bytes().sum() == 0
    assert holding.extract([])["counts"].num_rows == 0


def test_what_was_absent_and_is_discarded_does_not_appear(tmp_path):
    holding = opened(tmp_path)
    count(holding, [1, 2])
    table = holding.begin()["counts"]
    rows = table.touch(encoded([1, 3, 4]))
    table.mark(rows[[1]])
    table.discard(rows)
    delta = table.delta()
    assert delta["k"].to_pylist() == [1]
    assert delta["__deleted"].to_pylist() == [True]
    assert delta["n"].to_pylist() == [None]


def test_a_row_of_a_bin_that_is_not_held_is_refused(tmp_path):
    holding = opened(tmp_path)
    table = Table(None, COUNTS, 16)
    rows = table.touch(encoded(range(50)))
    table.mark(rows)
    delta = table.delta()
    holding.release([3])
    with pytest.raises(InvalidOption, match="bin 3 of table 'counts' is not held"):
        holding.bases["counts"].apply(delta)
    mine = holding.begin()["counts"]
    mine.mark(mine.touch(encoded(range(50))))
    with pytest.raises(InvalidOption, match="bin 3, which this worker does not hold"):
        mine.delta()


def test_a_delta_out_of_order_or_of_other_columns_is_refused(tmp_path):
    base = Base.open(tmp_path, COUNTS, 16)
    base.install(range(16))
    table = Table(None, COUNTS, 16)
    table.mark(table.touch(encoded(range(50))))
    delta = table.delta()
    with pytest.raises(InvalidOption, match="out of the order"):
        base.apply(delta.take(list(range(49, -1, -1))))
    with pytest.raises(InvalidOption, match="in bins that are not those"):
        base.apply(delta.set_column(0, "__bin", pa.array([5] * 50, pa.int32())))
    with pytest.raises(InvalidOption, match="needs column 'n' of int64, which is missing"):
        base.apply(delta.drop_columns("n"))
    assert base.rows_of(range(16)).sum() == 0


def test_equal_bins_do_not_grow_in_the_same_batch(tmp_path):
    """Bins get the same number of rows in each batch; growth by a factor must be spread over the batches between."""
    bins, per_batch = 256, 8
    holding = opened(tmp_path, bins)
    candidates = np.arange(400_000)
    of_bin = encoded(candidates).bins(bins)
    ordered = candidates[np.argsort(of_bin, kind="stable")]
    starts = np.searchsorted(np.sort(of_bin), np.arange(bins))
    grown = []
    for batch in range(100):
        count(holding, (ordered[starts[:, None] + np.arange(per_batch) + batch * per_batch]).ravel())
        grown.append(holding.bases["counts"].grown)
    assert set(holding.rows().tolist()) == {100 * per_batch}
    for batch in range(10, 100):
        # In a batch that adds a share s, a bin grows with probability log(1 + s) / log(1.5); twice that and a bit.
        expected = bins * np.log1p(1 / batch) / np.log(1.5)
        assert grown[batch] <= 2 * expected + 4, (batch, grown[batch], expected)


def test_a_bin_shrinks_when_its_rows_go(tmp_path):
    holding = opened(tmp_path, 1)
    count(holding, range(5000))
    full = holding.bytes()[0]
    table = holding.begin()["counts"]
    table.discard(table.touch(encoded(range(10, 5000))))
    holding.advance(holding.version + 1, {"counts": table.delta()})
    assert holding.bytes()[0] < full / 50
    assert counted(holding) == dict.fromkeys(range(10), 1)
    count(holding, range(5000))
    assert counted(holding) == {k: 2 if k < 10 else 1 for k in range(5000)}


def test_values_that_change_in_size_do_not_pile_up(tmp_path):
    """Each batch replaces every text; what is held stays within a factor of what is alive."""
    holding = opened(tmp_path, 4, [NAMES])
    rng = np.random.default_rng(3)
    for _ in range(40):
        table = holding.begin()["names"]
        rows = table.touch(encoded(range(300)))
        texts = ["x" * int(size) for size in rng.integers(0, 300, 300)]
        table.set("s", rows, pa.array(texts))
        table.mark(rows)
        holding.advance(holding.version + 1, {"names": table.delta()})
    alive = 300 * (40 + 150)
    assert holding.bytes().sum() < 5 * alive
    found = holding.extract(range(4))["names"]
    assert dict(zip(found["k"].to_pylist(), found["s"].to_pylist(), strict=True)) == dict(enumerate(texts))


def test_released_space_goes_back_and_is_used_again(tmp_path):
    holding = opened(tmp_path, 16)
    count(holding, range(200_000))
    arena = tmp_path / "counts.arena"
    full = arena.stat().st_blocks
    kept = holding.extract(range(8))
    holding.release(range(8))
    half = arena.stat().st_blocks
    assert half < 0.6 * full
    holding.install(range(8), [kept], holding.version)
    assert arena.stat().st_blocks < 1.1 * full
    assert counted(holding) == dict.fromkeys(range(200_000), 1)
    holding.reset()
    assert arena.stat().st_blocks < 0.01 * full
    assert (holding.version, holding.held.any()) == (-1, False)


def test_extents_are_used_again_without_bound(tmp_path):
    """Bins come and go for long; the file does not grow with time."""
    holding = opened(tmp_path, 16)
    count(holding, range(20_000))
    used = []
    for turn in range(30):
        mine = np.arange(turn % 5, 16, 5)
        kept = holding.extract(mine)
        holding.release(mine)
        holding.install(mine, [kept], holding.version)
        used.append((tmp_path / "counts.arena").stat().st_blocks)
    assert max(used) <= 1.5 * used[0]
    assert counted(holding) == dict.fromkeys(range(20_000), 1)


CHILD = """
import sys
from functools import partial
from pathlib import Path
import numpy as np, pyarrow as pa
sys.path.insert(0, {tests!r})
import test_state as ts
holding = ts.opened(Path({path!r}))
"""


def child(path, code):
    """Run code in a new process with `holding` open."""
    setup = CHILD.format(tests=os.path.dirname(__file__), path=str(path))  # noqa: PTH120
    return subprocess.run([sys.executable, "-c", setup + code], capture_output=True, text=True, check=False)


def test_another_process_sees_the_same_and_this_one_sees_what_it_did(tmp_path):
    holding = opened(tmp_path)
    count(holding, range(3000))
    done = child(
        tmp_path,
        "assert ts.counted(holding) == dict.fromkeys(range(3000), 1)\n"
        "for _ in range(3): ts.count(holding, range(1000, 60000))\n"
        "holding.release([2]); holding.install([2], [], holding.version)\n"
        "print(holding.version)",
    )
    assert done.stdout.strip() == "4", done.stderr
    there = encoded(range(60000)).bins(16) != 2
    wanted = {k: (k < 3000) + 3 * (k >= 1000) for k in np.arange(60000)[there].tolist()}
    assert holding.version == 4
    assert counted(holding) == wanted
    count(holding, range(60000))
    assert counted(holding) == {k: wanted.get(k, 0) + 1 for k in range(60000)}


def test_a_process_killed_in_a_change_leaves_an_empty_holding(tmp_path):
    holding = opened(tmp_path)
    count(holding, range(3000))
    holding.close()
    done = child(
        tmp_path,
        "import os, signal\n"
        "from meander.state.base import Base\n"
        "def killed(self, *rest): os.kill(os.getpid(), signal.SIGKILL)\n"
        "Base.trim = killed\n"
        "ts.count(holding, range(5000))",
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    holding = Holding.open(tmp_path, [COUNTS], 16)
    assert holding.version == -1
    assert not holding.held.any()
    assert holding.rows().sum() == holding.bytes().sum() == 0
    holding.install(range(16), [], 7)
    count(holding, range(10))
    assert (holding.version, counted(holding)) == (8, dict.fromkeys(range(10), 1))


def test_a_process_killed_between_changes_leaves_everything(tmp_path):
    holding = opened(tmp_path)
    count(holding, range(3000))
    done = child(
        tmp_path,
        "import os, signal\n"
        "table = holding.begin()['counts']\n"
        "table.discard(table.touch(ts.encoded(range(3000))))\n"
        "table.delta()\n"
        "os.kill(os.getpid(), signal.SIGKILL)",
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    holding = Holding.open(tmp_path, [COUNTS], 16)
    assert (holding.version, counted(holding)) == (1, dict.fromkeys(range(3000), 1))


def test_a_full_disk_is_an_error_and_changes_nothing(tmp_path, monkeypatch):
    base = Base.open(tmp_path, COUNTS, 4)
    base.install(range(4))
    table = Table(base, COUNTS, 4)
    table.mark(table.touch(encoded(range(100))))
    base.apply(table.delta())
    before = base.extract(range(4))

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    table = Table(base, COUNTS, 4)
    table.mark(table.touch(encoded(range(50_000))))
    with monkeypatch.context() as patch:
        patch.setattr(extents.os, "posix_fallocate", full)
        with pytest.raises(NoSpace, match="counts.arena needs .* free space there"):
            base.apply(table.delta())
        assert base.extract(range(4)).equals(before)
    base.apply(table.delta())
    assert base.rows_of(range(4)).sum() == 50_000


def test_a_holding_whose_change_fails_is_emptied(tmp_path, monkeypatch):
    holding = opened(tmp_path, 4)
    count(holding, range(100))

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(extents.os, "posix_fallocate", full)
        with pytest.raises(NoSpace):
            count(holding, range(50_000))
    assert (holding.version, holding.held.any()) == (-1, False)


def test_other_errors_of_the_disk_are_not_disguised(tmp_path, monkeypatch):
    base = Base.open(tmp_path, COUNTS, 4)
    base.install(range(4))
    table = Table(base, COUNTS, 4)
    table.mark(table.touch(encoded(range(100))))

    def broken(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(extents.os, "posix_fallocate", broken)
    with pytest.raises(OSError, match="Input/output error"):
        base.apply(table.delta())


def test_versions_go_one_by_one_and_bins_of_other_versions_do_not_mix(tmp_path):
    holding = opened(tmp_path)
    with pytest.raises(InvalidOption, match="holds version 0 and cannot go to 2"):
        holding.advance(2, {})
    holding.release(range(8))
    with pytest.raises(InvalidOption, match="bins of version 5 cannot stand beside it"):
        holding.install(range(8), [], 5)
    with pytest.raises(InvalidOption, match="no table 'other'"):
        holding.advance(1, {"other": COUNTS.schema.empty_table()})
    with pytest.raises(InvalidOption, match="there is no bin 16"):
        holding.bases["counts"].release([16])


def test_files_of_another_table_are_not_taken_for_this_one(tmp_path):
    holding = opened(tmp_path)
    count(holding, range(100))
    other = TableSpec("counts", NUMBERS, (("n", pa.float64()),))
    again = Holding.open(tmp_path, [other], 16)
    assert (again.version, again.rows().sum()) == (-1, 0)
    again.close()
    holding = opened(tmp_path, 32)
    count(holding, range(100))
    assert counted(holding) == dict.fromkeys(range(100), 1)


def test_install_takes_parts_in_order_and_only_those_bins(tmp_path):
    source = opened(tmp_path / "a")
    count(source, range(1000))
    snapshot = source.extract(range(16))
    deltas = []
    for _ in range(2):
        table = source.begin()["counts"]
        rows = table.touch(encoded(range(500, 1200)))
        table.add("n", rows, 10)
        table.mark(rows)
        table.discard(rows[:100])
        deltas.append({"counts": table.delta()})
        source.advance(source.version + 1, deltas[-1])
    target = Holding.open(tmp_path / "b", [COUNTS], 16)
    target.install([1, 5, 11], [snapshot, *deltas], source.version)
    assert target.version == source.version
    assert np.flatnonzero(target.held).tolist() == [1, 5, 11]
    mine = source.extract([1, 5, 11])["counts"]
    assert counted(target) == dict(zip(mine["k"].to_pylist(), mine["n"].to_pylist(), strict=True))


def test_folds_at_rows_agree_with_numpy():
    rng = np.random.default_rng(5)
    spec = TableSpec("t", NUMBERS, tuple((name, type_) for name, type_ in (
        ("i", pa.int64()), ("f", pa.float64()), ("s", pa.int16()), ("g", pa.float32()))))  # fmt: skip
    table = Table(None, spec, 16)
    rows = table.touch(encoded(rng.integers(0, 300, 5000)))
    for name, type_ in (("i", np.int64), ("f", np.float64), ("s", np.int16), ("g", np.float32)):
        amounts = rng.integers(-9, 9, rows.size).astype(type_)
        sums = np.zeros(table.size, type_)
        np.add.at(sums, rows, amounts)
        table.add(name, rows, amounts)
        assert np.array_equal(table.column(name), sums)
        assert table.valid(name).all()
        for how, ufunc in (("lowest", np.minimum), ("highest", np.maximum)):
            table.valid(name)[:] = False
            best = np.full(table.size, 99 if how == "lowest" else -99, type_)
            ufunc.at(best, rows, amounts)
            getattr(table, how)(name, rows, amounts)
            assert np.array_equal(table.column(name), best), (name, how)
    before = table.column("i").copy()
    table.add("i", np.arange(table.size) < 3, 7)
    assert (table.column("i") - before).tolist() == [7] * 3 + [0] * (table.size - 3)
    with pytest.raises(InvalidOption, match="rows 0 to 300 are given, and table 't' has 300"):
        table.add("i", np.arange(301), 1)
    with pytest.raises(InvalidOption, match="2 amounts are given for 3 rows"):
        table.add("i", rows[:3], np.array([1, 2]))


def test_nan_is_above_all_numbers():
    spec = TableSpec("t", NUMBERS, (("low", pa.float64()), ("high", pa.float64())))
    table = Table(None, spec, 1)
    rows = table.touch(encoded([1, 1, 2, 2, 3]))
    amounts = np.array([np.nan, 4.0, 4.0, np.nan, np.nan])
    table.lowest("low", rows, amounts)
    table.highest("high", rows, amounts)
    assert table.column("low").tolist()[:2] == [4.0, 4.0]
    assert np.isnan(table.column("low")[2])
    assert np.isnan(table.column("high")).all()


def test_specs_refuse_what_cannot_be_state():
    with pytest.raises(InvalidOption, match="column 'l' of type list.* cannot be state; state columns are"):
        TableSpec("t", NUMBERS, (("l", pa.list_(pa.int64())),))
    with pytest.raises(InvalidOption, match="column 'k' cannot be in table 't', which has that name twice"):
        TableSpec("t", NUMBERS, (("k", pa.int64()),))
    with pytest.raises(InvalidOption, match="column '__bin' cannot be in table 't', which keeps that name"):
        TableSpec("t", NUMBERS, (("__bin", pa.int64()),))
    with pytest.raises(InvalidOption, match="cannot be in order of 'x', which is double"):
        TableSpec("t", NUMBERS, (("x", pa.float64()),), order="x")
    with pytest.raises(InvalidOption, match="cannot be in order of 'y', which does not exist"):
        TableSpec("t", NUMBERS, order="y")
    with pytest.raises(InvalidOption, match="cannot be named '../t'"):
        TableSpec("../t", NUMBERS)


def test_tables_refuse_keys_and_columns_that_are_not_theirs():
    table = Table(None, NAMES, 4)
    with pytest.raises(InvalidOption, match="another type than its own"):
        table.touch(encoded(["a"], TEXTS))
    with pytest.raises(InvalidOption, match="no value column 'n'; it has s"):
        table.column("n")
    with pytest.raises(InvalidOption, match="is string; read it with get"):
        table.column("s")
    with pytest.raises(InvalidOption, match="has no order"):
        table.due(1)


def test_a_key_of_two_numbers_to_a_number_takes_few_bytes(tmp_path):
    holding = opened(tmp_path, 64)
    count(holding, range(100_000))
    for start in range(0, 100_000, 10_000):
        count(holding, range(100_000 + start, 110_000 + start))
    assert holding.bytes().sum() / 200_000 <= 40
    assert Layout.of(COUNTS, 64).width == 2


def test_a_holding_stays_open_until_its_files_go(tmp_path):
    holding = opened(tmp_path / "a")
    count(holding, range(100))
    assert Holding.open(tmp_path / "a", [COUNTS], 16) is holding
    (tmp_path / "a" / "counts.arena").unlink()
    again = Holding.open(tmp_path / "a", [COUNTS], 16)
    assert (again.version, again.rows().sum()) == (-1, 0)
    shutil.rmtree(tmp_path / "a")
    third = opened(tmp_path / "a")
    assert third is not again
    count(third, range(5))
    assert counted(third) == dict.fromkeys(range(5), 1)


def test_a_change_that_another_process_left_torn_is_seen_by_one_that_had_it_open(tmp_path):
    holding = opened(tmp_path)
    count(holding, range(3000))
    done = child(
        tmp_path,
        "import os, signal\n"
        "from meander.state.base import Base\n"
        "def killed(self, *rest): os.kill(os.getpid(), signal.SIGKILL)\n"
        "Base.trim = killed\n"
        "ts.count(holding, range(5000))",
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert (holding.version, holding.held.any(), holding.rows().sum()) == (-1, False, 0)


def test_a_limit_on_the_size_of_files_is_an_error_too(tmp_path):
    """No mock: the system itself refuses to make the file longer."""
    done = child(
        tmp_path,
        "import resource\n"
        "from meander.errors import NoSpace\n"
        "ts.count(holding, range(1000))\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2**24, 2**24))\n"
        "try: ts.count(holding, range(1_000_000))\n"
        "except NoSpace as error: print('no space:', error)",
    )
    assert done.stdout.startswith("no space:"), done.stderr
    assert "counts.arena" in done.stdout
    assert "File too large" in done.stdout


@pytest.mark.parametrize("order", ["k", "day", "n"])
def test_what_is_due_by_any_kind_of_column(tmp_path, order):
    """A key that is a word, a trailing column before a text, and a value that may be null."""
    spec = {
        "k": TableSpec("t", NUMBERS, (("n", pa.int64()),), order="k"),
        "day": TableSpec(
            "t", KeyType((("a", pa.string()), ("day", pa.date32()), ("b", pa.string())), 1), order="day"
        ),
        "n": TableSpec("t", TEXTS, (("n", pa.int16()),), order="n"),
    }[order]  # fmt: skip
    base = Base.open(tmp_path, spec, 4)
    base.install(range(4))
    table = Table(base, spec, 4)
    values = list(range(-40, 40))
    columns = {
        "k": [pa.array(values)],
        "day": [pa.array(["a"] * 80), pa.array(values, pa.date32()), pa.array([f"{k}" for k in values])],
        "n": [pa.array([f"{k}" for k in values])],
    }[order]  # fmt: skip
    rows = table.touch(spec.key.encode(columns))
    if order == "n":
        table.set("n", rows, pa.array([None if k % 4 == 0 else k for k in values], pa.int16()))
    table.mark(rows)
    wanted = [k for k in values if k < 7 and (order != "n" or k % 4)]
    assert [values[row] for row in table.due(7)] == wanted
    base.apply(table.delta())
    assert base.due(7).size == len(wanted)
    again = Table(base, spec, 4)
    due = again.due(7)
    assert again.get(order, due).cast(pa.int32()).to_pylist() == wanted
    again.discard(due[3:])
    assert again.due(7).tolist() == due[:3].tolist()
    base.apply(again.delta())
    assert base.due(7).size == 3
    assert base.due(2**62).size == 3 + sum(k >= 7 and (order != "n" or k % 4 != 0) for k in values)


def test_deleting_what_never_was_is_nothing(tmp_path):
    base = Base.open(tmp_path, COUNTS, 4)
    base.install(range(4))
    table = Table(None, COUNTS, 4)
    table.mark(table.touch(encoded(range(200))))
    delta = table.delta().set_column(1, "__deleted", pa.array([True] * 200))
    base.apply(delta)
    assert (base.rows_of(range(4)).sum(), base.bytes_of(range(4)).sum()) == (0, 0)
    base.apply(table.delta().slice(100))
    base.apply(delta)
    assert base.rows_of(range(4)).sum() == 0
    base.apply(table.delta())
    assert base.rows_of(range(4)).sum() == 200


def test_kernels_are_compiled_once_whatever_comes(tmp_path):
    """A compilation in the middle of a batch would take seconds. Folds have one form for each kind of number."""
    values = (("n", pa.int64()), ("s", pa.string()), ("x", pa.float32()))
    for name, type_ in (("numbers", NUMBERS), ("texts", TEXTS)):
        holding = opened(tmp_path / name, 16, [TableSpec("t", type_, values, order="n")])
        for ids in ([1, 2], range(9000), [], range(0, 9000, 3)):
            table = holding.begin()["t"]
            rows = table.touch(encoded([k if type_ is NUMBERS else f"{k}" for k in ids], type_))
            table.add("n", rows, 1)
            table.set("s", rows, pa.array([None if k % 2 else "é" * (k % 50) for k in ids], pa.large_string()))
            table.mark(rows)
            table.discard(table.due(2)[::2])
            holding.advance(holding.version + 1, {"t": table.delta()})
            part = holding.extract(range(0, 16, 2))
            holding.install(range(0, 16, 2), [{"t": part["t"].slice(0)}], holding.version)
    for module in (base_kernel, overlay, records_kernel, write_kernel):
        for each in vars(module).values():
            if isinstance(each, Kernel) and each not in (
                records_kernel.add,
                records_kernel.lowest,
                records_kernel.highest,
            ):
                assert len(getattr(each.compiled, "signatures", [])) <= 1, each.__name__
