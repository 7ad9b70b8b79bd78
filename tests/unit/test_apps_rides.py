"""The streams of a join without Spark: Zipf's law, and a city whose hot spots move."""

import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from effort import examples
from meander.errors import InvalidOption
from meander.outlook import Series
from meander_lab.apps.hilbert import Box, unhilbert
from meander_lab.apps.rides import CHENGDU, Rides, distance_km
from meander_lab.apps.zipf import ZipfStreams

SECOND = 1_000_000
DEMAND = (3.0, 0.0, 10.0, 2.0, 1.0, 0.0)
SOURCES = [
    ZipfStreams(0.7, 500, seed=3),
    Rides(seed=3, moves_s=7.0, trip_s=5.0, fleet=40),
    Rides(seed=3, demand=DEMAND, step_s=2.0, fleet=7),
]


def micros(rows):
    return rows["ts"].cast(pa.int64()).to_numpy()


# --- both ---


@pytest.mark.parametrize("source", SOURCES, ids=["zipf", "rides", "rides by demand"])
@pytest.mark.parametrize("side", [0, 1])
@given(st.lists(st.integers(0, 40), max_size=6), st.integers(0, 10**10), st.sampled_from([0.3, 7.0, 5000.0]))
@examples(25)
def test_a_row_is_the_same_however_the_numbers_are_cut(source, side, lengths, first, rate):
    whole = source.rows(side, first, sum(lengths), rate, 5)
    assert whole.schema == source.schema(side)
    parts = [source.schema(side).empty_table()]
    for length in lengths:
        parts.append(source.rows(side, first, length, rate, 5))
        first += length
    assert whole == pa.concat_tables(parts)


@pytest.mark.parametrize("source", SOURCES, ids=["zipf", "rides", "rides by demand"])
def test_times_never_go_back_and_only_they_know_when_it_began(source):
    for side in (0, 1):
        rows = source.rows(side, 0, 3000, 40.0)
        assert micros(rows)[0] == 0
        assert (np.diff(micros(rows)) >= 0).all()
        assert (np.diff(source.times(side, np.arange(10**12, 10**12 + 500), 40.0)) >= 0).all()
        later = source.rows(side, 0, 3000, 40.0, 77)
        assert (micros(later) == micros(rows) + 77).all()
        assert later.drop_columns(["ts"]) == rows.drop_columns(["ts"])


def test_other_seeds_and_other_sides_make_other_rows():
    for one, other, drop in (
        (ZipfStreams(0.5), ZipfStreams(0.5, seed=1), ["ts", "id"]),
        (Rides(), Rides(seed=1), ["ts"]),
    ):
        left, right, again = one.rows(0, 0, 50, 9.0), one.rows(1, 0, 50, 9.0), other.rows(0, 0, 50, 9.0)
        for column in set(left.column_names) - {*drop, "order_id"}:
            assert left[column].to_pylist() != right[column].to_pylist()
            assert left[column].to_pylist() != again[column].to_pylist()


# --- Zipf ---


def test_a_row_is_its_number_its_time_and_two_draws():
    rows = ZipfStreams(1.0, 5).rows(1, 2, 3, 3.0, 10)
    assert rows["id"].to_pylist() == [2, 3, 4]
    assert micros(rows).tolist() == [666_676, 1_000_010, 1_333_343]
    assert set(rows["key"].to_pylist()) <= {0, 1, 2, 3, 4}
    assert all(0 <= x < 1 for x in rows["x"].to_pylist())


