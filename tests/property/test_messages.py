"""What driver and workers send each other comes out as it went in, however few or many bins it speaks of."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meander.engine.driver.shares import Shares
from meander.engine.driver.version import LastDeltas, by_owner
from meander.engine.worker.bin_numbers import BinNumbers, highest, summed
from meander.engine.worker.messages import TaskReport, Token, pack, unpack
from meander.migration.orders import Orders, flags
from meander.store.bitmap import SPARSE_FROM, bitmap, from_text, members, to_text
from meander.store.entries import FileRef

SIZES = st.sampled_from([1, 8, 100, 4096, 65_536, 1 << 20])
WHOLE = st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(0, 1 << 33) | st.integers(0, 300)


@st.composite
def sets(draw):
    """Some bins of so many: few, a run of them, or a share of all."""
    bins = draw(SIZES)
    some = draw(st.sets(st.integers(0, bins - 1), max_size=40))
    start, length = draw(st.integers(0, bins - 1)), draw(st.sampled_from([0, 1, bins // 7, bins]))
    return np.unique([*some, *range(start, min(bins, start + length))]).astype(np.int64), bins


@given(sets())
def test_a_set_of_bins_travels_unchanged(chosen):
    mine, bins = chosen
    bits = bitmap(mine, bins)
    assert members(bits).tolist() == mine.tolist()
    assert from_text(to_text(bits)) == bits
    assert np.flatnonzero(unpack(pack(flags(mine, bins)), bins)).tolist() == mine.tolist()


@given(st.sampled_from([8192, 131_072]), st.integers(0, 20))
def test_few_bins_of_many_are_a_short_text(width, count):
    text = to_text(bitmap(range(0, 8 * width, 8 * width // 32)[:count], 8 * width))
    assert len(text) < 16 + 8 * max(1, count)


def test_a_bitmap_of_an_older_checkpoint_is_read():
    bits = bitmap([3], 4096)
    assert from_text("EAAA" + "AAAA" * 169 + "AAA=") == bits
    assert SPARSE_FROM > 1
    assert to_text(bits) == "512:AAAQ"


@pytest.mark.parametrize("text", ["512:AAA", "512:////", "2:AAAQ", "x:AAAQ", "-1:AAAQ", ":AAAQ", "AAA"])
def test_a_text_that_is_no_bitmap_is_refused(text):
    with pytest.raises(ValueError, match="."):
        from_text(text)


@given(st.lists(WHOLE, max_size=40), st.integers(0, 50))
def test_numbers_by_bin_travel_unchanged(numbers, before):
    dense = np.array([0] * before + [each % (1 << 40) for each in numbers], np.int64)
    for sent in (BinNumbers.of(dense), BinNumbers.at(dense.size, np.arange(dense.size), dense)):
        report = TaskReport(Token(1, 2, 3), 0, 4, loads=sent, stored=(sent, sent))
        came = TaskReport.from_text(report.to_text())
        assert came.loads.total == sent.total == dense.sum()
        assert summed([came.loads], dense.size).tolist() == dense.tolist()
        assert repr(came.stored[1]) == repr(sent)


@given(st.lists(WHOLE, min_size=1, max_size=20))
def test_numbers_of_any_size_travel_unchanged(numbers):
    sent = BinNumbers.of(numbers)
    assert repr(BinNumbers.from_json(sent.to_json())) == repr(sent)


@given(st.lists(st.lists(st.integers(0, 15), max_size=60), max_size=5), st.sampled_from([16, 1024]))
def test_numbers_of_several_workers_add_up(bins_of_rows, size):
    counts = [BinNumbers.count(np.array(each, np.int32), size) for each in bins_of_rows]
    dense = [np.bincount(np.array(each, np.int64), minlength=size) for each in bins_of_rows]
    assert summed(counts, size).tolist() == sum(dense, np.zeros(size, np.int64)).tolist()
    assert highest(counts, size).tolist() == np.max([np.zeros(size, np.int64), *dense], axis=0).tolist()


def test_the_text_of_a_set_is_that_of_its_array_now():
    chosen = flags([1, 5], 64)
    first = pack(chosen)
    chosen[7] = True
    assert pack(chosen) == pack(flags([1, 5, 7], 64)) != first
    chosen.flags.writeable = False
    assert pack(chosen) is pack(chosen)
    with pytest.raises(ValueError, match="read-only"):
        unpack(first, 64)[0] = True


@st.composite
def moments(draw):
    """Owners, what a worker is believed to hold, and what is ordered, of one version after another."""
    bins = 8
    owners = draw(st.lists(st.lists(st.integers(0, 2), min_size=bins, max_size=bins), min_size=1, max_size=2))
    holdings = draw(st.lists(st.none() | st.lists(st.booleans(), min_size=bins, max_size=bins), min_size=1, max_size=2))
    some = st.lists(st.integers(0, bins - 1), max_size=3, unique=True).map(tuple)
    versions = st.tuples(
        st.sampled_from([np.array(each) for each in owners]),
        st.sampled_from([None if each is None else np.array(each) for each in holdings]),
        some, some, st.booleans(),
    )  # fmt: skip
    return draw(st.lists(versions, min_size=1, max_size=6))


@given(moments())
def test_sets_that_are_kept_are_those_that_would_be_made(versions):
    shares = Shares()
    for owner, believed, held, copied, copies in versions:
        orders = Orders(held={(0, 1): held}, copied={(0, 1): copied})
        sets = shares.sets((0, 1), owner, believed, orders, copies)
        owned = owner == 1
        wanted = owned | flags(copied if copies else (), 8)
        assert sets.owned.tolist() == owned.tolist()
        assert sets.held.tolist() == orders.held_by((0, 1), owned).tolist()
        assert sets.missing.tolist() == (wanted if believed is None else wanted & ~believed).tolist()
        routing = shares.routing(0, owner, (0, 1, 2))
        assert list(routing.slots) == owner.tolist()
        assert routing.count == 3


@given(st.lists(st.integers(0, 3), min_size=16, max_size=16), st.lists(st.integers(-1, 3), min_size=16, max_size=16))
def test_the_deltas_of_a_worker_are_those_that_speak_of_its_bins(owners, writers):
    owner, of_delta = np.array(owners), np.array(writers)
    files = [
        FileRef(0, 1, 1, 1, f"delta-{at}", bins=bitmap(np.flatnonzero(of_delta == at), 16))
        for at in range(4) if (of_delta == at).any()
    ]  # fmt: skip
    last = LastDeltas.of(files, owner)
    for worker in range(4):
        mine = {f"delta-{at}" for at in of_delta[owner == worker].tolist() if at >= 0}
        assert {each["path"] for each in last.by_owner.get(worker, ())} == mine
        held = np.arange(16) % 3 == worker % 3
        assert {each["path"] for each in last.of_bins(held)} == {f"delta-{at}" for at in of_delta[held] if at >= 0}
    split = by_owner(np.flatnonzero(of_delta >= 0), owner)
    assert {worker: ids.tolist() for worker, ids in split.items()} == {
        worker: ids for worker in range(4) if (ids := np.flatnonzero((of_delta >= 0) & (owner == worker)).tolist())
    }
