"""A state table of plain dictionaries, with the interface of meander.state.table.Table: what the real one must do."""

from pathlib import Path

import numpy as np
import pyarrow as pa

from meander.operators.operator import Now, Output
from meander.state.holding import Holding
from meander.state.spec import dtype_of


class NaiveTable:
    """This batch's rows over a dictionary of committed ones, key tuple -> tuple of values."""

    def __init__(self, committed, spec, bins):
        self.committed, self.spec, self.bins = committed, spec, bins
        self.numbers, self.known, self.spread = {}, [], []
        self.present = np.zeros(0, bool)
        self.marked = np.zeros(0, bool)
        self.data = {name: self._empty(kind, 0) for name, kind in spec.values}
        self.validity = {name: np.zeros(0, bool) for name, _ in spec.values}

    @staticmethod
    def _empty(kind, count):
        dtype = dtype_of(kind)
        return np.zeros(count, dtype) if dtype is not None else np.full(count, None, object)

    @property
    def size(self):
        return len(self.known)

    def touch(self, keys):
        assert keys.type.types == self.spec.key.types
        assert keys.type.leading == self.spec.key.leading
        tuples = list(zip(*(column.to_pylist() for column in keys.type.decode(keys)), strict=True))
        bins = keys.bins(self.bins)
        first = self.size
        for key, bin_ in zip(tuples, bins, strict=True):
            if key not in self.numbers:
                self.numbers[key] = len(self.known)
                self.known.append(key)
                self.spread.append(int(bin_))
        fresh = self.known[first:]
        self.present = np.append(self.present, [key in self.committed for key in fresh]).astype(bool)
        self.marked = np.append(self.marked, np.zeros(len(fresh), bool))
        for at, (name, kind) in enumerate(self.spec.values):
            values = [self.committed[key][at] if key in self.committed else None for key in fresh]
            self.data[name] = np.append(self.data[name], self._empty(kind, len(fresh)))
            self.validity[name] = np.append(self.validity[name], np.zeros(len(fresh), bool))
            self.set(name, np.arange(first, self.size), pa.array(values, kind))
        return np.array([self.numbers[key] for key in tuples], np.int64)

    def column(self, name):
        return self.data[name]

    def valid(self, name):
        return self.validity[name]

    def get(self, name, rows):
        rows = np.asarray(rows, np.int64)
        if name in self.spec.key.names:
            return self.keys(rows)[self.spec.key.names.index(name)]
        kind = dict(self.spec.values)[name]
        values, valid = self.data[name][rows], self.validity[name][rows] & self.present[rows]
        if dtype_of(kind) is None:
            return pa.array([v if ok else None for v, ok in zip(values, valid, strict=True)], kind)
        plain = pa.array(values, mask=~valid)
        return plain.cast(pa.int64()).cast(kind) if pa.types.is_timestamp(kind) else plain.cast(kind)

    def set(self, name, rows, values):
        kind = dict(self.spec.values)[name]
        values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
        assert values.type == kind, (name, values.type, kind)
        assert len(values) == len(rows)
        dtype = dtype_of(kind)
        self.validity[name][rows] = values.is_valid().to_numpy(zero_copy_only=False)
        if dtype is None:
            self.data[name][rows] = np.array([*values.to_pylist(), None], object)[:-1]
        else:
            plain = values.cast(pa.int64()) if pa.types.is_timestamp(kind) else values
            plain = plain.cast(pa.int32()) if pa.types.is_date(kind) else plain
            self.data[name][rows] = [0 if v is None else v for v in plain.to_pylist()]

    def lowest(self, name, rows, amounts):
        self._keep(name, rows, amounts, lambda new, old: new < old or old != old)

    def highest(self, name, rows, amounts):
        self._keep(name, rows, amounts, lambda new, old: new > old or new != new)

    def _keep(self, name, rows, amounts, is_better):
        for row, amount in zip(rows, amounts, strict=True):
            if not self.validity[name][row] or is_better(amount, self.data[name][row]):
                self.data[name][row], self.validity[name][row] = amount, True

    def mark(self, rows=None):
        self.marked[rows if rows is not None else slice(None)] = True
        self.present[rows if rows is not None else slice(None)] = True

    def discard(self, rows):
        self.marked[rows] = True
        self.present[rows] = False
        for name, kind in self.spec.values:
            self.data[name][rows] = self._empty(kind, len(rows))
            self.validity[name][rows] = False

    def keys(self, rows):
        chosen = [self.known[row] for row in rows]
        return [pa.array([key[at] for key in chosen], kind) for at, kind in enumerate(self.spec.key.types)]

    def bins_of(self, rows):
        return np.array([self.spread[row] for row in rows], np.int32)

    def due(self, upto, in_order=True):
        if self.committed:
            columns = list(zip(*self.committed, strict=True))
            arrays = [pa.array(list(c), kind) for c, kind in zip(columns, self.spec.key.types, strict=True)]
            self.touch(self.spec.key.encode(arrays))
        every = np.arange(self.size)
        order = self.get(self.spec.order, every)
        kind = order.type
        order = order.cast(pa.int32() if pa.types.is_date(kind) else pa.int64()).to_pylist()
        found = [row for row in every if self.present[row] and order[row] is not None and order[row] < upto]
        return np.array(sorted(found, key=lambda row: (order[row], self.known[row])), np.int64)

    def commit(self):
        """The dictionary after this batch."""
        later = dict(self.committed)
        for row in np.flatnonzero(self.marked):
            key = self.known[row]
            later.pop(key, None)
            if self.present[row]:
                later[key] = tuple(self.get(name, [row])[0].as_py() for name, _ in self.spec.values)
        return later