@given(st.floats(0, 1.5), st.integers(1, 3000))
def test_shares_sum_to_one_and_fall_by_the_law(coefficient, keys):
    shares = ZipfStreams(coefficient, keys).shares
    assert math.isclose(math.fsum(shares), 1)
    for rank in (1, (keys + 1) // 2, keys):
        assert math.isclose(shares[rank - 1] * rank**coefficient, shares[0], rel_tol=1e-9)
    assert math.isclose(ZipfStreams(coefficient, keys).meeting, math.fsum(s * s for s in shares.tolist()))


@pytest.mark.parametrize("coefficient", [0, 0.2, 0.4, 0.6, 0.8, 1.0])
@pytest.mark.parametrize("side", [0, 1])
def test_keys_come_as_often_as_their_shares_say(coefficient, side):
    streams, rows = ZipfStreams(coefficient, 1000, seed=11), 400_000
    counts = np.bincount(streams.rows(side, 10**6, rows, 1000.0)["key"].to_numpy(), minlength=1000)
    expected = streams.shares * rows
    seen = counts[streams.ranking]
    squares = ((seen - expected) ** 2 / expected).sum()
    # Chi square with 999 degrees: mean 999, standard deviation 45.
    assert 999 - 5 * 45 < squares < 999 + 5 * 45


def test_draws_next_to_one_another_have_nothing_to_do_with_one_another():
    streams = ZipfStreams(0, 50, seed=2)
    left, right = (streams.rows(side, 0, 200_000, 1.0) for side in (0, 1))
    keys = [left["key"].to_numpy(), right["key"].to_numpy()]
    x = (left["x"].to_numpy() * 50).astype(int)
    for one, other in ((keys[0][:-1], keys[0][1:]), (keys[0], keys[1]), (keys[0], x), (x[:-1], x[1:])):
        counts = np.bincount(one * 50 + other, minlength=2500)
        squares = ((counts - one.size / 2500) ** 2 / (one.size / 2500)).sum()
        assert abs(squares - 2499) < 5 * math.sqrt(2 * 2499)


def test_ranks_are_shuffled_by_the_seed_and_alike_on_both_sides():
    rankings = [ZipfStreams(1.0, 200, seed).ranking.tolist() for seed in range(4)]
    assert all(sorted(ranking) == [*range(200)] for ranking in rankings)
    assert len({tuple(ranking) for ranking in rankings}) == 4
    assert len({ranking[0] for ranking in rankings}) > 1
    streams = ZipfStreams(1.0, 200, seed=3)
    for side in (0, 1):
        ((hottest, _),) = Counter(streams.rows(side, 0, 5000, 1.0)["key"].to_pylist()).most_common(1)
        assert hottest == rankings[3][0]


def test_the_rows_that_meet_are_as_many_as_told():
    streams = ZipfStreams(0.9, 300, seed=5)
    left, right = (np.bincount(streams.rows(side, 0, 20_000, 1.0)["key"].to_numpy(), minlength=300) for side in (0, 1))
    assert math.isclose(left @ right / 20_000**2, streams.meeting, rel_tol=0.05)


# --- rides ---


def places(rows):
    return rows["lon"].to_numpy(), rows["lat"].to_numpy()


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("order", [0, 3, 7, 12])
def test_places_are_in_the_box_and_in_their_cells(side, order):
    box = Box(-3.0, 50.0, -2.5, 50.7)
    rows = Rides(box=box, order=order, spread_km=2.0, moves_s=20.0, trip_s=9.0).rows(side, 0, 20_000, 100.0)
    (lon, lat), (x, y) = places(rows), unhilbert(rows["cell"].to_numpy(), order)
    for at, cell, low, high in ((lon, x, -3.0, -2.5), (lat, y, 50.0, 50.7)):
        wide = (high - low) / 2**order
        assert (at >= low + cell * wide - 1e-9).all()
        assert (at <= low + (cell + 1) * wide + 1e-9).all()


def test_orders_crowd_around_the_hot_spots_as_their_heat_says():
    city, at_s = Rides(seed=21, scattered=0.0, spread_km=0.5, spots=4), 5000
    rows = city.rows(0, at_s * 10_000, 20_000, 10_000.0)  # two seconds of orders: nothing has moved far
    (lon, lat), heat = city.hot(at_s + 1)
    km = np.array([distance_km(*places(rows), lon[0, spot], lat[0, spot]) for spot in range(4)])
    assert km.min(axis=0).max() < 0.5 * 2 * math.sqrt(3) * math.sqrt(2) + 0.1
    apart = distance_km(lon[0][:, None], lat[0][:, None], lon[0], lat[0]) + 99 * np.eye(4)
    assert apart.min() > 4, "spots of this seed must be apart, or the nearest one tells nothing"
    seen = np.bincount(km.argmin(axis=0), minlength=4)
    assert math.isclose(heat.sum(), 1)
    assert (np.abs(seen - heat[0] * 20_000) < 5 * np.sqrt(20_000 * heat[0] * (1 - heat[0])) + 1).all()
    # Each way the distance has the standard deviation that was asked for.
    assert math.isclose(math.sqrt((km.min(axis=0) ** 2).mean() / 2), 0.5, rel_tol=0.03)


def test_a_share_of_the_orders_comes_from_anywhere():
    rows = Rides(scattered=1.0, order=2).rows(0, 0, 32_000, 1000.0)
    counts = np.bincount(rows["cell"].to_numpy(), minlength=16)
    assert ((counts - 2000) ** 2 / 2000).sum() < 15 + 5 * math.sqrt(30)
    cells = [
        Counter(Rides(scattered=share).rows(0, 0, 20_000, 10_000.0)["cell"].to_pylist()) for share in (0.9, 0.5, 0.1)
    ]
    top = [sum(count for _, count in each.most_common(30)) for each in cells]
    assert top[0] < top[1] < top[2]


def test_hot_spots_move_without_jumps_and_change_their_heat():
    city = Rides(seed=6, moves_s=100.0)
    times = np.arange(0, 1000.0, 0.5)
    (lon, lat), heat = city.hot(times)
    step_km = distance_km(lon[1:], lat[1:], lon[:-1], lat[:-1])
    assert step_km.max() < 45 / 200 * 1.01, "across the box in 200 steps at most"
    assert np.abs(np.diff(heat, axis=0)).max() < 1 / 200 * 1.01
    assert (step_km.sum(axis=0) > 20).all()
    assert (np.ptp(heat, axis=0) > 0.05).all()
    # So cells that have many orders are others later.
    top = []
    for at_s in (0, 250):
        rows = city.rows(0, at_s * 1000, 5000, 1000.0)
        top.append({cell for cell, _ in Counter(rows["cell"].to_pylist()).most_common(40)})
    assert len(top[0] & top[1]) < 20


def test_a_taxi_drives_to_where_orders_were_when_it_set_out_and_waits_there():
    city = Rides(seed=2, fleet=30, trip_s=40.0, moves_s=400.0, scattered=0.0, spread_km=0.3, spots=3)
    rows = city.rows(1, 0, 30 * 2000, 300.0)  # each of 30 taxis ten times a second
    assert rows["taxi_id"].to_pylist()[:31] == [*(f"taxi-{taxi}" for taxi in range(30)), "taxi-0"]
    lon, lat = (at.reshape(2000, 30) for at in places(rows))
    step_km = distance_km(lon[1:], lat[1:], lon[:-1], lat[:-1])
    assert step_km.max() < 45 / 200 * 1.01, "a trip takes 200 reports of driving"
    waits = step_km == 0
    assert 0.45 < waits.mean() < 0.55
    at_s = micros(rows).reshape(2000, 30) / SECOND
    for taxi in range(30):
        sets_out = np.flatnonzero(waits[:-1, taxi] & ~waits[1:, taxi]) + 1
        for begin, after in pairwise(sets_out.tolist()):
            assert math.isclose(at_s[after, taxi] - at_s[begin, taxi], 40, abs_tol=0.11)
            (spot_lon, spot_lat), _ = city.hot(at_s[begin, taxi])
            km = distance_km(lon[after, taxi], lat[after, taxi], spot_lon[0], spot_lat[0])
            assert km.min() < 0.3 * 5 + 0.1


def test_taxis_are_near_the_orders_of_a_while_ago():
    city = Rides(seed=8, moves_s=300.0, trip_s=120.0, order=4, scattered=0.1)

    def heat(side, at_s):
        rows = city.rows(side, at_s * 5000, 10_000, 5000.0)
        return np.bincount(rows["cell"].to_numpy(), minlength=256) / 10_000

    tracks = {at_s: heat(1, at_s) for at_s in range(1000, 4000, 250)}
    lags = {
        lag_s: sum(np.minimum(each, heat(0, at_s - lag_s)).sum() for at_s, each in tracks.items())
        for lag_s in (-120, 0, 120, 600)
    }
    assert max(lags, key=lags.__getitem__) == 120


@pytest.mark.parametrize("rate", [0.5, 100.0, 1234.5])
def test_orders_follow_the_demand_again_and_again_and_tracks_do_not(rate):
    city = Rides(demand=DEMAND, step_s=50.0)
    orders = math.ceil(rate * 50 * 6 * 2)
    ends_us = np.arange(1, 13) * 50 * SECOND
    seen = np.searchsorted(city.times(0, np.arange(orders), rate), ends_us)
    due = np.cumsum(DEMAND * 2) / 16 * rate * 300
    assert (np.abs(seen - due) <= 1).all()
    assert seen[-1] == orders
    evenly = np.searchsorted(city.times(1, np.arange(orders), rate), ends_us)
    assert (np.abs(evenly - rate * ends_us / SECOND) <= 1).all()


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=12), st.floats(0.1, 1e4), st.floats(0.01, 1e4))
def test_any_demand_makes_times_that_ascend_and_keeps_the_mean(demand, step_s, rate):
    if sum(demand) <= 0:
        demand = [1.0]
    city, number = Rides(demand=demand, step_s=step_s), np.arange(2000)
    times = city.times(0, number, rate)
    assert (np.diff(times) >= 0).all()
    all_us = len(demand) * step_s * SECOND
    assert (np.abs(times - number * SECOND / rate) <= all_us + 1).all()


