"""The generator against a slow one that is written from what Beam's Java classes do, draw by draw."""

import math
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain, pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from effort import examples
from meander.errors import InvalidOption
from meander_lab.nexmark.generator import Config, events
from meander_lab.nexmark.generator.words import channels
from meander_lab.nexmark.model import KINDS

ONE = Config(count=None, generators=1)


def wrapped(value: int, bits: int) -> int:
    """A number as Java's int or long hold it."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


class Random:
    """java.util.Random, as its documentation states it."""

    def __init__(self, seed: int) -> None:
        self.state = (seed ^ 0x5DEECE66D) & ((1 << 48) - 1)

    def next(self, bits: int) -> int:
        self.state = (self.state * 0x5DEECE66D + 0xB) & ((1 << 48) - 1)
        return wrapped(self.state >> (48 - bits), 32)

    def next_int(self, bound: int | None = None) -> int:
        if bound is None:
            return self.next(32)
        if bound & -bound == bound:
            return (bound * self.next(31)) >> 31
        while True:
            bits = self.next(31)
            value = bits % bound
            if wrapped(bits - value + (bound - 1), 32) >= 0:
                return value

    def next_long(self) -> int:
        high = self.next(32)
        return wrapped((high << 32) + self.next(32), 64)

    def next_double(self) -> float:
        high = self.next(26)
        return ((high << 27) + self.next(27)) * 2.0**-53

    def copy(self) -> "Random":
        other = Random(0)
        other.state = self.state
        return other


def test_the_oracle_draws_what_java_draws():
    random = Random(42)
    assert [random.next_int(), random.next_int()] == [-1170105035, 234785527]
    assert Random(0).next_long() == -4962768465676381896
    random = Random(42)
    assert [random.next_int(10) for _ in range(10)] == [0, 3, 8, 4, 0, 5, 5, 8, 9, 3]


FIRST = ["Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter"]
LAST = ["Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris"]
CITIES = [
    "Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond", "Seattle", "Kent", "Cheyenne"
]  # fmt: skip
STATES = ["AZ", "CA", "ID", "OR", "WA", "WY"]
HOT_CHANNELS = ["Google", "Facebook", "Baidu", "Apple"]


@dataclass
class Slow:
    """One generator of a configuration: its first id and how many share the rate."""

    config: Config
    first_id: int
    sharing: int

    def event(self, count_so_far: int) -> tuple[str, dict]:
        c = self.config
        group = c.out_of_order
        number = count_so_far // group * group + count_so_far * 953 % group
        id_ = self.first_id + number
        random, place = Random(id_), id_ % c.round_events
        if place < c.persons:
            return "person", self.person(id_, number, random)
        if place < c.persons + c.auctions:
            return "auction", self.auction(id_, number, random)
        return "bid", self.bid(id_, number, random)

    def time_ms(self, number: int) -> int:
        c = self.config
        next_rate = c.rate_per_s if c.next_rate_per_s is None else c.next_rate_per_s
        if c.rate_per_s == next_rate:
            return c.base_time_ms + number * self.delay_us(c.rate_per_s) // 1000
        if c.rate_shape == "square":
            rates = [c.rate_per_s, next_rate]
        else:
            rates = []
            for i in range(10):
                rate = (c.rate_per_s + next_rate) / 2 + (c.rate_per_s - next_rate) / 2 * math.cos(2 * math.pi * i / 10)
                rates.append(math.floor(rate + 0.5))
        step_us = -(-c.rate_period_s // len(rates)) * 1_000_000
        passed_ms, at = 0, 0
        while True:
            delay_us = self.delay_us(rates[at % len(rates)])
            here = step_us // delay_us
            if number < here:
                return c.base_time_ms + passed_ms + number * delay_us // 1000
            number -= here
            passed_ms += here * delay_us // 1000
            at += 1

    def delay_us(self, rate: int) -> int:
        return (1_000_000 + rate // 2) // rate * self.sharing

    def last_person(self, id_: int) -> int:
        rounds, place = divmod(id_, self.config.round_events)
        return rounds * self.config.persons + min(place, self.config.persons - 1)

    def last_auction(self, id_: int) -> int:
        c = self.config
        rounds, place = divmod(id_, c.round_events)
        if place < c.persons:
            return (rounds - 1) * c.auctions + c.auctions - 1
        return rounds * c.auctions + min(place - c.persons, c.auctions - 1)

    def some_person(self, id_: int, random: Random) -> int:
        people = self.last_person(id_) + 1
        active = min(people, self.config.active_people)
        return people - active + below(random, active + 10)

    def person(self, id_: int, number: int, random: Random) -> dict:
        name = FIRST[random.next_int(11)] + " " + LAST[random.next_int(9)]
        email = word(random, 7) + "@" + word(random, 5) + ".com"
        card = " ".join(f"{random.next_int(10000):04d}" for _ in range(4))
        city, state = CITIES[random.next_int(10)], STATES[random.next_int(6)]
        size = 8 + len(name) + len(email) + len(card) + len(city) + len(state)
        return {
            "id": self.last_person(id_) + 1000, "name": name, "emailAddress": email, "creditCard": card, "city": city,
            "state": state, "dateTime": self.time_ms(number), "extra": extra(random, size, self.config.person_bytes),
        }  # fmt: skip

    def auction(self, id_: int, number: int, random: Random) -> dict:
        c = self.config
        if random.next_int(c.hot_sellers) > 0:
            seller = self.last_person(id_) // 100 * 100
        else:
            seller = self.some_person(id_, random)
        category, initial = 10 + random.next_int(5), price(random)
        begin = self.time_ms(number)
        horizon = self.time_ms(number + c.auctions_in_flight * c.round_events // c.auctions) - begin
        expires = begin + 1 + below(random, max(horizon * 2, 1))
        name, text = word(random, 20), word(random, 100)
        reserve = initial + price(random)
        size = 8 + len(name) + len(text) + 40
        return {
            "id": self.last_auction(id_) + 1000, "itemName": name, "description": text, "initialBid": initial,
            "reserve": reserve, "dateTime": begin, "expires": expires, "seller": seller + 1000, "category": category,
            "extra": extra(random, size, c.auction_bytes),
        }  # fmt: skip

    def bid(self, id_: int, number: int, random: Random) -> dict:
        c = self.config
        newest = self.last_auction(id_)
        if random.next_int(c.hot_auctions) > 0:
            auction = newest // 100 * 100
        else:
            oldest = max(newest - c.auctions_in_flight, 0)
            auction = oldest + below(random, newest - oldest + 11)
        if random.next_int(c.hot_bidders) > 0:
            bidder = self.last_person(id_) // 100 * 100 + 1
        else:
            bidder = self.some_person(id_, random)
        paid = price(random)
        flink = random.copy()
        hot = flink.next_int(2) > 0
        channel = HOT_CHANNELS[flink.next_int(4)] if hot else f"channel-{flink.next_int(10_000)}"
        return {
            "auction": auction + 1000, "bidder": bidder + 1000, "price": paid, "channel": channel,
            "url": urls()[channel], "dateTime": self.time_ms(number), "extra": extra(random, 32, c.bid_bytes),
        }  # fmt: skip


def below(random: Random, bound: int) -> int:
    return random.next_int(bound) if bound < 2**31 - 1 else abs(random.next_long()) % bound


def price(random: Random) -> int:
    return math.floor(10.0 ** (random.next_double() * 6.0) * 100.0 + 0.5)


def word(random: Random, longest: int, special: str = " ") -> str:
    length = 3 + random.next_int(longest - 3)
    letters = [special if random.next_int(13) == 0 else chr(97 + random.next_int(26)) for _ in range(length)]
    return "".join(letters).strip(" ")


def extra(random: Random, size: int, average: int) -> str:
    if size > average:
        return ""
    spread = math.floor((average - size) * 0.2 + 0.5)
    length = average - size - spread + (random.next_int(2 * spread) if spread else 0)
    letters, drawn = [], 0
    for i in range(length):
        if i % 6 == 0:
            drawn = random.next_int()
        sign = -1 if drawn < 0 else 1
        letters.append(chr(97 + sign * (abs(drawn) % 26)))
        drawn = sign * (abs(drawn) // 26)
    return "".join(letters)


def urls(found: dict[str, str] = {}) -> dict[str, str]:  # noqa: B006 (it is made once)
    random = Random(0)
    for number in range(-4, 10_000) if not found else ():
        url = "https://www.nexmark.com/" + "".join(word(random, 5, "_") + "/" for _ in range(3)) + "item.htm?query=1"
        if number >= 0 and random.next_int(10) > 0:
            turned = wrapped(sum((number >> i & 1) << (31 - i) for i in range(32)), 32)
            url += f"&channel_id={wrapped(abs(turned), 32)}"
        found[f"channel-{number}" if number >= 0 else HOT_CHANNELS[number]] = url
    return found


def slowly(config: Config, first: int, last: int) -> Iterator[tuple[str, dict]]:
    """The events first..last - 1 of all generators, one after the other."""
    each = config.total // config.generators
    for number in range(first, last):
        count, generator = divmod(number, config.generators)
        if number >= each * config.generators:
            count, generator = each + number - each * config.generators, config.generators - 1
        sharing = config.sharing or config.generators
        yield Slow(config, config.first_id + generator * each, sharing).event(count)


def rows(batch: pa.RecordBatch) -> list[dict]:
    """The rows of a batch, with times in milliseconds."""
    columns = {}
    for field in batch.schema:
        values = batch.column(field.name)
        if pa.types.is_timestamp(field.type):
            us = values.cast(pa.int64()).to_pylist()
            assert not any(each % 1000 for each in us)
            columns[field.name] = [each // 1000 for each in us]
        else:
            columns[field.name] = values.to_pylist()
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def assert_same(config: Config, first: int, last: int) -> None:
    expected = {kind: [] for kind in KINDS}
    for kind, event in slowly(config, first, last):
        expected[kind].append(event)
    for kind, schema in KINDS.items():
        batch = events(kind, first, last, config)
        batch.validate(full=True)
        assert batch.schema == schema
        assert rows(batch) == expected[kind]


def test_beams_default_events():
    assert_same(Config(), 0, 3000)
    assert_same(Config(), 97_000, 100_000)


@pytest.mark.parametrize("first", [0, 49_990, 10**9, 10**13 + 7, 368_934_881_472_000])
def test_one_generator_near_and_far(first):
    assert_same(ONE, first, first + 1500)


@pytest.mark.parametrize(
    "config",
    [
        replace(ONE, out_of_order=1000),
        Config(count=2003, generators=7, out_of_order=10),
        Config(count=5, generators=7),
        Config(count=2000, generators=3, rate_per_s=100, next_rate_per_s=3000, rate_period_s=7),
        Config(count=2000, generators=2, rate_per_s=3000, next_rate_per_s=90, rate_period_s=3, rate_shape="square"),
        Config(count=2000, persons=2, auctions=5, bids=9, hot_auctions=7, hot_sellers=1, hot_bidders=3),
        Config(count=2000, person_bytes=90, auction_bytes=100, bid_bytes=32, auctions_in_flight=0, active_people=0),
        Config(count=2000, person_bytes=0, auction_bytes=0, bid_bytes=33, hot_auctions=1, hot_bidders=1),
        Config(count=2000, generators=1, rate_per_s=1, auctions_in_flight=80_000, base_time_ms=0),
        Config(count=2000, generators=1, rate_per_s=1, auctions_in_flight=20_000_000),
    ],
    ids=range(10),
)
def test_other_configurations(config):
    assert_same(config, 0, min(config.total, 2003))


@examples(40)
@given(data=st.data())
def test_any_configuration(data):
    draw = data.draw
    config = Config(
        count=draw(st.integers(0, 10_000)),
        generators=draw(st.integers(1, 120)),
        rate_per_s=draw(st.integers(1, 2_000_000)),
        next_rate_per_s=draw(st.none() | st.integers(1, 50_000)),
        rate_shape=draw(st.sampled_from(["sine", "square"])),
        rate_period_s=draw(st.integers(2_000, 4_000)),
        persons=draw(st.integers(1, 5)),
        auctions=draw(st.integers(1, 5)),
        bids=draw(st.integers(1, 50)),
        hot_auctions=draw(st.integers(1, 9) | st.just(2**31 - 1) | st.just(2**30 + 1)),
        hot_sellers=draw(st.integers(1, 9) | st.just(2**30 + 1)),
        hot_bidders=draw(st.integers(1, 9) | st.just(2**30 + 1)),
        auctions_in_flight=draw(st.integers(0, 400)),
        active_people=draw(st.integers(0, 2000)),
        person_bytes=draw(st.integers(0, 250)),
        auction_bytes=draw(st.integers(0, 600)),
        bid_bytes=draw(st.integers(0, 200)),
        out_of_order=draw(st.integers(1, 1100)),
        first_id=draw(st.integers(0, 2**50)),
        sharing=draw(st.none() | st.integers(1, 200)),
    )
    first = draw(st.integers(0, config.total))
    assert_same(config, first, min(config.total, first + 60))


def test_beams_published_counts():
    """100,000 events have 92,000 bids, and 351 of them are on an auction whose id is a multiple of 123."""
    found = {kind: events(kind, 0, 100_000, Config()) for kind in KINDS}
    assert {kind: batch.num_rows for kind, batch in found.items()} == {"person": 2000, "auction": 6000, "bid": 92_000}
    assert (found["bid"]["auction"].to_numpy() % 123 == 0).sum() == 351


@pytest.mark.parametrize("config", [Config(count=10_007, generators=7), Config(count=10_000), ONE], ids=range(3))
@pytest.mark.parametrize("kind", KINDS)
def test_events_do_not_depend_on_how_they_are_cut(kind, config):
    whole = events(kind, 0, 10_000, config)
    cuts = [0, 1, 2, 50, 51, 4999, 9999, 10_000]
    parts = [events(kind, low, high, config) for low, high in pairwise(cuts)]
    assert pa.Table.from_batches(parts).combine_chunks() == pa.Table.from_batches([whole])


@pytest.mark.parametrize("kind", KINDS)
def test_generators_are_the_parts_of_a_split(kind):
    config = Config(count=5003, generators=7, out_of_order=3)
    parts = [events(kind, 0, part.total, part).to_pylist() for part in config.split(7)]
    assert sorted(chain(*parts), key=repr) == sorted(events(kind, 0, 5003, config).to_pylist(), key=repr)


def test_a_split_shares_events_and_rate():
    parts = Config(count=1003, generators=10).split(10)
    assert [part.total for part in parts] == [100] * 9 + [103]
    assert [part.first_id for part in parts] == list(range(0, 1000, 100))
    assert {part.delays_us for part in parts} == {(1000,)}
    (only,) = ONE.split(1)
    assert events("bid", 0, 500, only) == events("bid", 0, 500, ONE)


def test_numbers_go_with_time():
    times = np.concatenate([events("bid", low, low + 1000, Config())["dateTime"].to_numpy() for low in (0, 1000, 2000)])
    assert (np.diff(times) >= np.timedelta64(0)).all()


def test_time_begins_where_beams_does():
    first = events("person", 0, 1, Config())["dateTime"][0].as_py()
    assert first == datetime(2015, 7, 15, tzinfo=UTC)
    assert Config().total == 100_000
    assert replace(Config(), count=None).total == (2**63 - 1) // 25_000


def test_channels_are_flinks():
    names, made = channels()
    assert len(names) == len(set(names.to_pylist())) == 10_004
    assert names.to_pylist()[:5] == [*HOT_CHANNELS, "channel-0"]
    assert dict(zip(names.to_pylist(), made.to_pylist(), strict=True)) == urls()
    share = events("bid", 0, 100_000, Config())["channel"].to_pylist()
    assert 0.49 < sum(name in HOT_CHANNELS for name in share) / len(share) < 0.51


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"count": -1}, "count is -1; it must be a whole number"),
        ({"count": 2**62}, "count is"),
        ({"count": 1.5}, "count is 1.5"),
        ({"generators": 0}, "generators is 0"),
        ({"rate_per_s": 3_000_000}, "rate_per_s is 3000000; it must be a whole number from 1 to 2000000"),
        ({"next_rate_per_s": 0}, "next_rate_per_s is 0"),
        ({"rate_shape": "saw"}, "rate_shape is 'saw'; it must be one of sine, square"),
        ({"rate_per_s": 1, "next_rate_per_s": 2, "rate_period_s": 10}, "make rate_period_s longer"),
        ({"hot_auctions": 0}, "hot_auctions is 0"),
        ({"bids": True}, "bids is True"),
        ({"sharing": 0}, "sharing is 0"),
    ],
)
def test_a_configuration_is_refused_when_it_is_made(options, message):
    with pytest.raises(InvalidOption, match=message):
        Config(**options)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (("offer", 0, 1, Config()), "no events of kind 'offer'; the kinds are person, auction, bid"),
        (("bid", 0, 100_001, Config()), "last is 100001; it must be a whole number from 0 to 100000"),
        (("bid", 5, 4, Config()), "first is 5"),
        (("bid", 0, 30_000_000, ONE), "too many for one batch; make at most"),
        (("bid", 0, 10, replace(ONE, base_time_ms=253_402_300_799_999)), "after the year 9999"),
        (("auction", 10**12, 10**12 + 1, replace(ONE, rate_per_s=1)), "after the year 9999"),
    ],
)
def test_what_cannot_be_made_is_refused(asked, message):
    with pytest.raises(InvalidOption, match=message):
        events(*asked)


def test_no_events_are_an_empty_batch():
    for kind, schema in KINDS.items():
        assert events(kind, 7, 7, Config()).num_rows == 0
        assert events(kind, 0, 0, Config(count=0)).schema == schema


def test_importing_the_generator_loads_neither_numba_nor_spark():
    code = "import sys, meander_lab.nexmark.files; print([m for m in ('numba', 'pyspark') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
