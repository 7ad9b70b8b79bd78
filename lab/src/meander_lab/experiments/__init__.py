"""The papers' experiments, one file for each figure: rows, a picture, and how ours compares.

    setting      the papers' default setting, histories, outlooks that are made once, replays
    arrivals     a made-up history, for whoever has none
    finding      what an experiment found, as CSV, PNG and a paragraph
    live         a running query at a rate it can keep up with, for experiments on one
    delays       how late its results are

Most experiments replay a history and are functions of a `Lab`; Spark is started only where an outlook has to be made.
Those in `LIVE` run a query on Spark and are functions of a `Live`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from meander_lab.experiments import ding_live as _live
from meander_lab.experiments import ding_window as _window
from meander_lab.experiments.ding_bins import ding_bins
from meander_lab.experiments.ding_cost import ding_cost
from meander_lab.experiments.ding_gamma import ding_gamma
from meander_lab.experiments.ding_pmc import ding_pmc
from meander_lab.experiments.ding_time import ding_time
from meander_lab.experiments.finding import Finding
from meander_lab.experiments.live import Live, LiveTiming
from meander_lab.experiments.setting import History, Lab, Outlooks, Setting

EXPERIMENTS: dict[str, Callable[[Lab], Finding]] = {
    "ding-cost": ding_cost,
    "ding-time": ding_time,
    "ding-pmc": ding_pmc,
    "ding-bins": ding_bins,
    "ding-gamma": ding_gamma,
}


class LiveExperiment(NamedTuple):
    """An experiment on a running query, and about how many minutes it takes."""

    run: Callable[[Live], Finding]
    minutes: Callable[[Live], float]


LIVE: dict[str, LiveExperiment] = {
    "ding-window": LiveExperiment(_window.ding_window, _window.minutes),
    "ding-live": LiveExperiment(_live.ding_live, _live.minutes),
}

__all__ = ["EXPERIMENTS", "LIVE", "Finding", "History", "Lab", "Live", "LiveTiming", "Outlooks", "Setting"]
