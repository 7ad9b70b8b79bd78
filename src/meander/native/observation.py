"""What is seen of a running query of Spark: which executor holds which state partition, and what each one costs.

Pure values: figures in, figures and text out. How they are obtained from Spark is not known here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any

from meander.errors import InvalidOption
from meander.measure import load_imbalance
from meander.options import amount, kind, listed, whole
from meander.pictures import facts, many

WIDTH = 100
SHOWN = 64
LARGEST_COUNT = 2**63 - 1
LARGEST_MS = 1e15
LONGEST_TEXT = 1000

TO_THE_LEFT = ("group", "executor", "host")
"""Columns of names; all others are figures."""


@dataclass(frozen=True)
class PartitionFigures:
    """One state partition of a group.

    Args:
        group: name of the group.
        partition: its number.
        executor: id of the executor that holds it; None: not placed yet.
        rows: rows in its state.
        state_bytes: memory of its state, as Spark estimates it.
        ms: time of its task per batch, smoothed over batches.
        batch: the last batch it was seen to run in; -1: none yet.
    """

    group: str
    partition: int
    executor: str | None
    rows: int
    state_bytes: int
    ms: float
    batch: int


@dataclass(frozen=True)
class ExecutorFigures:
    """One executor; a draining one was drained, and plans leave it empty."""

    executor: str
    host: str
    cores: int
    draining: bool = False


@dataclass(frozen=True, repr=False)
class Observation:
    """A query as it was after one batch.

    Args:
        query: the query's name, or its id.
        run: the run's id.
        batch: the last batch that ended; -1: none.
        batch_ms: how long that took.
        trigger_ms: the trigger's interval; 0: as fast as it goes.
        rows_per_s: input rate of that batch.
        time_ms: when this was observed, milliseconds since 1970.
        partitions: every state partition.
        executors: every executor that is there. A partition on one that is not counts as not placed.
    """

    query: str
    run: str
    batch: int
    batch_ms: float
    trigger_ms: float
    rows_per_s: float
    time_ms: int
    partitions: tuple[PartitionFigures, ...]
    executors: tuple[ExecutorFigures, ...]

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups' names, in order of first appearance."""
        return tuple(dict.fromkeys(each.group for each in self.partitions))

    @property
    def behind(self) -> bool:
        """Whether the last batch took longer than its trigger's interval."""
        return 0 < self.trigger_ms < self.batch_ms

    def __repr__(self) -> str:
        parts, executors = many(len(self.partitions), "partition"), many(len(self.executors), "executor")
        return f"<Observation: {parts} on {executors}, imbalance {self.imbalance():.2f}>"

    def _repr_html_(self) -> str:
        shown = {"groups": ", ".join(self.groups), "imbalance (LI)": f"{self.imbalance():.2f}"}
        shown |= {f"executor {name}": f"{load:,.0f} ms" for name, load in self.loads().items()}
        return facts(repr(self).strip("<>"), shown)

    def held(self, group: str | None = None) -> dict[str, list[PartitionFigures]]:
        """The partitions of each executor.

        Args:
            group: of one group of operators; by default of all.

        Returns:
            The figures of its partitions, by executor.

        Raises:
            InvalidOption: there is no such group.

        Example:
            >>> {executor: len(partitions) for executor, partitions in attached.observe().held().items()}
            {'0': 6, '1': 0, '2': 0}
        """
        if group is not None and group not in self.groups:
            raise InvalidOption(f"there is no group {group!r}; the groups are {', '.join(self.groups) or 'none yet'}")
        by_executor: dict[str, list[PartitionFigures]] = {each.executor: [] for each in self.executors}
        for each in self.partitions:
            if each.executor in by_executor and group in (None, each.group):
                by_executor[each.executor].append(each)
        return by_executor

    def loads(self, group: str | None = None) -> dict[str, float]:
        """Milliseconds of each executor's partitions.

        Args:
            group: of one group of operators; by default of all.

        Returns:
            Milliseconds by executor; one that holds nothing is there with 0, unless it is draining.

        Raises:
            InvalidOption: there is no such group.

        Example:
            >>> sorted(attached.observe().loads())
            ['0', '1', '2']
        """
        held = self.held(group)
        return {
            each.executor: math.fsum(part.ms for part in held[each.executor])
            for each in self.executors
            if held[each.executor] or not each.draining
        }

    def imbalance(self, group: str | None = None) -> float:
        """The load imbalance degree LI of the executors, with their cores as capacities; 0 where nothing has run yet.

        Args:
            group: of one group of operators; by default the worst of all.

        Returns:
            How far the busiest is above the mean: 0 is perfect, and n - 1 the most among n executors.

        Raises:
            InvalidOption: there is no such group.

        Example:
            >>> attached.observe().imbalance()
            2.0
        """
        if group is None:
            return max((self.imbalance(each) for each in self.groups), default=0.0)
        loads, cores = self._loads_and_cores(group)
        return load_imbalance(loads, cores)

    def straggler_ms(self, group: str | None = None) -> float:
        """Milliseconds of a batch that perfect balance would save: the busiest executor against the mean, per core.

        Args:
            group: of one group of operators; by default summed over all, since they run one after the other.

        Returns:
            Milliseconds.

        Raises:
            InvalidOption: there is no such group.

        Example:
            >>> attached.observe().straggler_ms() > 0
            True
        """
        if group is None:
            return math.fsum(self.straggler_ms(each) for each in self.groups)
        loads, cores = self._loads_and_cores(group)
        busiest = max((load / core for load, core in zip(loads, cores, strict=True)), default=0.0)
        return max(0.0, busiest - math.fsum(loads) / max(1, sum(cores)))

    def _loads_and_cores(self, group: str) -> tuple[list[float], list[int]]:
        loads = self.loads(group)
        cores = {each.executor: max(1, each.cores) for each in self.executors}
        return list(loads.values()), [cores[executor] for executor in loads]

    def slowest(self) -> list[PartitionFigures]:
        """All partitions, the slowest first.

        Returns:
            Their figures.

        Example:
            >>> len(attached.observe().slowest())
            6
        """
        return sorted(self.partitions, key=lambda each: -each.ms)

    def to_dict(self) -> dict[str, Any]:
        """What it says, as plain lists and numbers, ready for JSON.

        Returns:
            The fields, by name.

        Example:
            >>> len(attached.observe().to_dict()["partitions"])
            6
        """
        return {
            **vars(self),
            "partitions": [dict(vars(each)) for each in self.partitions],
            "executors": [dict(vars(each)) for each in self.executors],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Observation:
        """An observation of what `to_dict` gives, as read from JSON.

        Args:
            data: the fields, by name.

        Returns:
            The observation.

        Raises:
            InvalidOption: a field is missing, unknown, or has a value it cannot have.

        Example:
            >>> seen = attached.observe()
            >>> Observation.from_dict(seen.to_dict()) == seen
            True
        """
        values = _fields_of(cls, "an observation", data)
        return cls(
            query=_text("query", values["query"]),
            run=_text("run", values["run"]),
            batch=whole("batch", values["batch"], -1, LARGEST_COUNT),
            batch_ms=_ms("batch_ms", values["batch_ms"]),
            trigger_ms=_ms("trigger_ms", values["trigger_ms"]),
            rows_per_s=float(amount("rows_per_s", values["rows_per_s"])),
            time_ms=whole("time_ms", values["time_ms"], 0, LARGEST_COUNT),
            partitions=tuple(map(_partition, listed("partitions", values["partitions"]))),
            executors=tuple(map(_executor, listed("executors", values["executors"]))),
        )

    def __str__(self) -> str:
        lines = [self._headline(), "", *self._executor_lines(), "", *self._balance_lines()]
        shown = self.slowest()[:SHOWN]
        if shown:
            lines += ["", *_partition_lines(shown, named=len(self.groups) > 1)]
        if len(self.partitions) > len(shown):
            lines.append(f"these are the {len(shown)} slowest of {many(len(self.partitions), 'partition')}")
        return "\n".join(line[:WIDTH].rstrip() for line in lines)

    def _headline(self) -> str:
        name = printable(self.query, 40)
        if self.batch < 0:
            return f"{name}: no batch has ended yet"
        trigger = f" of its {figure(self.trigger_ms)} ms" if self.trigger_ms > 0 else ""
        return f"{name}: batch {self.batch} took {figure(self.batch_ms)} ms{trigger}, {figure(self.rows_per_s)} rows/s"

    def _balance_lines(self) -> list[str]:
        lines = []
        for group in self.groups:
            name = f"{printable(group, 40)}: " if len(self.groups) > 1 else ""
            saved = f"balance would save {figure(self.straggler_ms(group), 1)} ms of a batch"
            lines.append(f"{name}LI {self.imbalance(group):.2f}, {saved}")
        return lines or ["no state partition is known yet"]

    def _executor_lines(self) -> list[str]:
        held = self.held()
        rows = [
            [
                printable(each.executor, 10),
                printable(each.host, 18),
                figure(each.cores),
                figure(len(held[each.executor])),
                *_figures(held[each.executor]),
            ]
            for each in self.executors
        ]
        lines = aligned(("executor", "host", "cores", "partitions", "rows", "state KiB", "ms per batch"), rows)
        room = min(24, WIDTH - len(lines[0]) - 2)
        bars = ["share"]
        ms = [math.fsum(part.ms for part in held[each.executor]) / max(1, each.cores) for each in self.executors]
        for each, per_core in zip(self.executors, ms, strict=True):
            bar = round(room * per_core / max(ms)) if per_core > 0 else 0
            # An executor that is to become empty has a lighter bar, and a word once it is empty.
            bars.append(("░" * bar if held[each.executor] else "drained") if each.draining else "█" * bar)
        return [f"{line}  {bar}" for line, bar in zip(lines, bars, strict=True)]


def _partition_lines(shown: Sequence[PartitionFigures], named: bool) -> list[str]:
    columns = ["group", "partition", "executor", "rows", "state KiB", "ms per batch"]
    rows = [
        [printable(each.group, 30), str(each.partition), printable(each.executor or "-", 10), *_figures([each])]
        for each in shown
    ]
    first = 0 if named else 1
    return aligned(columns[first:], [row[first:] for row in rows])


def _figures(parts: Sequence[PartitionFigures]) -> list[str]:
    """Rows, KiB of state and milliseconds of some partitions together."""
    rows, state = sum(each.rows for each in parts), sum(each.state_bytes for each in parts)
    return [figure(rows), figure(state / 1024), figure(math.fsum(each.ms for each in parts), 1)]


def _fields_of(cls: type, what: str, data: object) -> dict[str, Any]:
    defaults = {each.name: each.default for each in fields(cls)}
    if not isinstance(data, Mapping):
        raise InvalidOption(f"{what} is a JSON object with {', '.join(defaults)}, not {kind(data)}")
    for key in data:
        if key not in defaults:
            raise InvalidOption(f"{what} has no field {repr(key)[:80]}; the fields are {', '.join(defaults)}")
    for name, default in defaults.items():
        if name not in data and default is MISSING:
            raise InvalidOption(f"{what} lacks the field {name!r}; it needs {', '.join(defaults)}")
    return {**defaults, **data}


def _partition(data: object) -> PartitionFigures:
    values = _fields_of(PartitionFigures, "a partition", data)
    return PartitionFigures(
        group=_text("group of a partition", values["group"]),
        partition=whole("number of a partition", values["partition"], 0, LARGEST_COUNT),
        executor=None if values["executor"] is None else _text("executor of a partition", values["executor"]),
        rows=whole("rows of a partition", values["rows"], 0, LARGEST_COUNT),
        state_bytes=whole("state_bytes of a partition", values["state_bytes"], 0, LARGEST_COUNT),
        ms=_ms("ms of a partition", values["ms"]),
        batch=whole("batch of a partition", values["batch"], -1, LARGEST_COUNT),
    )


def _executor(data: object) -> ExecutorFigures:
    values = _fields_of(ExecutorFigures, "an executor", data)
    if not isinstance(values["draining"], bool):
        raise InvalidOption(f"draining of an executor must be true or false, not {kind(values['draining'])}")
    return ExecutorFigures(
        executor=_text("id of an executor", values["executor"]),
        host=_text("host of an executor", values["host"]),
        cores=whole("cores of an executor", values["cores"], 1, LARGEST_COUNT),
        draining=values["draining"],
    )


def _text(what: str, value: object) -> str:
    if not isinstance(value, str) or len(value) > LONGEST_TEXT:
        fault = kind(value) if not isinstance(value, str) else f"one of {len(value)}"
        raise InvalidOption(f"{what} must be a text of at most {LONGEST_TEXT} characters, not {fault}")
    return value


def _ms(what: str, value: object) -> float:
    plain = float(amount(what, value))
    if plain > LARGEST_MS:
        raise InvalidOption(f"{what} is {plain:g}; it must be at most {LARGEST_MS:g} milliseconds")
    return plain


# --- text that fits a terminal --------------------------------------------------------------------


def aligned(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table as lines: names to the left, figures to the right, two spaces in between."""
    widths = [max(len(column), *(len(row[i]) for row in rows), 0) for i, column in enumerate(columns)]
    return [
        "  ".join(
            f"{cell:<{width}}" if column in TO_THE_LEFT else f"{cell:>{width}}"
            for cell, width, column in zip(row, widths, columns, strict=True)
        )
        for row in (columns, *rows)
    ]


def figure(value: float, digits: int = 0) -> str:
    """A number for people, never long: 12,345, or 1.23e+10.

    >>> figure(12345.678, 1), figure(12_345_678_901)
    ('12,345.7', '1.23e+10')
    """
    return f"{value:,.{digits}f}" if value < 1e9 else f"{value:.3g}"


def printable(text: str, most: int) -> str:
    """A text of at most so many characters that cannot steer a terminal.

    >>> printable("a\\x1b[2Jb", 20), printable("abcdef", 4)
    ('a?[2Jb', 'abc…')
    """
    safe = "".join(character if character.isprintable() else "?" for character in text[: most + 1])
    return safe if len(safe) <= most else f"{safe[: most - 1]}…"
