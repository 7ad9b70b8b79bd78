"""How often n workers become n': the migration transition matrix of Ding section 4.2, learned, given and judged."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from meander.errors import InvalidOption
from meander.options import amount, whole
from meander.outlook.series import as_counts, check_range, migrations
from meander.pictures import many

SMOOTHING = 8.0
"""How many migrations' worth of what would be expected anyway is added to each row."""


@dataclass(frozen=True, eq=False)
class Transitions:
    """The probability of each next number of workers, by the present one.

    Rows and columns are lo, lo + 1, .., hi; each row sums to 1.

    >>> example = Transitions.given([[0.3, 0.6, 0.1], [0.3, 0.4, 0.3], [0.1, 0.5, 0.4]], lo=2)
    >>> example.probability([2, 3, 4])
    0.18
    """

    lo: int
    hi: int
    matrix: NDArray[np.float64]

    def __post_init__(self) -> None:
        object.__setattr__(self, "lo", whole("lo", self.lo, 1))
        object.__setattr__(self, "hi", whole("hi", self.hi, self.lo))
        try:
            matrix = np.array(self.matrix, dtype=np.float64) + 0.0
        except (TypeError, ValueError):
            raise InvalidOption("the matrix must be a list of rows of numbers, all of the same length") from None
        if matrix.shape != (self.size, self.size):
            raise InvalidOption(
                f"the matrix has the shape {matrix.shape}; for {self.lo} to {self.hi} workers it has {self.size} rows "
                f"of {self.size} probabilities"
            )
        for workers, row in zip(range(self.lo, self.hi + 1), matrix, strict=True):
            if not (row >= 0).all() or abs(row.sum() - 1) > 1e-9:
                raise InvalidOption(
                    f"the row of {many(workers, 'worker')} is no distribution; each is at least 0, and they sum to 1"
                )
        matrix.flags.writeable = False
        object.__setattr__(self, "matrix", matrix)

    @classmethod
    def of(
        cls, counts: ArrayLike, lo: int, hi: int, *, keep_equal: bool = False, smoothing: float = SMOOTHING
    ) -> Transitions:
        """Learn from worker counts in the order of time.

        What would be expected of n -> n' weighs sqrt((1 + a) * (1 + b)), where a is how many of all migrations changed
        the number of workers by n' - n, and b how many of all led to n'. A number of workers that was never left has
        this as its row.

        Args:
            counts: how many workers there were, hour by hour; each from `lo` to `hi`.
            lo: the fewest workers.
            hi: the most workers.
            keep_equal: let an hour that needs as many workers as the one before count too, on the diagonal. By default
                it is no migration.
            smoothing: how many migrations' worth of what would be expected is added to each row; 0 for relative
                frequencies and nothing else.

        Returns:
            The transitions.

        Raises:
            InvalidOption: a count is none, or not from `lo` to `hi`.

        Example:
            >>> Transitions.of([2, 3, 2, 2, 3], lo=2, hi=3, smoothing=0).row(2).tolist()
            [0.0, 1.0]
        """
        seen = tally(counts, lo, hi, keep_equal=keep_equal)
        strength = amount("smoothing", smoothing)
        expected = _expected(seen, keep_equal)
        left = seen.sum(axis=1, keepdims=True)
        learned = (seen + strength * expected) / np.maximum(left + strength, 1)
        return cls(lo, hi, np.where(left > 0, learned, expected))

    @classmethod
    def given(cls, matrix: ArrayLike, lo: int) -> Transitions:
        """Transitions with a matrix as it is.

        Args:
            matrix: the probabilities; each row sums to 1.
            lo: the number of workers of the first row and column.

        Returns:
            The transitions.

        Raises:
            InvalidOption: the matrix is not square, or a row is no distribution.

        Example:
            >>> Transitions.given([[0.5, 0.5], [1.0, 0.0]], lo=2).hi
            3
        """
        try:
            rows = len(matrix)  # type: ignore[arg-type]
        except TypeError:
            raise InvalidOption("the matrix must be a list of rows of numbers, all of the same length") from None
        return cls(lo, whole("lo", lo, 1) + rows - 1, matrix)  # type: ignore[arg-type]

    @property
    def size(self) -> int:
        """How many numbers of workers there are."""
        return self.hi - self.lo + 1

    def row(self, workers: int) -> NDArray[np.float64]:
        """The probabilities of lo, .., hi as the number that comes after so many workers.

        Args:
            workers: the present number.

        Returns:
            An array, which sums to 1.

        Raises:
            InvalidOption: the number is not among those that it knows.

        Example:
            >>> Transitions.given([[0.5, 0.5], [1.0, 0.0]], lo=2).row(3).tolist()
            [1.0, 0.0]
        """
        row: NDArray[np.float64] = self.matrix[whole("the number of workers", workers, self.lo, self.hi) - self.lo]
        return row

    def probability(self, counts: Sequence[int]) -> float:
        """How probable it is that the first of these counts is followed by all the others, in this order.

        Args:
            counts: numbers of workers.

        Returns:
            The probability.

        Raises:
            InvalidOption: a count is not among those that it knows.

        Example:
            >>> Transitions.given([[0.5, 0.5], [1.0, 0.0]], lo=2).probability([2, 3, 2])
            0.5
        """
        if not len(counts):
            raise InvalidOption("there is no count; give the present number of workers and those to follow")
        rows = [self.row(each) for each in counts]
        return math.prod(float(row[after - self.lo]) for row, after in zip(rows, counts[1:], strict=False))

    def judge(self, counts: ArrayLike, *, keep_equal: bool = False, likely: int = 3) -> Judgement:
        """How well worker counts, not those it was learned from, were foreseen.

        Args:
            counts: how many workers there were, in the order of time.
            keep_equal: count an hour that needs as many workers as the one before too.
            likely: how many of the likeliest next numbers are a hit.

        Returns:
            How many migrations there were, and how many of them were foreseen.

        Raises:
            InvalidOption: a count is not among those that it knows, or there is no migration among them.

        Example:
            >>> Transitions.given([[0.5, 0.5], [1.0, 0.0]], lo=2).judge([2, 3, 2]).migrations
            2
        """
        seen = tally(counts, self.lo, self.hi, keep_equal=keep_equal)
        came = seen > 0
        with np.errstate(divide="ignore"):
            logs = np.log(self.matrix[came])
        # Of equally probable ones the smaller number of workers is the likelier, so that it is the same every time.
        rank = np.argsort(np.argsort(-self.matrix, axis=1, kind="stable"), axis=1, kind="stable")
        total = int(seen.sum())
        return Judgement(
            migrations=total,
            log_likelihood=float(seen[came] @ logs) / total if total else 0.0,
            uniform=float(self.size if keep_equal else max(1, self.size - 1)),
            likely=likely,
            among_likely=float(seen[rank < likely].sum()) / total if total else 0.0,
        )

    def to_dict(self) -> dict[str, Any]:
        """What it says, as plain lists and numbers, ready for JSON.

        Returns:
            The fields, by name.

        Example:
            >>> Transitions.given([[0.5, 0.5], [1.0, 0.0]], lo=2).to_dict()["lo"]
            2
        """
        return {"lo": self.lo, "hi": self.hi, "matrix": self.matrix.tolist()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Transitions:
        """Transitions of what `to_dict` gave; other fields beside it do not matter.

        Args:
            data: the fields, by name.

        Returns:
            The transitions.

        Raises:
            InvalidOption: a field is missing, or the matrix is none.

        Example:
            >>> Transitions.from_dict({"lo": 2, "hi": 3, "matrix": [[0.5, 0.5], [1.0, 0.0]]}).hi
            3
        """
        if not isinstance(data, Mapping) or not {"lo", "hi", "matrix"} <= set(data):
            raise InvalidOption('a matrix is an object with "lo", "hi" and "matrix"; "meander mtm" prints one')
        return cls(data["lo"], data["hi"], data["matrix"])

    def fingerprint(self) -> str:
        """A checksum of the contents, the same in every process."""
        content = f"{self.lo} {self.hi}\n".encode() + self.matrix.astype("<f8").tobytes()
        return hashlib.sha256(content).hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Transitions) and self.fingerprint() == other.fingerprint()

    def __hash__(self) -> int:
        return int(self.fingerprint()[:16], 16)


