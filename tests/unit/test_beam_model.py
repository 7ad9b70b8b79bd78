import hashlib
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_model import (
    BASE_MS,
    COLUMNS,
    PUBLISHED,
    QUERIES,
    Auction,
    Bid,
    JavaRandom,
    Person,
    auctions,
    bids,
    events,
    persons,
    q3,
    q4,
    q6,
    q11,
    sales,
    split,
    windows,
)


@pytest.fixture(scope="module")
def suite():
    """Beam's default events, in its two sizes."""
    return {10_000: events(10_000), 100_000: events(100_000)}


def test_the_draws_are_those_of_java():
    """Written down from java.util.Random on OpenJDK 17."""
    draw = JavaRandom(42)
    assert [draw.below(100) for _ in range(5)] == [30, 63, 48, 84, 70]
    draw = JavaRandom(0)
    assert [draw.integer() for _ in range(3)] == [-1155484576, -723955400, 1033096058]
    draw = JavaRandom(0)
    assert [draw.unit() for _ in range(2)] == [0.730967787376657, 0.24053641567148587]
    draw = JavaRandom(7)
    assert [draw.below(2**30 + 1) for _ in range(4)] == [20678044, 747989380, 1053566254, 755731200]
    draw = JavaRandom(7)
    assert [draw.below(64) for _ in range(4)] == [46, 40, 47, 0]


def test_every_letter_of_every_event_is_that_of_java():
    """The fingerprint is that of a Java program with the same rules, of 2,003 events from 4 generators."""
    lines = ["|".join(map(str, event)) for event in events(2_003, generators=4, extras=True)]
    assert (
        hashlib.sha256("\n".join(lines).encode()).hexdigest()
        == "7d2eb5c20e71a65d61cf503c7aae3464195a8f36ba1f10888a2194e06e2d3bb3"
    )


def test_without_padding_all_else_is_the_same():
    bare = events(500, generators=3)
    assert [event[:-1] for event in events(500, generators=3, extras=True)] == [event[:-1] for event in bare]
    assert {event.extra for event in bare} == {""}


@given(st.integers(1, 10_000), st.integers(1, 100))
def test_generators_share_all_ids_without_gap(count, generators):
    parts = split(count, generators)
    assert len(parts) == generators
    assert [id_ for first, share in parts for id_ in range(first, first + share)] == list(range(count))


def test_of_fifty_events_one_is_a_person_and_three_are_auctions(suite):
    all_events = suite[100_000]
    assert [len(list(kind(all_events))) for kind in (persons, auctions, bids)] == [2_000, 6_000, 92_000]
    assert sorted(person.id for person in persons(all_events)) == list(range(1000, 3000))
    assert sorted(auction.id for auction in auctions(all_events)) == list(range(1000, 7000))
    assert {event.time - BASE_MS for event in all_events} == set(range(0, 10_000, 10))


@pytest.mark.parametrize("query", PUBLISHED)
def test_the_counts_are_those_that_beam_published(suite, query):
    count, published = PUBLISHED[query]
    rows = QUERIES[query](suite[count])
    assert len(rows) == published
    if query in COLUMNS:
        assert {len(row) for row in rows} == {len(COLUMNS[query])}


def test_the_count_of_bidders_is_that_of_query_12_with_a_tenth_of_the_events(suite):
    """Beam's pull request 11237 shows 196 results: with one pane a bidder, query 12 counts what query 11 does."""
    assert len(QUERIES["q11"](suite[10_000])) == 196


def test_query_3_of_2017_lost_the_last_pane_of_each_busy_seller(suite):
    """With panes of just 30 rows, 443 are left of 580; Beam's runner fired a larger one now and then: 444."""
    rows = q3(suite[100_000])
    assert len(rows) == 580
    seller = {auction.id: auction.seller for auction in auctions(suite[100_000])}
    of = [seller[id_] for *_, id_ in rows]
    lost = [(1 + of.count(each)) % 30 for each in sorted(set(of)) if 1 + of.count(each) >= 30]
    assert 580 - sum(lost) == 443


@given(st.integers(0, 300), st.integers(1, 60), st.integers(1, 60))
def test_a_time_is_in_every_window_that_holds_it(time, size, slide):
    starts = [start for start in range(-60, 301) if start % slide == 0 and start <= time < start + size]
    assert sorted(windows(time, size, slide)) == starts


