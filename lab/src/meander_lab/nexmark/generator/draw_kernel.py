"""The values of events, drawn as Java draws them: the inner loops of `events`.

A state is that of a `java.util.Random`: 48 bits in an int64. Every function that draws takes a state and returns the
one after its draws, then what it drew. Bytes go to `out` from position `at` on, and what is returned is their end.

Math.pow(10, x) is the C library's pow here. The two are within an ulp of each other, and a price in about 10^9 is so
close to a half that this decides how it is rounded.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meander.kernel import kernel

Ints = NDArray[np.int64]
Offsets = NDArray[np.int32]
Letters = NDArray[np.uint8]

MULTIPLIER = 0x5DEECE66D
MASK = (1 << 48) - 1
INT_MAX = (1 << 31) - 1

FIRST_ID = 1000
FIRST_CATEGORY = 10
CATEGORIES = 5
LEAD = 10
HOT_BATCH = 100
LEAST_LETTERS = 3

PERSON_SIZE, AUCTION_SIZE, BID_SIZE = 8, 48, 32
NAME_LETTERS, DESCRIPTION_LETTERS, EMAIL_LETTERS, CARD_LETTERS = 19, 99, 15, 19

TRIPLES = 26**3
SIX = 6

HOT_CHANNELS = 4
CHANNELS = 10_000

A, BLANK, UNDERSCORE, SLASH, ZERO = ord("a"), ord(" "), ord("_"), ord("/"), ord("0")
AT, DOT_COM = ord("@"), np.frombuffer(b".com", dtype=np.uint8)


class GeneratorShape(NamedTuple):
    """What of a `Config` decides over values. `each` is the number of events of every generator but the last."""

    first_id: int
    generators: int
    each: int
    group: int
    persons: int
    auctions: int
    round_events: int
    hot_auctions: int
    hot_sellers: int
    hot_bidders: int
    in_flight: int
    active: int
    average: int
    ten: float


@kernel
def picked(first: int, last: int, low: int, high: int, shape: GeneratorShape) -> tuple[Ints, Ints]:
    """Return (ids, numbers within their generator) of the events of one kind: low <= id mod round < high."""
    ids, numbers = np.empty(last - first, dtype=np.int64), np.empty(last - first, dtype=np.int64)
    count, even = 0, shape.generators * shape.each
    number, generator = first // shape.generators, first % shape.generators
    for each in range(first, last):
        if each >= even:
            number, generator = shape.each + each - even, shape.generators - 1
        local = number
        if shape.group > 1:
            local = number // shape.group * shape.group + number * 953 % shape.group
        id_ = shape.first_id + generator * shape.each + local
        place = id_ % shape.round_events
        if low <= place < high:
            ids[count], numbers[count] = id_, local
            count += 1
        generator += 1
        if generator == shape.generators:
            number, generator = number + 1, 0
    return ids[:count], numbers[:count]


@kernel
def times_ms(numbers: Ints, delays_us: Ints, events: Ints, base_ms: int) -> Ints:
    """Return when events happen, in milliseconds: in each step of the rate's period there is another delay."""
    times = np.empty(numbers.size, dtype=np.int64)
    if delays_us.size == 1:
        for i in range(numbers.size):
            times[i] = base_ms + numbers[i] * delays_us[0] // 1000
        return times
    steps_ms = events * delays_us // 1000
    period_events, period_ms = events.sum(), steps_ms.sum()
    for i in range(numbers.size):
        left, step = numbers[i] % period_events, 0
        time = base_ms + numbers[i] // period_events * period_ms
        while left >= events[step]:
            left -= events[step]
            time += steps_ms[step]
            step += 1
        times[i] = time + left * delays_us[step] // 1000
    return times