@dataclass(frozen=True)
class Judgement:
    """How well a matrix foresaw migrations.

    Attributes:
        migrations: how many there were.
        log_likelihood: the mean logarithm of the probability it gave to what came; minus infinity where it held one
            to be impossible.
        uniform: the perplexity of knowing nothing.
        likely: how many targets count as likely ones.
        among_likely: the share of migrations that went to one of the `likely` most probable targets.
    """

    migrations: int
    log_likelihood: float
    uniform: float
    likely: int
    among_likely: float

    @property
    def perplexity(self) -> float:
        """Among how many equally probable targets one would be as unsure as with this matrix."""
        return math.exp(-self.log_likelihood) if math.isfinite(self.log_likelihood) else math.inf


def tally(counts: ArrayLike, lo: int, hi: int, *, keep_equal: bool = False) -> NDArray[np.int64]:
    """Return how many times each number of workers was followed by each other one.

    >>> tally([2, 3, 3, 2, 3], 2, 3).tolist()
    [[0, 2], [1, 0]]
    """
    check_range(lo, hi)
    steps = as_counts(counts) if keep_equal else migrations(counts)
    strange = steps[(steps < lo) | (steps > hi)]
    if strange.size:
        count = many(int(strange[0]), "worker")
        raise InvalidOption(f"there is a count of {count}; widen lo and hi, which are {lo} and {hi}")
    table = np.zeros((hi - lo + 1, hi - lo + 1), dtype=np.int64)
    np.add.at(table, (steps[:-1] - lo, steps[1:] - lo), 1)
    return table


def _expected(seen: NDArray[np.int64], keep_equal: bool) -> NDArray[np.float64]:
    """What would be expected of each row, from how far and where to all migrations went."""
    size = len(seen)
    change = np.arange(size) - np.arange(size)[:, None] + size - 1
    as_far = np.bincount(change.ravel(), weights=seen.ravel(), minlength=2 * size - 1)[change]
    weight = np.sqrt((1 + as_far) * (1 + seen.sum(axis=0)))
    if not keep_equal:
        np.fill_diagonal(weight, 0)
    expected: NDArray[np.float64] = weight / weight.sum(axis=1, keepdims=True)
    return expected
