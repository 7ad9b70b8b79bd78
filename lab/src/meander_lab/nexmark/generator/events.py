"""Batches of events: any range of event numbers of one kind, as Arrow."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from meander.errors import InvalidOption
from meander.options import whole
from meander_lab.nexmark.generator import draw_kernel as draw
from meander_lab.nexmark.generator.config import END_MS, Config
from meander_lab.nexmark.generator.words import CITIES, LAST_NAMES, NAMES, STATES, channels, triples
from meander_lab.nexmark.model import KINDS, TIME

Ints = NDArray[np.int64]

_LARGEST_TEXT = 2**31 - 1
_LONGEST_WORD = 110


def events(kind: str, first: int, last: int, config: Config) -> pa.RecordBatch:
    """Return the events of one kind among the numbers first..last - 1, in order of number.

    Args:
        kind: "person", "auction" or "bid".
        first: the first event number, from 0 on; numbers run over all kinds.
        last: the number after the last one.
        config: what is generated; numbers are those of all its generators.

    All values are Beam's. A bid's channel, which Beam has not, is the one that Flink gives to the same bid: it is
    drawn from a copy of the bid's random, at the place where Flink draws it, so that nothing else changes by it. Its
    URL depends on the channel alone.

    Raises:
        InvalidOption: there is no such kind or no such number, or the events are too many for one batch.
    """
    schema = _known(kind)
    last = whole("last", last, 0, config.total)
    first = whole("first", first, 0, last)
    number = (last - 1) // config.generators if last <= _even(config) else last - 1 - _even(config) + _each(config)
    # An event out of order may be one from the end of its group, and its auction ends twice a horizon later.
    farthest = number + config.out_of_order + 2 * _ahead(config)
    if config.time_ms(farthest) >= END_MS:
        raise InvalidOption(f"event {last - 1} lies after the year 9999; begin earlier or make rate_per_s higher")
    size, average = _sizes(kind, config)
    most = int(draw.most_extra(size, average))
    fit = _LARGEST_TEXT // max(most, _LONGEST_WORD)
    if last - first > fit:
        raise InvalidOption(f"events {first} to {last - 1} are too many for one batch; make at most {fit} at a time")
    shape = _shape(config, average)
    low, high = _places(kind, config)
    ids, numbers = draw.picked(first, last, low, high, shape)
    columns = {"person": _persons, "auction": _auctions, "bid": _bids}[kind](ids, numbers, shape, most, config)
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def _persons(ids: Ints, numbers: Ints, shape: draw.GeneratorShape, most: int, config: Config) -> dict[str, pa.Array]:
    id_, name, city, state, email_ends, emails, cards, extra_ends, extras = draw.persons(
        ids, shape, NAMES.sizes, CITIES.sizes, STATES.sizes, len(LAST_NAMES), triples(), most
    )
    card_ends = np.arange(ids.size + 1, dtype=np.int32) * np.int32(draw.CARD_LETTERS)
    return {
        "id": _numbers(id_),
        "name": NAMES.texts.take(_numbers(name)),
        "emailAddress": _texts(email_ends, emails),
        "creditCard": _texts(card_ends, cards),
        "city": CITIES.texts.take(_numbers(city)),
        "state": STATES.texts.take(_numbers(state)),
        "dateTime": _times(_times_ms(numbers, config)),
        "extra": _texts(extra_ends, extras),
    }


def _auctions(ids: Ints, numbers: Ints, shape: draw.GeneratorShape, most: int, config: Config) -> dict[str, pa.Array]:
    begin_ms = _times_ms(numbers, config)
    horizons_ms = _times_ms(numbers + _ahead(config), config) - begin_ms
    id_, name_ends, names, text_ends, texts, initial, reserve, length_ms, seller, category, extra_ends, extras = (
        draw.auctions(ids, horizons_ms, shape, triples(), most)
    )
    return {
        "id": _numbers(id_),
        "itemName": _texts(name_ends, names),
        "description": _texts(text_ends, texts),
        "initialBid": _numbers(initial),
        "reserve": _numbers(reserve),
        "dateTime": _times(begin_ms),
        "expires": _times(begin_ms + length_ms),
        "seller": _numbers(seller),
        "category": _numbers(category),
        "extra": _texts(extra_ends, extras),
    }


def _bids(ids: Ints, numbers: Ints, shape: draw.GeneratorShape, most: int, config: Config) -> dict[str, pa.Array]:
    auction, bidder, price, channel, extra_ends, extras = draw.bids(ids, shape, triples(), most)
    names, urls = channels()
    index = _numbers(channel)
    return {
        "auction": _numbers(auction),
        "bidder": _numbers(bidder),
        "price": _numbers(price),
        "channel": names.take(index),
        "url": urls.take(index),
        "dateTime": _times(_times_ms(numbers, config)),
        "extra": _texts(extra_ends, extras),
    }


def _known(kind: object) -> pa.Schema:
    if not isinstance(kind, str) or kind not in KINDS:
        raise InvalidOption(f"there are no events of kind {kind!r}; the kinds are {', '.join(KINDS)}")
    return KINDS[kind]


def _each(config: Config) -> int:
    return config.total // config.generators


def _even(config: Config) -> int:
    return _each(config) * config.generators


def _ahead(config: Config) -> int:
    """How many events it takes until as many auctions as are open have come."""
    return config.auctions_in_flight * config.round_events // config.auctions


def _places(kind: str, config: Config) -> tuple[int, int]:
    """The places that events of this kind have in each round."""
    begun = config.persons + config.auctions
    return {"person": (0, config.persons), "auction": (config.persons, begun), "bid": (begun, config.round_events)}[
        kind
    ]


def _sizes(kind: str, config: Config) -> tuple[int, int]:
    """The least size of an event without `extra`, and its average size."""
    return {
        "person": (draw.PERSON_SIZE, config.person_bytes),
        "auction": (draw.AUCTION_SIZE, config.auction_bytes),
        "bid": (draw.BID_SIZE, config.bid_bytes),
    }[kind]


def _shape(config: Config, average: int) -> draw.GeneratorShape:
    return draw.GeneratorShape(
        first_id=config.first_id,
        generators=config.generators,
        each=_each(config),
        group=config.out_of_order,
        persons=config.persons,
        auctions=config.auctions,
        round_events=config.round_events,
        hot_auctions=config.hot_auctions,
        hot_sellers=config.hot_sellers,
        hot_bidders=config.hot_bidders,
        in_flight=config.auctions_in_flight,
        active=config.active_people,
        average=average,
        ten=10.0,
    )


def _times_ms(numbers: Ints, config: Config) -> Ints:
    delays_us, step_events = np.array(config.delays_us, np.int64), np.array(config.step_events, np.int64)
    return draw.times_ms(numbers, delays_us, step_events, config.base_time_ms)


def _numbers(values: Ints) -> pa.Array:
    return pa.Array.from_buffers(pa.int64(), values.size, [None, pa.py_buffer(values)])


def _times(values_ms: Ints) -> pa.Array:
    return pa.Array.from_buffers(TIME, values_ms.size, [None, pa.py_buffer(values_ms * 1000)])


def _texts(ends: NDArray[np.int32], letters: NDArray[np.uint8]) -> pa.Array:
    return pa.Array.from_buffers(pa.string(), ends.size - 1, [None, pa.py_buffer(ends), pa.py_buffer(letters)])