def test_a_series_gives_its_own_steps_unless_told():
    times = np.datetime64("2014-07-01T00:00:00") + np.arange(4) * np.timedelta64(30, "m")
    series = Series(times, [4.0, 1.0, 1.0, 2.0])
    assert Rides(demand=series).step_s == 1800
    city = Rides(demand=series, step_s=1)
    assert city.times(0, np.arange(8), 2.0).tolist() == [
        0,
        250_000,
        500_000,
        750_000,
        SECOND,
        2 * SECOND,
        3 * SECOND,
        3_500_000,
    ]
    assert city == Rides(demand=[4, 1, 1, 2], step_s=1)
    rows = Rides(demand=series).rows(0, 0, 2, 1.0, 5)
    assert rows["order_id"].to_pylist() == ["order-0", "order-1"]


def test_a_distance_is_that_over_the_globe():
    def over_the_globe(lon1, lat1, lon2, lat2):
        one, other = (
            np.array([math.cos(b) * math.cos(a), math.cos(b) * math.sin(a), math.sin(b)])
            for a, b in ((math.radians(lon1), math.radians(lat1)), (math.radians(lon2), math.radians(lat2)))
        )
        return 6371.0 * 2 * math.asin(math.dist(one, other) / 2)

    rng = np.random.default_rng(1)
    lon, lat = rng.uniform(CHENGDU.west, CHENGDU.east, (2, 200)), rng.uniform(CHENGDU.south, CHENGDU.north, (2, 200))
    expected = [over_the_globe(*each) for each in zip(lon[0], lat[0], lon[1], lat[1], strict=True)]
    assert np.allclose(distance_km(lon[0], lat[0], lon[1], lat[1]), expected, rtol=1e-3)
    assert distance_km(104, 30, 104, 30) == 0


