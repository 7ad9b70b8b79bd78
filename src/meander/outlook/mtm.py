"""MTM-aware migration: the cheapest over this migration and, discounted, those to come (Ding et al., section 4.2)."""

from __future__ import annotations

import os
from pathlib import Path

from meander.errors import Infeasible, InvalidOption
from meander.outlook import Outlook, files
from meander.planning.planner import Target, planner
from meander.planning.problem import Problem
from meander.planning.ssm import ssm


@planner(keeps_cap=True, contiguous=True)
def mtm(problem: Problem, outlook: Outlook | str | os.PathLike[str] | None = None) -> Target:
    """The contiguous assignment that is cheapest over this migration and those to come.

    Args:
        problem: the question.
        outlook: what migrations to come will cost: an outlook that `me.pmc` made, or its folder.

    Minimises bytes moved now plus gamma times the outlook's projected cost of what is left behind. It never answers
    with what the outlook rates worse than the plan of `ssm`. With gamma = 0 it moves as many bytes as `ssm`.

    Where the outlook does not fit the problem (another number of bins, workers it does not know, loads that are not
    those it was made for any more), or where there is none, it answers as `ssm` does, and `plan.notes` says why.

    Raises:
        Infeasible: no contiguous assignment keeps the cap; `smallest_tau` says which one would do.

    Example:
        >>> from meander.planning.problem import Problem
        >>> plan = mtm(Problem(load=[1] * 20, state=[1] * 20, owner=[0] * 13 + [1] * 7, workers=3, tau=0.4))
        >>> plan.cost, plan.notes
        (4, ('planned by ssm: there is no outlook; make one with me.pmc(...)',))
    """
    forecast = _read(outlook)
    myopic = ssm.target(problem)
    why = "there is no outlook; make one with me.pmc(...)" if forecast is None else forecast.unfit(problem)
    if forecast is None or why is not None:
        return myopic._replace(notes=(f"planned by ssm: {why}",))
    if forecast.gamma == 0:
        return myopic
    try:
        ahead = forecast.choose(problem)
    except Infeasible:
        why = "nothing that the outlook knows keeps the cap at the present loads; make a new one"
        return myopic._replace(notes=(f"planned by ssm: {why}",))
    return ahead if forecast.estimate(problem, ahead.owner) < forecast.estimate(problem, myopic.owner) else myopic


_known: dict[Path, tuple[int, Outlook]] = {}
"""Outlooks that were read, by folder, with the time their index was written."""


def _read(outlook: Outlook | str | os.PathLike[str] | None) -> Outlook | None:
    if outlook is None or isinstance(outlook, Outlook):
        return outlook
    if not isinstance(outlook, str | os.PathLike):
        raise InvalidOption(f"outlook must be one that me.pmc made, or its folder, not {type(outlook).__name__}")
    folder = Path(outlook).resolve()
    try:
        written = (folder / files.INDEX).stat().st_mtime_ns
    except OSError:
        written = -1
    if folder not in _known or _known[folder][0] != written:
        _known[folder] = (written, files.read(folder))
    return _known[folder][1]
