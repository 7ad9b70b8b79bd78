"""The machine as JSON: written with every version that is committed, so that another driver can go on from there.

What a worker holds is not in it: after a restart nobody holds anything, and copies are made anew. Nor is what was
flipped: the manifest says who owns each bin. A step that is not there any more has flipped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meander.errors import Damaged
from meander.migration.budget import CopyBudget
from meander.migration.protocol import Phase, Planned, Protocol
from meander.migration.steps import OperatorMove, Step
from meander.types import BinId, WorkerId

Json = dict[str, Any]


def to_json(protocol: Protocol) -> Json | None:
    """What is left of the migration once the open version is committed; None where there is none under way."""
    if protocol.migration is None:
        return None
    steps: list[Json] = []
    for step in protocol.left:
        # Each move as numbers in a row: a large migration has thousands, and this is written with every version.
        fields: Json = {"number": step.number, "shifts": [list(move) for move in step.moves]}
        fields |= {"at": step.at} if step.at is not None else {}
        steps.append(fields | ({"forced": True} if step.forced else {}))
    total = max([protocol.total, *(step.number + 1 for step in protocol.left)])
    return {"migration": protocol.migration, "total": total, "rules": dict(vars(protocol.budget)), "steps": steps}


def from_json(fields: Mapping[str, Any] | None) -> Protocol:
    """The machine of which `to_json` wrote what was left; an idle one for None."""
    protocol = Protocol()
    if fields is None:
        return protocol
    try:
        steps = tuple(_step(each) for each in fields["steps"])
        protocol.on(Planned(fields["migration"], steps, CopyBudget(**fields["rules"])))
        protocol.total = int(fields["total"])
    except (KeyError, TypeError, ValueError) as error:
        raise Damaged(f"the journal of the migration cannot be read ({error!r}); restore the last manifest") from None
    ahead = {step.number for step in steps}
    protocol.phases |= {number: Phase.RELEASED for number in range(protocol.total) if number not in ahead}
    return protocol


def _step(fields: Mapping[str, Any]) -> Step:
    moves = tuple(
        OperatorMove(operator, BinId(bin_), WorkerId(source), WorkerId(target), bytes_)
        for operator, bin_, source, target, bytes_ in fields["shifts"]
    )
    return Step(fields["number"], moves, fields.get("at"), fields.get("forced", False))
