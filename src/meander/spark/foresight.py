"""A query's own outlook: made of its measured bins and its history, kept in its checkpoint."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from meander.checkpoint.location import Location
from meander.errors import InvalidOption
from meander.history import counts_from_events, read_series
from meander.measure.transitions import Transitions
from meander.planning.ahead import Outlook, write
from meander.planning.ahead.files import INDEX
from meander.spark.engine import Engine
from meander.spark.pmc import pmc
from meander.spark.request import stages_of

FOLDER = "outlook"

History = Transitions | str | os.PathLike[str] | None


def look_ahead(
    engine: Engine,
    names: Mapping[int, str],
    history: History,
    lo: int | None,
    hi: int | None,
    tau: float,
    gamma: float,
    operator: str | int | None,
    options: Mapping[str, Any],
) -> dict[str, Outlook]:
    """Make the outlooks of a query's operators and let its migrations use them; see `Query.look_ahead`."""
    unknown = set(options) - {"exactly", "drift", "effort", "tell"}
    if unknown:
        raise InvalidOption(f"look_ahead has no option {min(unknown)!r}; there are: exactly, drift, effort, tell")
    transitions = _transitions(engine, history, lo, hi)
    found: dict[str, Outlook] = {}
    for stage in stages_of(operator, names):
        load, state = engine.ledger.measured(stage)
        outlook = pmc(engine.gateway.spark, load, state, transitions, tau, gamma, **options)
        folder = _folder(engine.log.location, stage)
        if folder is not None:
            write(outlook, folder)
        engine.ledger.outlooks[stage] = outlook
        found[names[stage]] = outlook
    return found


def outlooks_in(location: Location, stages: int) -> dict[int, Outlook | str]:
    """The outlooks that a checkpoint holds, by stage."""
    folders = {stage: _folder(location, stage) for stage in range(stages)}
    return {stage: str(folder) for stage, folder in folders.items() if folder and (folder / INDEX).exists()}


def _folder(location: Location, stage: int) -> Path | None:
    """Where the outlook of a stage lies; nowhere if the checkpoint is not a local folder: it lives with the query."""
    return Path(location.root) / FOLDER / str(stage) if location.is_local else None


def _transitions(engine: Engine, history: History, lo: int | None, hi: int | None) -> Transitions:
    if isinstance(history, Transitions):
        return history
    if history is not None:
        if lo is None or hi is None:
            raise InvalidOption("an arrival series is no number of workers; give lo and hi, the fewest and the most")
        counts = read_series(history).hourly().workers(lo, hi).values
    else:
        counts = counts_from_events(engine.moves.happenings.told).values
    if lo is None or hi is None:
        if len(set(counts)) < 2:
            raise InvalidOption(
                "the query has always had as many workers as now, so there is nothing to learn from; "
                "give a history: me.Transitions.given([[0, 1], [1, 0]], lo=2), or an arrival series with lo and hi"
            )
        lo, hi = (int(min(counts)) if lo is None else lo), (int(max(counts)) if hi is None else hi)
    return Transitions.of(counts, lo, hi)
