"""Accepted rows of a control stream: as of a batch a worker owns a bin, whatever else is planned.

They are a list of their own beside the steps of a plan. A row decides about its bin at its batch: a plan under way no
longer moves that bin, and a plan that is made later starts from where the row has put it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from meander.errors import Damaged
from meander.migration.ledger import Owners
from meander.migration.steps import CopyBudget, Json, OperatorMove, Step
from meander.types import BinId, WorkerId


class ControlRow(NamedTuple):
    """As of a batch, a worker owns a bin of an operator."""

    batch: int
    operator: int
    bin: BinId
    worker: WorkerId


@dataclass(frozen=True)
class ControlStep(Step):
    """What the rows of one batch make of the assignment; `bins` are those they decide about, moved or not."""

    bins: frozenset[tuple[int, BinId]] = frozenset()


@dataclass(frozen=True)
class ControlRows:
    """Rows that have not taken effect yet, by batch; of two for one bin and batch the later counts.

    Args:
        rows: one for each bin and batch.
        budget: how much is copied ahead for them at a time.
    """

    rows: tuple[ControlRow, ...] = ()
    budget: CopyBudget = field(default_factory=CopyBudget)

    def with_rows(self, rows: Iterable[ControlRow], budget: CopyBudget) -> ControlRows:
        """These rows too."""
        latest = {(row.batch, row.operator, row.bin): row for row in (*self.rows, *rows)}
        return ControlRows(tuple(sorted(latest.values())), budget)

    def after(self, batch: int) -> ControlRows:
        """What is left once a batch is committed."""
        return ControlRows(tuple(row for row in self.rows if row.batch > batch), self.budget)

    def without(self, workers: Collection[WorkerId]) -> ControlRows:
        """The rows for other workers than these."""
        return ControlRows(tuple(row for row in self.rows if row.worker not in workers), self.budget)

    def steps(self, owners: Sequence[Owners], state_bytes: Sequence[Owners]) -> tuple[ControlStep, ...]:
        """A step for each batch, from whoever owns a bin when its turn comes."""
        now = [each.copy() for each in owners]
        steps: list[ControlStep] = []
        for batch in dict.fromkeys(row.batch for row in self.rows):
            rows = [row for row in self.rows if row.batch == batch]
            moves = []
            for _, operator, bin_, worker in rows:
                source = WorkerId(int(now[operator][bin_]))
                if source != worker:
                    moves.append(OperatorMove(operator, bin_, source, worker, int(state_bytes[operator][bin_])))
                    now[operator][bin_] = worker
            bins = frozenset((row.operator, row.bin) for row in rows)
            steps.append(ControlStep(len(steps), tuple(moves), batch, bins=bins))
        return tuple(steps)

    def to_json(self) -> Json | None:
        """The rows as plain lists; None where there are none."""
        return {"rules": dict(vars(self.budget)), "rows": [list(row) for row in self.rows]} if self.rows else None

    @classmethod
    def from_json(cls, fields: Mapping[str, Any] | None) -> ControlRows:
        """The rows of which `to_json` wrote; none for None."""
        if fields is None:
            return cls()
        try:
            rows = tuple(ControlRow(*map(int, row)) for row in fields["rows"])  # type: ignore[arg-type]
            return cls(rows, CopyBudget(**fields["rules"]))
        except (KeyError, TypeError, ValueError) as error:
            raise Damaged(
                f"the journal of control rows cannot be read ({error!r}); restore the last manifest"
            ) from None


def due(steps: Iterable[ControlStep], batch: int) -> ControlStep | None:
    """What takes effect with a batch, as one step; None where nothing does."""
    now = [step for step in steps if step.at is not None and step.at <= batch]
    if not now:
        return None
    moves: dict[tuple[int, BinId], OperatorMove] = {}
    for move in (move for step in now for move in step.moves):
        first = moves.get(move[:2], move)
        moves[move[:2]] = move._replace(source=first.source)
    bins = frozenset(bin_ for step in now for bin_ in step.bins)
    return ControlStep(
        now[-1].number, tuple(move for move in moves.values() if move.source != move.target), batch, bins=bins
    )  # fmt: skip