def auction(id_=1, *, reserve=100, time=0, expires=1_000, seller=7, category=10):
    return Auction(id_, "item", "description", 1, reserve, time, expires, seller, category, "")


def bid(price, time, *, auction=1, bidder=5):
    return Bid(auction, bidder, price, time, "")


@pytest.mark.parametrize(
    ("offered", "winner"),
    [
        ([bid(99, 10)], None),
        ([bid(100, 10)], bid(100, 10)),
        ([bid(500, 1_000), bid(100, 999)], bid(100, 999)),
        ([bid(300, 5), bid(200, 50)], bid(300, 5)),
        ([bid(200, 20), bid(200, 10), bid(200, 30)], bid(200, 10)),
        ([bid(200, 10, bidder=9), bid(200, 10, bidder=8)], bid(200, 10, bidder=8)),
        ([bid(900, 10, auction=2)], None),
    ],
    ids=["under the reserve", "at the reserve", "at the end", "the highest", "the earliest", "the lower", "another's"],
)
def test_the_bid_that_wins(offered, winner):
    found = sales([auction(time=40), *offered])
    assert [sale.bid for sale in found] == ([] if winner is None else [winner])


def test_a_bid_long_before_its_auction_counts_unless_patience_ends():
    both = [bid(200, 0), auction(time=500)]
    assert len(sales(both)) == len(sales(both, patience_ms=501)) == 1
    assert sales(both, patience_ms=500) == []


def test_an_auction_closes_in_its_last_millisecond():
    """The auction that ends at 10 s is in the windows from 0 s and 5 s, not in that from 10 s."""
    assert q4([auction(expires=10_000), bid(150, 0)]) == [(0, 10, 150), (5_000, 10, 150)]
    assert q4([auction(expires=10_001), bid(150, 0)]) == [(5_000, 10, 150), (10_000, 10, 150)]


def test_means_round_half_up():
    two = [auction(1), auction(2), bid(101, 0), bid(102, 0, auction=2)]
    assert q6(two) == [(7, 101), (7, 102), (7, 102)]


def test_the_last_ten_sales_are_those_with_the_latest_bids():
    """The eleventh auction to close was won by the oldest bid, so its price never enters; the first one's stays."""
    lots = [auction(id_, expires=1_000 + id_) for id_ in range(1, 12)]
    offers = [bid(200, 100 + id_, auction=id_) for id_ in range(2, 11)]
    assert q6([*lots, *offers, bid(1_200, 100), bid(9_000, 1, auction=11)])[-3:] == [(7, 300)] * 3


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 60)), max_size=40), st.integers(1, 9))
def test_sessions_are_the_unions_of_overlapping_intervals(made, gap):
    """Against the definition: grow any interval by any other that overlaps it, until none does."""
    expected = []
    for bidder in sorted({bidder for bidder, _ in made}):
        left = [(time, time + gap, 1) for who, time in made if who == bidder]
        done = []
        while left:
            start, end, count = left.pop()
            other = next((one for one in left if one[0] < end and start < one[1]), None)
            if other is None:
                done.append((bidder, start, end, count))
            else:
                left.remove(other)
                left.append((min(start, other[0]), max(end, other[1]), count + other[2]))
        expected += sorted(done)
    assert q11([bid(100, time, bidder=bidder) for bidder, time in made], gap_ms=gap) == expected


@pytest.mark.parametrize("query", [query for query in QUERIES if query not in ("q0", "q1", "q2")])
def test_the_order_of_the_events_does_not_matter(suite, query):
    all_events = suite[10_000]
    shuffled = random.Random(3).sample(all_events, len(all_events))
    assert QUERIES[query](shuffled) == QUERIES[query](all_events) != []


def test_new_users_are_those_of_the_same_window():
    entered = [Person(7, "Kate Smith", "", "", "Bend", "OR", 9_999, ""), auction(1, time=0), auction(2, time=10_000)]
    assert QUERIES["q8"](entered) == [(0, 7, "Kate Smith", 100)]


def test_euros_are_rounded_down_and_every_123rd_auction_is_shown():
    some = [bid(101, 3, auction=1), bid(200, 4, auction=246)]
    assert QUERIES["q1"](some) == [(1, 5, 89, 3), (246, 5, 178, 4)]
    assert QUERIES["q2"](some) == [(246, 200)]