@kernel
def persons(
    ids: Ints,
    shape: GeneratorShape,
    name_sizes: Ints,
    city_sizes: Ints,
    state_sizes: Ints,
    lasts: int,
    triples: Letters,
    most: int,
) -> tuple[Ints, Ints, Ints, Ints, Offsets, Letters, Letters, Offsets, Letters]:
    """Return (id, name, city and state by index, emails as offsets and bytes, cards as bytes, extra likewise).

    The name is first name * `lasts` + last name.
    """
    n = ids.size
    id_, name, city, state_ = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    emails, email_ends = np.empty(n * EMAIL_LETTERS, np.uint8), np.zeros(n + 1, np.int32)
    cards = np.full(n * CARD_LETTERS, BLANK, np.uint8)
    extras, extra_ends = np.empty(n * most + SIX, np.uint8), np.zeros(n + 1, np.int32)
    end, extra_end = 0, 0
    for i in range(n):
        state = _seeded(ids[i])
        id_[i] = _last_person(ids[i], shape) + FIRST_ID
        state, one = _below(state, name_sizes.size // lasts)
        state, other = _below(state, lasts)
        name[i] = one * lasts + other
        start = end
        state, end = _word(state, 7, BLANK, emails, end)
        emails[end] = AT
        state, end = _word(state, 5, BLANK, emails, end + 1)
        emails[end : end + 4] = DOT_COM
        end += 4
        email_ends[i + 1] = end
        for group in range(4):
            state, four = _below(state, 10_000)
            last = i * CARD_LETTERS + group * 5 + 3
            for digit in range(4):
                cards[last - digit] = ZERO + four % 10
                four //= 10
        state, city[i] = _below(state, city_sizes.size)
        state, state_[i] = _below(state, state_sizes.size)
        size = name_sizes[name[i]] + end - start + CARD_LETTERS + city_sizes[city[i]] + state_sizes[state_[i]]
        state, extra_end = _extra(state, PERSON_SIZE + size, shape.average, triples, extras, extra_end)
        extra_ends[i + 1] = extra_end
    return id_, name, city, state_, email_ends, emails[:end], cards, extra_ends, extras[:extra_end]


@kernel
def auctions(
    ids: Ints, horizons_ms: Ints, shape: GeneratorShape, triples: Letters, most: int
) -> tuple[Ints, Offsets, Letters, Offsets, Letters, Ints, Ints, Ints, Ints, Ints, Offsets, Letters]:
    """Return (id, name and description as offsets and bytes, initial bid, reserve, length in ms, seller, category,
    extra as offsets and bytes), where auctions are open for about `horizons_ms`.
    """  # noqa: D205
    n = ids.size
    id_, seller, category = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    initial, reserve, length_ms = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    names, name_ends = np.empty(n * NAME_LETTERS, np.uint8), np.zeros(n + 1, np.int32)
    texts, text_ends = np.empty(n * DESCRIPTION_LETTERS, np.uint8), np.zeros(n + 1, np.int32)
    extras, extra_ends = np.empty(n * most + SIX, np.uint8), np.zeros(n + 1, np.int32)
    name_end, text_end, extra_end = 0, 0, 0
    for i in range(n):
        state = _seeded(ids[i])
        id_[i] = _last_auction(ids[i], shape) + FIRST_ID
        state, cold = _below(state, shape.hot_sellers)
        if cold > 0:
            seller[i] = _last_person(ids[i], shape) // HOT_BATCH * HOT_BATCH + FIRST_ID
        else:
            state, seller[i] = _person(state, ids[i], shape)
        state, drawn = _below(state, CATEGORIES)
        category[i] = FIRST_CATEGORY + drawn
        state, initial[i] = _price(state, shape.ten)
        state, drawn = _within(state, max(horizons_ms[i] * 2, 1))
        length_ms[i] = 1 + drawn
        name_start, text_start = name_end, text_end
        state, name_end = _word(state, NAME_LETTERS + 1, BLANK, names, name_end)
        state, text_end = _word(state, DESCRIPTION_LETTERS + 1, BLANK, texts, text_end)
        state, drawn = _price(state, shape.ten)
        reserve[i] = initial[i] + drawn
        size = AUCTION_SIZE + name_end - name_start + text_end - text_start
        state, extra_end = _extra(state, size, shape.average, triples, extras, extra_end)
        name_ends[i + 1], text_ends[i + 1], extra_ends[i + 1] = name_end, text_end, extra_end
    names, texts, extras = names[:name_end], texts[:text_end], extras[:extra_end]
    return (
        id_, name_ends, names, text_ends, texts, initial, reserve, length_ms, seller, category, extra_ends, extras
    )  # fmt: skip


@kernel
def bids(
    ids: Ints, shape: GeneratorShape, triples: Letters, most: int
) -> tuple[Ints, Ints, Ints, Ints, Offsets, Letters]:
    """Return (auction, bidder, price, channel by index, extra as offsets and bytes).

    The channel is drawn where Flink draws it, after the price, but from a copy of the random: Beam's extra follows.
    """
    n = ids.size
    auction, bidder = np.empty(n, np.int64), np.empty(n, np.int64)
    price, channel = np.empty(n, np.int64), np.empty(n, np.int64)
    extras, extra_ends = np.empty(n * most + SIX, np.uint8), np.zeros(n + 1, np.int32)
    end = 0
    for i in range(n):
        state = _seeded(ids[i])
        state, cold = _below(state, shape.hot_auctions)
        newest = _last_auction(ids[i], shape)
        if cold > 0:
            auction[i] = newest // HOT_BATCH * HOT_BATCH + FIRST_ID
        else:
            oldest = max(newest - shape.in_flight, 0)
            state, drawn = _within(state, newest - oldest + 1 + LEAD)
            auction[i] = oldest + drawn + FIRST_ID
        state, cold = _below(state, shape.hot_bidders)
        if cold > 0:
            bidder[i] = _last_person(ids[i], shape) // HOT_BATCH * HOT_BATCH + 1 + FIRST_ID
        else:
            state, bidder[i] = _person(state, ids[i], shape)
        state, price[i] = _price(state, shape.ten)
        channel[i] = _channel(state)
        state, end = _extra(state, BID_SIZE, shape.average, triples, extras, end)
        extra_ends[i + 1] = end
    return auction, bidder, price, channel, extra_ends, extras[:end]


@kernel
def paths(seed: int) -> tuple[Ints, Letters, NDArray[np.bool_]]:
    """Return (ends and bytes of the three folders of each channel's URL, whether it names its channel).

    Flink draws them from a new Random() each, so that they differ from run to run; here all come from one.
    """
    n = HOT_CHANNELS + CHANNELS
    ends, out, named = np.zeros(n + 1, np.int64), np.empty(n * 15, np.uint8), np.zeros(n, np.bool_)
    state, end = _seeded(seed), 0
    for i in range(n):
        for folder in range(3):
            if folder:
                out[end] = SLASH
                end += 1
            state, end = _word(state, 5, UNDERSCORE, out, end)
        if i >= HOT_CHANNELS:
            state, drawn = _below(state, 10)
            named[i] = drawn > 0
        ends[i + 1] = end
    return ends, out[:end], named


@kernel
def most_extra(size: int, average: int) -> int:
    """The most bytes that fill an event of this size up to the average."""
    if size > average:
        return 0
    return average - size + math.floor((average - size) * 0.2 + 0.5)


@kernel
def _seeded(seed: int) -> int:
    return (seed ^ MULTIPLIER) & MASK


@kernel
def _next(state: int) -> int:
    # The product overflows 64 bits; its low 48 are right.
    return (state * MULTIPLIER + 0xB) & MASK


@kernel
def _below(state: int, bound: int) -> tuple[int, int]:
    """Draw nextInt(bound)."""
    state = _next(state)
    bits = state >> 17
    if bound & (bound - 1) == 0:
        return state, (bound * bits) >> 31
    value = bits % bound
    while bits - value + bound - 1 > INT_MAX:
        state = _next(state)
        bits = state >> 17
        value = bits % bound
    return state, value


@kernel
def _int(state: int) -> tuple[int, int]:
    """Draw nextInt()."""
    state = _next(state)
    value = state >> 16
    return state, value - (1 << 32) if value > INT_MAX else value


@kernel
def _within(state: int, bound: int) -> tuple[int, int]:
    """Draw a long below the bound as Beam does."""
    if bound < INT_MAX:
        return _below(state, bound)
    state, high = _int(state)
    state, low = _int(state)
    value = (high << 32) + low
    # Java's remainder has the sign of the dividend; Python's that of the divisor.
    return state, value % bound if value >= 0 else -(value % -bound)


@kernel
def _price(state: int, ten: float) -> tuple[int, int]:
    # `ten` is no constant, because LLVM would make exp10 of it, which rounds differently.
    state = _next(state)
    high = state >> 22
    state = _next(state)
    fraction = float((high << 27) + (state >> 21)) * 2.0**-53
    return state, math.floor(math.pow(ten, fraction * 6.0) * 100.0 + 0.5)


@kernel
def _channel(state: int) -> int:
    state, hot = _below(state, 2)
    if hot > 0:
        return _below(state, HOT_CHANNELS)[1]
    return HOT_CHANNELS + _below(state, CHANNELS)[1]


@kernel
def _last_person(id_: int, shape: GeneratorShape) -> int:
    return id_ // shape.round_events * shape.persons + min(id_ % shape.round_events, shape.persons - 1)


@kernel
def _last_auction(id_: int, shape: GeneratorShape) -> int:
    rounds, place = id_ // shape.round_events, id_ % shape.round_events
    if place < shape.persons:
        return rounds * shape.auctions - 1
    return rounds * shape.auctions + min(place - shape.persons, shape.auctions - 1)


@kernel
def _person(state: int, id_: int, shape: GeneratorShape) -> tuple[int, int]:
    """Draw one of the active people, or of those to come."""
    people = _last_person(id_, shape) + 1
    active = min(people, shape.active)
    state, drawn = _within(state, active + LEAD)
    return state, people - active + drawn + FIRST_ID


@kernel
def _word(state: int, longest: int, special: int, out: Letters, at: int) -> tuple[int, int]:
    """Draw a text that is shorter than `longest`, without the blanks at its ends."""
    state, more = _below(state, longest - LEAST_LETTERS)
    end = at
    for _ in range(LEAST_LETTERS + more):
        state, drawn = _below(state, 13)
        letter = special
        if drawn > 0:
            state, drawn = _below(state, 26)
            letter = A + drawn
        if letter != BLANK or end > at:
            out[end] = letter
            end += 1
    while end > at and out[end - 1] == BLANK:
        end -= 1
    return state, end


@kernel
def _extra(state: int, size: int, average: int, triples: Letters, out: Letters, at: int) -> tuple[int, int]:
    """Draw what fills an event of this size up to the average size, give or take a fifth.

    Letters are written six at a time, so `out` has room for six more than there are.
    """
    if size > average:
        return state, at
    wanted = average - size
    spread = math.floor(wanted * 0.2 + 0.5)
    length = wanted - spread
    if spread > 0:
        state, drawn = _below(state, 2 * spread)
        length += drawn
    end = at + length
    while at < end:
        state = _next(state)
        value, row = state >> 16, 0
        if value > INT_MAX:
            value, row = (1 << 32) - value, TRIPLES
        # Unsigned, so that a division by a constant is no more than a product and a shift.
        high = np.uint64(value) // np.uint64(TRIPLES)
        first = np.int64(np.uint64(value) - high * np.uint64(TRIPLES)) + row
        second = np.int64(high % np.uint64(TRIPLES)) + row
        for i in range(3):
            out[at + i] = triples[first, i]
        for i in range(3):
            out[at + 3 + i] = triples[second, i]
        at += 6
    return state, end
