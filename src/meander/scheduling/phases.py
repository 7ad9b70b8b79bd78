"""Phases: every byte in the shortest time that the workers' links allow (Ding, "Optimizations").

A link carries as many bytes per second as any other. In one phase a worker sends to at most one worker and
receives from at most one, so both run at full speed. Nobody can be done before the worker that has most bytes
to send, or most to receive, is; `phases` needs exactly that long. It is the preemptive open shop of Gonzalez
and Sahni: a matrix of bytes, cut into matchings as Birkhoff and von Neumann cut doubly stochastic ones.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import accumulate

from meander.scheduling.colouring import colour, grouped, numbered
from meander.scheduling.covering import Covering, bits
from meander.scheduling.steps import Step, as_schedule
from meander.types import Bytes, Move, WorkerId

PRECISION_BITS = 48
"""Fractions of bytes are cut in units of the total divided by about two to this power: no phase is spent on
rounding residue."""

Pair = tuple[WorkerId, WorkerId]


@as_schedule(needs_state=True)
def phases(moves: list[Move], max_in: int | None) -> list[Step]:
    """Every byte in the shortest possible time: one sender per receiver, bins cut into chunks where it helps.

    A step is a phase; a move in it carries the bytes copied in this phase, and a bin may be copied in
    several. It belongs to its target when its last chunk is there. With `max_in` the phases are shorter and
    more, their sum is the same. Bins without state take no time: they ride along where there is room, else in
    phases of their own at the end.
    """
    unit = _unit([move.bytes for move in moves])
    lanes: dict[Pair, list[Move]] = defaultdict(list)
    light: dict[Pair, list[Move]] = defaultdict(list)
    for move in moves:
        (lanes if _units(move.bytes, unit) else light)[move.source, move.target].append(move)
    steps = _Copying([_Lane(queue, unit, max_in) for queue in lanes.values()]).run()
    _ride_along(steps, light, max_in)
    return [sorted(step) for step in steps + _unladen(light, max_in)]


class _Lane:
    """The bins that go from one worker to one other, copied one after the other, in whole units.

    Attributes:
        queue: the bins, in the order in which they are copied.
        left: units that are still to be copied.
        room: units that can be copied in one phase, by the limit on its bins.
    """

    def __init__(self, queue: list[Move], unit: int, max_in: int | None) -> None:
        self.queue = queue
        self._unit = unit
        self._ends = list(accumulate(_units(move.bytes, unit) for move in queue))
        self._max_in = max_in or len(queue)
        self._first = 0
        self._copied_of_first: Bytes = 0
        self._go_to(0)

    def _go_to(self, done: int) -> None:
        window = min(self._first + self._max_in, len(self._ends))
        self._done = done
        self.left = self._ends[-1] - done
        self.room = self._ends[window - 1] - done

    def take(self, units: int) -> Step:
        """Copy so many units more, and return them as chunks of bins."""
        chunks = []
        done, stop = self._done, self._done + units
        while done < stop:
            move, end = self.queue[self._first], self._ends[self._first]
            if end <= stop:
                chunks.append(move._replace(bytes=move.bytes - self._copied_of_first))
                self._first, self._copied_of_first, done = self._first + 1, 0, end
            else:
                chunk = _bytes(stop - done, self._unit, like=move.bytes)
                chunks.append(move._replace(bytes=chunk))
                self._copied_of_first, done = self._copied_of_first + chunk, stop
        self._go_to(stop)
        return chunks


class _Copying:
    """What is left to copy, and the next phase of it; senders are on side 0, receivers on side 1."""

    def __init__(self, lanes: list[_Lane]) -> None:
        senders = numbered([lane.queue[0].source for lane in lanes])
        receivers = numbered([lane.queue[0].target for lane in lanes])
        self.lanes = dict(zip(zip(senders, receivers, strict=True), lanes, strict=True))
        self.left = [[0] * (max(senders, default=-1) + 1), [0] * (max(receivers, default=-1) + 1)]
        self.open = [0] * len(self.left[0])
        for (sender, receiver), lane in self.lanes.items():
            self.left[0][sender] += lane.left
            self.left[1][receiver] += lane.left
            self.open[sender] |= 1 << receiver
        self.time = max(self.left[0] + self.left[1], default=0)
        self._set_threshold(max((lane.room for lane in lanes), default=0))

    def run(self) -> list[Step]:
        """Copy everything, in phases."""
        steps = []
        while self.time:
            steps.append(self._phase())
        return steps

    def _set_threshold(self, units: int) -> None:
        """Look for phases of at least so many units."""
        self.threshold = units
        self.wide = Covering(len(self.left[0]), len(self.left[1]))
        for (sender, receiver), lane in self.lanes.items():
            if lane.room >= units:
                self.wide.connect(sender, receiver)

    def _slack(self, side: int, worker: int) -> int:
        """Units of time a worker may still idle without making the whole take longer."""
        return self.time - self.left[side][worker]

    def _phase(self) -> Step:
        pairs = self._pairs()
        units = self._longest(pairs)
        step = []
        for sender, receiver in pairs:
            lane = self.lanes[sender, receiver]
            copied = min(units, lane.room)
            step += lane.take(copied)
            self.left[0][sender] -= copied
            self.left[1][receiver] -= copied
            if not lane.left:
                self.open[sender] &= ~(1 << receiver)
            if lane.room >= self.threshold:
                self.wide.connect(sender, receiver)
            else:
                self.wide.disconnect(sender, receiver)
        self.time -= units
        return step

    def _pairs(self) -> list[tuple[int, int]]:
        """Choose who sends to which worker: none may idle that has no time for it."""
        while not self.wide.cover(self._busy(0), self._busy(1)):
            # Ends at one unit at the latest: there the theorem of Birkhoff and von Neumann promises an answer.
            self._set_threshold(self.threshold * 7 // 8)
        self.wide.extend()
        pairs = [(sender, receiver) for sender, receiver in enumerate(self.wide.mate[0]) if receiver >= 0]
        idle = ~self.wide.matched[1]
        for sender in bits(~self.wide.matched[0] & (1 << len(self.open)) - 1):
            if self.open[sender] & idle:
                receiver = max(bits(self.open[sender] & idle), key=lambda r: (self.lanes[sender, r].room, -r))
                pairs.append((sender, receiver))
                idle &= ~(1 << receiver)
        return pairs

    def _busy(self, side: int) -> int:
        """Return the set of workers that cannot idle for a phase of the wanted length."""
        return sum(1 << w for w in range(len(self.left[side])) if self._slack(side, w) < self.threshold)

    def _longest(self, pairs: list[tuple[int, int]]) -> int:
        """How long these pairs can go on until the rest would take longer than the time that is left."""
        limits = [self.time]
        idle = [set(range(len(side))) for side in self.left]
        for sender, receiver in pairs:
            slack = min(self._slack(0, sender), self._slack(1, receiver))
            limits.append(self.lanes[sender, receiver].room + slack)
            idle[0].discard(sender)
            idle[1].discard(receiver)
        limits += [self._slack(side, worker) for side in (0, 1) for worker in idle[side]]
        return min(limits)


def _ride_along(steps: list[Step], light: dict[Pair, list[Move]], max_in: int | None) -> None:
    """Give bins without state to phases in which their pair copies anyway."""
    for step in steps:
        for pair, bins in Counter((move.source, move.target) for move in step).items():
            if pair in light:
                room = len(light[pair]) if max_in is None else max_in - bins
                step += light[pair][:room]
                del light[pair][:room]


def _unladen(light: dict[Pair, list[Move]], max_in: int | None) -> list[Step]:
    """Cut what is left of the bins without state into as few phases as possible."""
    packets = []
    for moves in light.values():
        stride = max_in or len(moves) or 1
        packets += [moves[i : i + stride] for i in range(0, len(moves), stride)]
    sources = [packet[0].source for packet in packets]
    targets = [packet[0].target for packet in packets]
    degree = max([*Counter(sources).values(), *Counter(targets).values()], default=0)
    colours = colour(list(zip(numbered(sources), numbered(targets), strict=True)), degree)
    return [[move for packet in step for move in packet] for step in grouped(packets, colours)]


def _unit(sizes: Sequence[Bytes]) -> int:
    """Return the power of two, in bytes, in which sizes are cut: 0 (whole bytes) wherever that is exact."""
    if all(isinstance(size, int) for size in sizes):
        return 0
    together = math.fsum(sizes)
    if together <= 2**53 and all(float(size).is_integer() for size in sizes):
        return 0
    return max(math.frexp(together)[1] - PRECISION_BITS, -1074)


def _units(size: Bytes, unit: int) -> int:
    return size if isinstance(size, int) and unit == 0 else round(math.ldexp(size, -unit))


def _bytes(units: int, unit: int, like: Bytes) -> Bytes:
    """Return a chunk in bytes; a whole number if the bin's size is one."""
    return units << unit if isinstance(like, int) and unit >= 0 else math.ldexp(units, unit)
