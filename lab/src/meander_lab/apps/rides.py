"""Passenger orders and taxi tracks of a made-up city, to be matched by the cell of the place.

It stands for what Ls-Stream was measured with (section VI): DiDi's orders and tracks of Chengdu in November 2016, which
we do not have. What is kept of them is their columns, a box of about that city, and that few places have most of the
orders. All else is made up.

Orders come from a few hot spots, and some from anywhere. A hot spot goes straight from one place to the next, and as
it goes it becomes hotter or cooler. A fleet of taxis serves them: each drives to where an order might have come from
when it set out, waits there, and sets out again. So taxis crowd where the orders were a while ago.

Every choice is a hash of the seed and of what is chosen, and places go by the time since the beginning: a row is the
same in every process, and whichever rows are made with it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import ArrayLike

from meander.errors import InvalidOption
from meander.options import amount, listed, positive, whole
from meander.outlook import Series
from meander_lab.apps.hilbert import LARGEST_ORDER, Box, cell_of
from meander_lab.apps.zipf import TIME, Floats, Numbers, Whole, chance, dice, evenly, numbers, stamped

CHENGDU = Box(103.9, 30.55, 104.25, 30.8)
"""About 33 km by 28 km."""

EARTH_KM = 6371.0
DEGREE_KM = math.radians(EARTH_KM)

ORDERS, TRACKS = 0, 1
WAY, HEAT, WHICH, WHEN, PLACE, PHASE = range(16, 100, 16)
"""What a random number is for; orders and tracks add their side."""

REACH = 2 * math.sqrt(3)
"""Nothing is farther from its hot spot, each way, than so many times the spread."""

DRIVING = 0.5
"""The part of a trip that a taxi drives; after it, it waits."""


class Coordinates(NamedTuple):
    """Where things are, in degrees."""

    lon: Floats
    lat: Floats


@dataclass(frozen=True)
class Rides:
    """Orders and tracks.

    Side 0 has the orders: `order_id`, `ts`, `lon`, `lat` and `cell`. Side 1 has the tracks, where a taxi was at a
    time: `taxi_id` and the same. The taxis report one after the other, so each does so every `fleet` rows.

    Args:
        seed: which city.
        box: where it is; a `Box`, in degrees.
        order: the box has 2 ** order cells each way, numbered along Hilbert's curve.
        spots: how many hot spots there are.
        spread_km: how far orders are from their hot spot, as the standard deviation each way.
        scattered: the share of the orders that come from anywhere, from 0 to 1.
        moves_s: a hot spot reaches its next place after so many seconds of event time.
        fleet: how many taxis there are.
        trip_s: a taxi sets out again after so many seconds.
        demand: how many orders there are in each of many equal steps of time, only as ratios: a series as
            `meander.outlook.read_series` reads it, or plain numbers. Orders come closer together in event time where
            it is high; over all of it, after which it begins again, there are `rate` of them in a second. Without it,
            and for tracks, the rate is constant.
        step_s: how many seconds of event time a step takes; by default as many as in the series. With 1, half-hours
            become seconds, and a day goes by in 48 s.
    """

    seed: int = 0
    box: Box = CHENGDU
    order: int = 7
    spots: int = 6
    spread_km: float = 1.0
    scattered: float = 0.3
    moves_s: float = 900.0
    fleet: int = 5000
    trip_s: float = 300.0
    demand: Series | Sequence[float] | None = None
    step_s: float | None = None

    def __post_init__(self) -> None:
        whole("seed", self.seed, 0, 2**63 - 1)
        whole("order", self.order, 0, LARGEST_ORDER)
        whole("spots", self.spots, 1, 1000)
        whole("fleet", self.fleet, 1, 10_000_000)
        for name in ("moves_s", "trip_s"):
            positive(name, getattr(self, name))
        amount("spread_km", self.spread_km)
        if amount("scattered", self.scattered) > 1:
            raise InvalidOption(f"scattered is {self.scattered:g}; it is a share of the orders, from 0 to 1")
        object.__setattr__(self, "box", Box(*self.box))
        if min(self._inner.east - self._inner.west, self._inner.north - self._inner.south) < 0:
            raise InvalidOption(f"orders {self.spread_km:g} km around a hot spot do not fit the box; lower spread_km")
        self._read_demand()

    def schema(self, side: int) -> pa.Schema:
        """The columns of a side."""
        name = ("order_id", "taxi_id")[whole("side", side, 0, 1)]
        place = [("lon", pa.float64()), ("lat", pa.float64()), ("cell", pa.int64())]
        return pa.schema([(name, pa.string()), ("ts", TIME), *place])

    def rows(self, side: int, first: int, count: int, rate: float, since_us: int = 0) -> pa.Table:
        """The rows first to first + count - 1 of a side.

        Args:
            side: 0 for the orders, 1 for the tracks.
            first: the number of the first row.
            count: how many.
            rate: rows of this side in a second of event time, on the mean.
            since_us: the beginning, in microseconds since 1970. Only `ts` depends on it.
        """
        schema, number = self.schema(side), numbers(first, count)
        after_us = self.times(side, number, rate)
        if side == ORDERS:
            name, places = _named("order-", number), self._ordered(number, after_us / 1e6, ORDERS)
        else:
            taxi = number % self.fleet
            name, places = _named("taxi-", taxi), self._driven(taxi, after_us / 1e6)
        cell = cell_of(*places, self.box, self.order)
        return pa.table([name, stamped(after_us, since_us), *map(pa.array, (*places, cell))], schema=schema)

    def times(self, side: int, number: Whole, rate: float) -> Whole:
        """When the rows of these numbers come, in microseconds after the beginning; never earlier than those before."""
        even_us = evenly(number, rate)
        if side == TRACKS or self._cumulated is None or self.step_s is None:
            return np.floor(even_us).astype(np.int64)
        there = self._cumulated
        step_us, steps = self.step_s * 1e6, there.size - 1
        again, rest_us = np.divmod(even_us, step_us * steps)
        due = np.minimum(rest_us / (step_us * steps) * there[-1], np.nextafter(there[-1], 0))
        step = np.searchsorted(there, due, "right") - 1
        within = np.minimum((due - there[step]) / (there[step + 1] - there[step]), 1.0)
        after_us: Floats = (again * steps + step + within) * step_us
        return np.floor(after_us).astype(np.int64)

    def hot(self, after_s: ArrayLike) -> tuple[Coordinates, Floats]:
        """Where the hot spots are, and what share of the orders that are not scattered each has; a row for each time.

        Args:
            after_s: seconds of event time after the beginning.
        """
        leg, passed = _legs(np.atleast_1d(np.asarray(after_s, np.float64)), self.moves_s)
        every = np.arange(self.spots)
        places = self._on_the_way(every[None, :], leg[:, None], passed[:, None])
        heat = self._heat(leg) * (1 - passed[:, None]) + self._heat(leg + 1) * passed[:, None]
        return places, heat

    def _ordered(self, number: Whole, after_s: Floats, side: int) -> Coordinates:
        """Where orders of these numbers come from at these times."""
        leg, passed = _legs(after_s, self.moves_s)
        drawn = chance(dice(self.seed, WHICH + side, number))
        # To draw by the heat of before or of after, in turns, is to draw by what lies between them.
        later = chance(dice(self.seed, WHEN + side, number)) < passed
        legs, of = np.unique(leg + later, return_inverse=True)
        below = np.cumsum(self._heat(legs), axis=1)[:, :-1]
        scattered = drawn < self.scattered
        drawn = (drawn - self.scattered) / max(1 - self.scattered, 2.0**-53)
        spot = np.zeros(number.size, np.int64)
        for each in range(self.spots - 1):
            spot += drawn >= below[of, each]
        spots = self._on_the_way(spot, leg, passed)
        bits = dice(self.seed, PLACE + side, number)
        degrees = self._degrees(self.spread_km)
        around = Coordinates(
            *(at + _bell(bits, first_bit) * wide for at, first_bit, wide in zip(spots, (0, 32), degrees, strict=True))
        )
        anywhere = _somewhere(bits, self.box)
        return Coordinates(*(np.where(scattered, far, near) for far, near in zip(anywhere, around, strict=True)))

    def _driven(self, taxi: Whole, after_s: Floats) -> Coordinates:
        """Where taxis are at these times."""
        phase = chance(dice(self.seed, PHASE, taxi))
        trip, passed = _legs(after_s + phase * self.trip_s, self.trip_s)
        legs = []
        for which in (trip - 1, trip):
            set_out_s = (which - phase) * self.trip_s
            legs.append(self._ordered(which * self.fleet + taxi, set_out_s, TRACKS))
        driven = np.minimum(passed / DRIVING, 1.0)
        return Coordinates(*(come + (go - come) * driven for come, go in zip(*legs, strict=True)))

    def _on_the_way(self, spot: Whole, leg: Whole, passed: Floats) -> Coordinates:
        """Where hot spots are, so far into a leg of their way."""
        come, go = (_somewhere(dice(self.seed, WAY, at * self.spots + spot), self._inner) for at in (leg, leg + 1))
        return Coordinates(*(start + (end - start) * passed for start, end in zip(come, go, strict=True)))

    def _heat(self, leg: Whole) -> Floats:
        """The shares of the hot spots when a leg begins: most of them small, some large."""
        drawn = chance(dice(self.seed, HEAT, leg[:, None] * self.spots + np.arange(self.spots))) + 2.0**-10
        heat = drawn * drawn * drawn
        return np.asarray(heat / heat.sum(axis=1, keepdims=True))

    @cached_property
    def _inner(self) -> Box:
        """Where hot spots may be: nothing around them falls out of the box."""
        lon, lat = self._degrees(REACH * self.spread_km)
        west, south, east, north = self.box
        return Box(west + lon, south + lat, east - lon, north - lat)

    def _degrees(self, km: float) -> tuple[float, float]:
        middle = math.radians((self.box.south + self.box.north) / 2)
        return km / (DEGREE_KM * math.cos(middle)), km / DEGREE_KM

    def _read_demand(self) -> None:
        demand = self.demand
        if demand is None:
            return
        if isinstance(demand, Series):
            if np.unique(np.diff(demand.times)).size > 1:
                raise InvalidOption("the steps of demand differ in length; give it by hours, as hourly(fill=0) does")
            if self.step_s is None:
                object.__setattr__(self, "step_s", demand.interval_s)
            demand = demand.values.tolist()
        values = tuple(float(amount("demand", each)) for each in listed("demand", demand))
        if not sum(values) > 0:
            raise InvalidOption("demand has nothing above 0; give a series with orders in it, or none")
        if self.step_s is None:
            raise InvalidOption("demand does not say how long its steps are; give step_s")
        positive("step_s", self.step_s)
        object.__setattr__(self, "demand", values)

    @cached_property
    def _cumulated(self) -> Floats | None:
        """What is due before each step of the demand, and after the last."""
        return None if self.demand is None else np.cumsum([0.0, *listed("demand", self.demand)])


def distance_km(lon1: ArrayLike, lat1: ArrayLike, lon2: ArrayLike, lat2: ArrayLike) -> Floats:
    """How far places are from one another in kilometres, as if the ground between them were flat.

    Within a city it differs from the way over the globe by less than a thousandth; at the poles, and from one side of
    the 180th meridian to the other, it is of no use.

    >>> float(distance_km(104.0, 30.6, 104.0, 30.7).round(3))
    11.119
    """
    lon1, lat1, lon2, lat2 = (np.asarray(degrees, np.float64) for degrees in (lon1, lat1, lon2, lat2))
    east = (lon2 - lon1) * np.cos(np.radians((lat1 + lat2) / 2))
    return np.asarray(np.hypot(east, lat2 - lat1) * DEGREE_KM)


def _named(what: str, number: Whole) -> pa.Array:
    return pc.binary_join_element_wise(what, pa.array(number).cast(pa.string()), "")


def _legs(after_s: Floats, long_s: float) -> tuple[Whole, Floats]:
    """Which leg of a way a time falls into, and how much of it has passed."""
    leg, rest_s = np.divmod(after_s, long_s)
    return leg.astype(np.int64), rest_s / long_s


def _somewhere(bits: Numbers, box: Box) -> Coordinates:
    """A place anywhere in a box: half of the bits for each way."""
    x, y = (half.astype(np.float64) * 2.0**-32 for half in (bits >> np.uint64(32), bits & np.uint64(2**32 - 1)))
    return Coordinates(box.west + x * (box.east - box.west), box.south + y * (box.north - box.south))


def _bell(bits: Numbers, first_bit: int) -> Floats:
    """Numbers around 0 with standard deviation 1, bell-shaped: the sum of four bytes of the bits.

    Sums of whole numbers are the same on every machine; logarithms and cosines are not.
    """
    summed = np.zeros(bits.shape, np.int64)
    for byte in range(first_bit, first_bit + 32, 8):
        summed += ((bits >> np.uint64(byte)) & np.uint64(255)).astype(np.int64)
    return (summed - 510).astype(np.float64) * math.sqrt(3 / 65535)