class NaiveState:
    """All tables of an operator, batch after batch."""

    def __init__(self, operator, bins=8):
        self.operator, self.bins = operator, bins
        self.committed = {spec.name: {} for spec in operator.tables}

    def begin(self):
        return {spec.name: NaiveTable(self.committed[spec.name], spec, self.bins) for spec in self.operator.tables}

    def commit(self, tables):
        self.committed = {name: table.commit() for name, table in tables.items()}


class RealState:
    """The real tables of an operator, in a worker's holding."""

    def __init__(self, operator, directory, bins=8):
        self.bins = bins
        self.holding = Holding.open(Path(directory), operator.tables, bins)
        self.holding.install(range(bins), [], -1)

    def begin(self):
        return self.holding.begin()

    def commit(self, tables):
        self.holding.advance(self.holding.version + 1, {name: table.delta() for name, table in tables.items()})

    def content(self):
        every = self.holding.extract(range(self.bins))
        return {name: sorted(repr(row[2:]) for row in listed(table)) for name, table in every.items()}


class Engine:
    """What the engine does with one operator: batches in, frontier onwards, everything that came out."""

    def __init__(self, operator, state=None, parts=1, keyed=None):
        self.operator, self.state, self.parts, self.keyed = operator, state or NaiveState(operator), parts, keyed
        self.newest = self.frontier = None
        self.newest_by_input = {}
        self.version = 0

    def batch(self, rows):
        """The Output of one committed batch; `parts` > 1 calls the operator that often, each time for other bins."""
        previous, self.frontier = self.frontier, self._frontier()
        now = Now(self.version, self.frontier, previous)
        tables = self.state.begin()
        keys = self.operator.key.encode([rows[name] for name in self.keyed or self.operator.key.names])
        of = keys.bins(self.state.bins) % self.parts
        answers = []
        for part in range(self.parts):
            chosen = np.flatnonzero(of == part)
            mine = rows.select(self.operator.input.names).take(pa.array(chosen))
            answers.append(self.operator.run(mine, keys.take(chosen), tables, now))
        self.state.commit(tables)
        self.version += 1
        for answer in answers:
            if answer.newest is not None:
                self.newest = max(answer.newest, self.newest or answer.newest)
            for at, time in enumerate(answer.newest_by_input):
                if time is not None:
                    self.newest_by_input[at] = max(time, self.newest_by_input.get(at, time))
        if len(self.newest_by_input) == 2:
            self.newest = min(self.newest_by_input.values())
        assert all(answer.rows is None or answer.rows.schema.equals(self.operator.output) for answer in answers)
        assert all(answer.late is None or answer.late.schema.equals(self.operator.late) for answer in answers)
        return Output(*(self._all([getattr(a, name) for a in answers]) for name in ("rows", "late")), self.newest)

    def _frontier(self):
        if self.newest is None:
            return None
        found = self.newest - self.operator.lateness
        return found if self.frontier is None else max(found, self.frontier)

    @staticmethod
    def _all(tables):
        found = [table for table in tables if table is not None]
        return pa.concat_tables(found) if found else None


def listed(table):
    """The rows of a table as tuples; none where there is no table."""
    return [] if table is None else list(zip(*(column.to_pylist() for column in table.columns), strict=True))
