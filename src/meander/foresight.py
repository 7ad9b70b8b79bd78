"""A query's own outlook: made of its measured bins and its history, kept in its checkpoint."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from meander.engine.driver.driver import Driver
from meander.errors import InvalidOption
from meander.outlook import Outlook, Transitions, counts_from_events, read_series, write
from meander.outlook.files import INDEX
from meander.store.location import Location

FOLDER = "outlook"

History = Transitions | str | os.PathLike[str] | None


def look_ahead(
    driver: Driver,
    operators: Sequence[int],
    history: History,
    lo: int | None,
    hi: int | None,
    tau: float,
    gamma: float,
    options: Mapping[str, Any],
) -> dict[int, Outlook]:
    """Make the outlooks of a query's operators and keep them in its checkpoint; see `Query.look_ahead`."""
    from pyspark.sql import SparkSession

    from meander.outlook.pmc import pmc

    unknown = set(options) - {"exactly", "drift", "effort", "tell"}
    if unknown:
        raise InvalidOption(f"look_ahead has no option {min(unknown)!r}; there are: exactly, drift, effort, tell")
    transitions = _transitions(driver, history, lo, hi)
    spark = SparkSession.getActiveSession()
    if spark is None:
        raise InvalidOption("looking ahead is computed on Spark, and there is no active session")
    outlooks: dict[int, Outlook] = {}
    for operator in operators:
        load, state = driver.record.ledger().measured(operator)
        outlook = pmc(spark, load, state, transitions, tau, gamma, **options)
        folder = _folder(driver.log.location, operator)
        if folder is not None:
            write(outlook, folder)
        outlooks[operator] = outlook
    return outlooks


def outlooks_in(location: Location, operators: int) -> dict[int, str]:
    """Where a checkpoint keeps outlooks, by operator."""
    folders = {operator: _folder(location, operator) for operator in range(operators)}
    return {operator: str(folder) for operator, folder in folders.items() if folder and (folder / INDEX).exists()}


def _folder(location: Location, operator: int) -> Path | None:
    """Where the outlook of an operator is; nowhere if the checkpoint is no local folder."""
    return Path(location.root) / FOLDER / str(operator) if location.is_local else None


def _transitions(driver: Driver, history: History, lo: int | None, hi: int | None) -> Transitions:
    if isinstance(history, Transitions):
        return history
    if history is not None:
        if lo is None or hi is None:
            raise InvalidOption("an arrival series is no number of workers; give lo and hi, the fewest and the most")
        counts = read_series(history).hourly().workers(lo, hi).values
    else:
        counts = counts_from_events(driver.events.entries).values
    if lo is None or hi is None:
        if len(set(counts)) < 2:
            raise InvalidOption(
                "the query has always had as many workers as now, so there is nothing to learn from; "
                "give a history: me.Transitions.given([[0, 1], [1, 0]], lo=2), or an arrival series with lo and hi"
            )
        lo, hi = (int(min(counts)) if lo is None else lo), (int(max(counts)) if hi is None else hi)
    return Transitions.of(counts, lo, hi)
