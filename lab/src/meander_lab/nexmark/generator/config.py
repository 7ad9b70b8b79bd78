"""What the generator makes and when: Beam's NexmarkConfiguration and GeneratorConfig."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

from meander.errors import InvalidOption
from meander.options import whole

BASE_TIME_MS = 1_436_918_400_000
"""2015-07-15T00:00:00Z, when Beam's events begin."""

END_MS = 253_402_300_800_000
"""The year 10000, which neither Python nor Spark can write."""

SINE_STEPS = 10
SHAPES = {"sine": SINE_STEPS, "square": 2}

_INT = 2**31 - 1
_LONG = 2**63 - 1

_BOUNDS = {
    "generators": (1, 1_000_000),
    "rate_per_s": (1, 2_000_000),
    "rate_period_s": (1, 10_000_000),
    "base_time_ms": (0, END_MS),
    "persons": (1, 1_000_000),
    "auctions": (1, 1_000_000),
    "bids": (1, 1_000_000),
    "hot_auctions": (1, _INT),
    "hot_sellers": (1, _INT),
    "hot_bidders": (1, _INT),
    "auctions_in_flight": (0, _INT // 100),
    "active_people": (0, _INT // 100),
    "person_bytes": (0, 1_000_000),
    "auction_bytes": (0, 1_000_000),
    "bid_bytes": (0, 1_000_000),
    "out_of_order": (1, _INT),
    "first_id": (0, 2**62),
}


@dataclass(frozen=True)
class Config:
    """What is generated, by default as Beam does it. Beam's own names are in brackets.

    Events are numbered from 0 over all generators: first the first event of each generator, then the second of each,
    and so on, so numbers go with event time. What is left over when `count` is divided among them comes last, from
    the last generator.

    Attributes:
        count: how many events there are (numEvents); None for as many as Beam's counters hold, over 10^14 by default.
        generators: how many generators run beside each other in event time, each with ids of its own
            (numEventGenerators).
        rate_per_s: events per second of event time, of all generators (firstEventRate). The time from one event to
            the next is a whole number of microseconds.
        next_rate_per_s: the rate that it swings to and back (nextEventRate); None to stay.
        rate_shape: how it swings: "sine", in ten steps, or "square" (rateShape).
        rate_period_s: how long it takes there and back (ratePeriodSec).
        base_time_ms: the time of the first event, in milliseconds since 1970.
        persons: people in each round of events (PERSON_PROPORTION).
        auctions: auctions in each round of events (AUCTION_PROPORTION).
        bids: bids in each round of events (BID_PROPORTION).
        hot_auctions: all but one of so many bids are on the hot auction (hotAuctionRatio).
        hot_sellers: all but one of so many auctions are of the hot seller (hotSellersRatio).
        hot_bidders: all but one of so many bids are by the hot bidder (hotBiddersRatio).
        auctions_in_flight: how many auctions are open at a time, in each generator (numInFlightAuctions).
        active_people: how many of the newest people bid and sell (numActivePeople).
        person_bytes: the average size of a person; `extra` is filled up to it (avgPersonByteSize).
        auction_bytes: the average size of an auction (avgAuctionByteSize).
        bid_bytes: the average size of a bid, without channel and url (avgBidByteSize).
        out_of_order: events come in disorder within groups of this many, in each generator (outOfOrderGroupSize).
        first_id: the id of the first event, from which its values follow (firstEventId); `split` sets it.
        sharing: among how many generators the rate is divided; None for `generators`. `split` sets it.
    """

    count: int | None = 100_000
    generators: int = 100
    rate_per_s: int = 10_000
    next_rate_per_s: int | None = None
    rate_shape: str = "sine"
    rate_period_s: int = 600
    base_time_ms: int = BASE_TIME_MS
    persons: int = 1
    auctions: int = 3
    bids: int = 46
    hot_auctions: int = 2
    hot_sellers: int = 4
    hot_bidders: int = 4
    auctions_in_flight: int = 100
    active_people: int = 1000
    person_bytes: int = 200
    auction_bytes: int = 500
    bid_bytes: int = 100
    out_of_order: int = 1
    first_id: int = 0
    sharing: int | None = None

    def __post_init__(self) -> None:
        for name, (least, most) in _BOUNDS.items():
            object.__setattr__(self, name, whole(name, getattr(self, name), least, most))
        for name, like in (("next_rate_per_s", "rate_per_s"), ("sharing", "generators")):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, whole(name, getattr(self, name), *_BOUNDS[like]))
        if self.count is not None:
            object.__setattr__(self, "count", whole("count", self.count, 0, self._most))
        if self.rate_shape not in SHAPES:
            raise InvalidOption(f"rate_shape is {self.rate_shape!r}; it must be one of {', '.join(SHAPES)}")
        if len(self.delays_us) > 1 and not sum(self.step_events):
            raise InvalidOption(
                f"no event falls into a period of {self.rate_period_s} s at rate_per_s {self.rate_per_s}; "
                "make rate_period_s longer"
            )

    @property
    def _most(self) -> int:
        # Beam's bound; with events of no size, that of its numbers times 953, which it shuffles them by.
        largest = max(self.person_bytes, self.auction_bytes, self.bid_bytes)
        return _LONG // max(self.round_events * largest, 1000)

    @property
    def total(self) -> int:
        """How many events there are in all generators: `count`, or what Beam takes for unlimited."""
        return self._most if self.count is None else self.count

    @property
    def round_events(self) -> int:
        """Events in a round: first its people, then its auctions, then its bids."""
        return self.persons + self.auctions + self.bids

    @cached_property
    def delays_us(self) -> tuple[int, ...]:
        """The time between two events of one generator, in microseconds, in each step of the rate's period."""
        first, next_ = self.rate_per_s, self.next_rate_per_s or self.rate_per_s
        rates = [first]
        if first != next_ and self.rate_shape == "square":
            rates = [first, next_]
        elif first != next_:
            middle, swing = (first + next_) / 2.0, (first - next_) / 2.0
            angles = [(2.0 * math.pi * i) / SINE_STEPS for i in range(SINE_STEPS)]
            rates = [math.floor(middle + swing * math.cos(angle) + 0.5) for angle in angles]
        sharing = self.sharing or self.generators
        return tuple((1_000_000 + rate // 2) // rate * sharing for rate in rates)

    @cached_property
    def step_events(self) -> tuple[int, ...]:
        """How many events one generator has in each step of the rate's period; (0,) where the rate stays."""
        if len(self.delays_us) == 1:
            return (0,)
        steps = SHAPES[self.rate_shape]
        step_s = (self.rate_period_s + steps - 1) // steps
        return tuple(step_s * 1_000_000 // delay_us for delay_us in self.delays_us)

    def time_ms(self, number: int) -> int:
        """When a generator's event of this number happens, in milliseconds since 1970."""
        if len(self.delays_us) == 1:
            return self.base_time_ms + number * self.delays_us[0] // 1000
        steps = list(zip(self.delays_us, self.step_events, strict=True))
        rounds, left = divmod(number, sum(self.step_events))
        time_ms = self.base_time_ms + rounds * sum(events * delay_us // 1000 for delay_us, events in steps)
        for delay_us, events in steps:
            if left < events:
                return time_ms + left * delay_us // 1000
            left -= events
            time_ms += events * delay_us // 1000
        raise AssertionError("a number lies in one of the steps")

    def split(self, n: int) -> tuple[Config, ...]:
        """Return n generators with ids of their own that share this one's events and rate, side by side in time.

        They have equally many events; the last has those that are left over, too. With n = `generators`, their
        events together are those of this configuration.
        """
        n = whole("n", n, 1, _BOUNDS["generators"][1])
        each, sharing = self.total // n, self.sharing or self.generators
        counts = [each] * (n - 1) + [self.total - each * (n - 1)]
        return tuple(
            replace(self, generators=1, sharing=sharing, first_id=self.first_id + i * each, count=count)
            for i, count in enumerate(counts)
        )
