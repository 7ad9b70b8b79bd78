"""One batch through an operator, with what it cannot take set aside.

Rows of keys that an operator refuses are dead letters always; rows and timers for which a user's function raises are,
where the query was started so. The operator then runs again over the state as it was before the batch, without them:
what it made of them is gone, and all other keys get what they would have got if those rows had never come.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from meander.engine.worker.rows import DEAD, FAILED, TIMER, Incoming, letters, set_aside
from meander.errors import MeanderError
from meander.operators.culprits import Culprit, Culprits, trace_of
from meander.operators.operator import BinnedOperator, Now, Output, UnusableRows
from meander.route.keys import Keys
from meander.state.table import Table


class UserError(MeanderError):
    """The user's function raised."""

    fault = "user"

    def __init__(self, trace: str, bin_: int | None) -> None:
        super().__init__(trace.strip().rsplit("\n", 1)[-1])
        self.trace, self.bin = trace, bin_


class TooManyErrors(UserError):
    """The user's function raised for more rows than may be set aside."""

    fault = "errors"


class StrangeState(UserError):
    """The user's function wrote state that is not its keys'; no key can be set aside for that."""

    fault = "state"


@dataclass(frozen=True)
class Operated:
    """What came of a batch.

    Args:
        output: what the operator emits.
        tables: the tables with what it has changed.
        dead: the dead letters.
        errors: how many of them are there because a function raised.
    """

    output: Output
    tables: dict[str, Table]
    dead: pa.Table
    errors: int


@dataclass(frozen=True)
class Operation:
    """A batch and the state for an operator.

    Args:
        operator: what is to be done.
        begin: gives the tables as they were before the batch.
        now: where the stream stands.
        bins: how many bins there are.
        errors: for so many rows and timers the function may raise; None where the first one ends the query.
    """

    operator: BinnedOperator
    begin: Callable[[], dict[str, Table]]
    now: Now
    bins: int
    errors: int | None = None

    def run(self, incoming: Incoming, keys: Keys) -> Operated:
        """Run the operator, again without what it cannot take; raises `UserError` where there is no end to it."""
        operator, rows = self.operator, incoming.rows
        dead = [DEAD.empty_table() if incoming.dead is None else incoming.dead]
        errors = 0
        while True:
            tables = self.begin()
            try:
                return Operated(operator.run(rows, keys, tables, self.now), tables, pa.concat_tables(dead), errors)
            except Exception as raised:
                problem = raised  # handled outside: what is raised there does not follow from it
            if isinstance(problem, UnusableRows):
                rows, keys, aside = set_aside(rows, keys, problem)
            elif self.errors is None:
                raise self._error(problem, operator, rows, keys)
            else:
                operator, rows, keys, aside = self._without_culprits(operator, rows, keys, self.errors - errors)
                errors += aside.num_rows
            if not aside.num_rows:
                raise self._error(problem, operator, rows, keys)
            dead.append(aside)

    def _error(self, problem: Exception, operator: BinnedOperator, rows: pa.Table, keys: Keys) -> UserError:
        culprit = next(iter(Culprits(operator, rows, keys, self.begin, self.now)), None)
        return UserError(trace_of(problem), None if culprit is None else self._bin(culprit))

    def _bin(self, culprit: Culprit) -> int:
        return int(culprit.key.bins(self.bins)[0])

    def _without_culprits(
        self, operator: BinnedOperator, rows: pa.Table, keys: Keys, most: int
    ) -> tuple[BinnedOperator, pa.Table, Keys, pa.Table]:
        """The operator, the rows and the keys without those for which it raises, and these as dead letters."""
        culprits = Culprits(operator, rows, keys, self.begin, self.now)
        aside, good, count = [DEAD.empty_table()], np.ones(len(keys), np.bool_), 0
        for culprit in culprits:
            count += culprit.count
            if count > most:
                raise TooManyErrors(culprit.trace, self._bin(culprit))
            good[culprit.rows] = False
            mine = rows.take(pa.array(culprit.rows))
            for kind, table in ((FAILED, mine), *((TIMER, each) for each in culprit.timers)):
                aside.append(letters(kind, table, pa.array([culprit.trace] * table.num_rows, pa.string())))
        left = np.flatnonzero(good)
        return culprits.innocent(), rows.take(pa.array(left)), keys.take(left), pa.concat_tables(aside)
