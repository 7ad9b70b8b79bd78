"""How bins are to be moved, as a value that can be kept and passed on: what verbs take as keywords, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any

from meander.errors import InvalidOption
from meander.options import kind


@dataclass(frozen=True)
class MoveOptions:
    """How bins are moved; None is the verb's own default. Every field is also a keyword of the verbs.

        gently = me.MoveOptions(schedule="fluid", copy_ms=20)
        query.rescale(4, gently)
        query.rebalance(options=gently, tau=0.1)

    Args:
        planner: which bins go where: "free", "ssm", "annealing", "mtm", or one of an installed package.
        schedule: in which steps: "batched", "fluid", "matching", "phases", "all_at_once".
        tau: the load cap: nobody shall have more than (1 + tau) times its share.
        mode: "live"; other ways of moving come with the lab.
        at: from when on: a batch number, a datetime, or a time of day such as "02:00".
        load: what each bin is to count as, instead of what was measured.
        copy_bytes: how many bytes a worker may copy ahead in one batch.
        copy_ms: for how many milliseconds it may copy in one batch.
        release_after: so many versions the old owner keeps a bin after it has flipped.
        keep_bytes: so many bytes of such copies a worker keeps at most.
        patience: so many versions a step may wait for its copies.
        fresh_bytes: for attached queries: a partition with more bytes of changes is asked for a snapshot first.
        snapshot_batches: for attached queries: so many batches a step waits for snapshots.
        tries: for attached queries: so often a partition is steered before it is given up.
        executors_within_s: how long to wait for executors that have to come first.
        keep_executors: let no executor go, also if it is empty.
        planner_options: what the planner takes beside the problem, such as {"seed": 7}.
        schedule_options: what the schedule takes, such as {"max_bins": 8}.
    """

    planner: str | None = None
    schedule: str | None = None
    tau: float | None = None
    mode: str | None = None
    at: int | str | datetime | None = None
    load: Sequence[float] | None = None
    copy_bytes: int | None = None
    copy_ms: float | None = None
    release_after: int | None = None
    keep_bytes: int | None = None
    patience: int | None = None
    fresh_bytes: int | None = None
    snapshot_batches: int | None = None
    tries: int | None = None
    executors_within_s: float | None = None
    keep_executors: bool | None = None
    planner_options: Mapping[str, Any] = field(default_factory=dict)
    schedule_options: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The fields that are given, by name, and what the planner and the schedule take.

        Returns:
            What the verbs take as keywords.

        Example:
            >>> MoveOptions(schedule="fluid", schedule_options={"gap": 2}).to_dict()
            {'schedule': 'fluid', 'gap': 2}
        """
        own = {each.name: getattr(self, each.name) for each in fields(self) if not each.name.endswith("_options")}
        given = {name: value for name, value in own.items() if value is not None}
        return {**given, **self.planner_options, **self.schedule_options}


def options_of(options: MoveOptions | None, keywords: Mapping[str, Any]) -> dict[str, Any]:
    """What a verb was given; a keyword counts before a field of the options."""
    if options is None:
        return dict(keywords)
    if not isinstance(options, MoveOptions):
        raise InvalidOption(f"options is {kind(options)}; give me.MoveOptions(...), or keywords such as planner='ssm'")
    return {**options.to_dict(), **keywords}
