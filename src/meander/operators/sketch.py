"""About how many different values each key has had, from a few kilobytes: a HyperLogLog sketch.

The first 12 bits of a value's hash choose one of 4096 registers, which keeps the largest number of leading zeros that
the other bits have had, plus one. The estimate is that of Ertl, "New cardinality estimation algorithms for HyperLogLog
sketches" (2017), which needs no table of corrections: its standard error is at most 1.04 / sqrt(4096), 1.6 %, however
many values there are, and less where they are few.

As state, a sketch is a binary: the registers that are not zero as numbers of 4 bytes (index * 256 + register) in
ascending order, or, from 1024 of them on, all registers as a byte each.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from meander.operators.accumulators import Accumulator, Parts
from meander.operators.ordering import Groups, Words, float_words
from meander.route.columns import column_of_octets, octets_of, whole_column
from meander.route.hashing import xxhash64
from meander.state.table import Table

BITS = 12
REGISTERS = 1 << BITS
HIGHEST = 64 - BITS + 1
"""What a register has at most: the other bits are all zero."""
MANY = REGISTERS // 4

Octets = NDArray[np.uint8]


class ApproximateCount(Accumulator):
    """About how many different values of a column that are not null."""

    def __init__(self, name: str, column: str, kind: pa.DataType) -> None:
        self.name, self.column, self.kind = name, column, kind
        self.state = f"{name}.sketch"
        self.values = ((self.state, pa.binary()),)
        self.results = ((name, pa.int64()),)

    def parts(self, rows: pa.Table) -> Parts:
        """The sketch of each value alone."""
        column = whole_column(rows[self.column]).cast(self.kind)
        valid = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
        return [_encoded(_codes(valid, _hashes(column.drop_null())), rows.num_rows)]

    def combine(self, table: Table, groups: Groups, parts: Parts) -> None:
        """Keep the higher of every register."""
        codes = _decoded(pa.concat_arrays([table.get(self.state, groups.rows), parts[0]]))
        of = np.concatenate([np.arange(len(groups)), groups.of])
        codes = (of[codes >> 20] << 20) | (codes & 0xFFFFF)
        table.set(self.state, groups.rows, _encoded(codes, len(groups)))

    def answer(self, table: Table, rows: Words) -> list[pa.Array]:
        """The estimates."""
        codes = _decoded(table.get(self.state, rows))
        histogram = np.bincount((codes >> 20) * (HIGHEST + 1) + (codes & 0xFF), minlength=rows.size * (HIGHEST + 1))
        histogram = histogram.reshape(rows.size, HIGHEST + 1)
        histogram[:, 0] = REGISTERS - histogram.sum(axis=1)
        return [pa.array(estimates(histogram))]


def _hashes(values: pa.Array) -> NDArray[np.uint64]:
    """A hash of each value, the same in every process."""
    if pa.types.is_floating(values.type):
        # Adding zero makes -0.0 and 0.0, which are equal, one.
        values = pa.array(float_words(values.cast(pa.float64()).to_numpy() + 0.0))
    return xxhash64([values])


def _codes(of: Words, hashes: NDArray[np.uint64]) -> Words:
    """Group, index and register of each hash in one word: 20 bits are for the latter two."""
    index = (hashes >> np.uint64(64 - BITS)).astype(np.int64)
    rest = hashes & np.uint64((1 << (64 - BITS)) - 1)
    # A double holds these 52 bits exactly, and frexp counts them.
    used = np.frexp(rest.astype(np.float64))[1].astype(np.int64)
    return (of << 20) | (index << 8) | (HIGHEST - used)


def _encoded(codes: Words, groups: int) -> pa.Array:
    """The sketches of so many groups, of codes in any order."""
    codes = np.sort(codes)
    last = np.append(codes[1:] >> 8 != codes[:-1] >> 8, True)[: codes.size]
    codes = codes[last]
    counts = np.bincount(codes >> 20, minlength=groups)
    is_dense = counts >= MANY
    sizes = np.where(is_dense, REGISTERS, 4 * counts)
    offsets = np.append(0, np.cumsum(sizes))
    data = np.zeros(int(offsets[-1]), np.uint8)
    dense = is_dense[codes >> 20]
    full = codes[dense]
    data[offsets[full >> 20] + ((full >> 8) & (REGISTERS - 1))] = full & 0xFF
    data[np.repeat(~is_dense, sizes)] = (codes[~dense] & 0xFFFFF).astype("<u4").view(np.uint8)
    return column_of_octets(offsets, data, pa.binary())


def _decoded(sketches: pa.Array) -> Words:
    """The codes of these sketches, each one a group; a null holds nothing."""
    offsets, data = octets_of(sketches.fill_null(b"") if sketches.null_count else sketches)
    sizes = np.diff(offsets)
    is_dense = sizes == REGISTERS
    few = np.repeat(np.arange(sizes.size), np.where(is_dense, 0, sizes // 4))
    sparse = np.ascontiguousarray(data[np.repeat(~is_dense, sizes)]).view("<u4").astype(np.int64) | (few << 20)
    registers = data[np.repeat(is_dense, sizes)].astype(np.int64)
    group = np.repeat(np.flatnonzero(is_dense), REGISTERS)
    index = np.tile(np.arange(REGISTERS), int(is_dense.sum()))
    every = (group << 20) | (index << 8) | registers
    return np.concatenate([sparse, every[registers > 0]])


def estimates(histogram: NDArray[np.int64]) -> Words:
    """The number of values of each sketch, of how many of its registers hold 0, 1, .. 53."""
    share = histogram / REGISTERS
    total = REGISTERS * _tau(1.0 - share[:, HIGHEST])
    for value in range(HIGHEST - 1, 0, -1):
        total = 0.5 * (total + histogram[:, value])
    total = total + REGISTERS * _sigma(share[:, 0])
    with np.errstate(divide="ignore"):
        estimate = REGISTERS * REGISTERS / (2.0 * np.log(2.0) * total)
    rounded: Words = np.rint(estimate).astype(np.int64)
    return rounded


def _sigma(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """X + the sum of x^(2^k) 2^(k-1) for k from 1 on; infinite for 1, where no register is set."""
    power, weight, total = x, 1.0, x
    with np.errstate(over="ignore"):
        for _ in range(64):
            power = power * power
            total = total + power * weight
            weight *= 2.0
    return np.where(x == 1.0, np.inf, total)


def _tau(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """(1 - x - the sum of (1 - x^(2^-k))^2 2^-k for k from 1 on) / 3; 0 for 0 and 1."""
    root, weight, total = x, 1.0, 1.0 - x
    for _ in range(64):
        root = np.sqrt(root)
        weight *= 0.5
        total = total - (1.0 - root) ** 2 * weight
    return np.where((x == 0.0) | (x == 1.0), 0.0, total / 3.0)