def test_what_makes_no_sense_is_refused():
    uneven = Series(np.array([0, 60, 300]).astype("datetime64[s]"), [1.0, 2.0, 3.0])
    for wrong, said in (
        (lambda: ZipfStreams(-0.1), "coefficient is -0.1"),
        (lambda: ZipfStreams(1.0, 0), "keys is 0"),
        (lambda: ZipfStreams(1.0).rows(2, 0, 1, 1.0), "side is 2"),
        (lambda: ZipfStreams(1.0).rows(0, 0, 1, 0.0), "rate is 0"),
        (lambda: Rides().rows(0, -1, 1, 1.0), "first is -1"),
        (lambda: Rides(scattered=1.1), "scattered is 1.1"),
        (lambda: Rides(spread_km=5.0), "5 km around a hot spot do not fit the box; lower spread_km"),
        (lambda: Rides(demand=[0.0, 0.0], step_s=1), "nothing above 0"),
        (lambda: Rides(demand=[1.0]), "give step_s"),
        (lambda: Rides(demand=[1.0, -1.0], step_s=1), "demand is -1"),
        (lambda: Rides(demand=uneven), "differ in length"),
        (lambda: Rides(fleet=0), "fleet is 0"),
    ):
        with pytest.raises(InvalidOption, match=said):
            wrong()
