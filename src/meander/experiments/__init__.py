"""The papers' experiments, one file for each figure: rows, a picture, and how ours compares.

    setting      the papers' default setting, histories, outlooks that are made once, replays
    arrivals     a made-up history, for whoever has none
    finding      what an experiment found, as CSV, PNG and a paragraph

An experiment is a function of a `Lab`. Spark is started only where an outlook has to be made.
"""

from __future__ import annotations

from collections.abc import Callable

from meander.experiments.ding_bins import ding_bins
from meander.experiments.ding_cost import ding_cost
from meander.experiments.ding_gamma import ding_gamma
from meander.experiments.ding_pmc import ding_pmc
from meander.experiments.ding_time import ding_time
from meander.experiments.finding import Finding
from meander.experiments.setting import History, Lab, Outlooks, Setting

EXPERIMENTS: dict[str, Callable[[Lab], Finding]] = {
    "ding-cost": ding_cost,
    "ding-time": ding_time,
    "ding-pmc": ding_pmc,
    "ding-bins": ding_bins,
    "ding-gamma": ding_gamma,
}

__all__ = ["EXPERIMENTS", "Finding", "History", "Lab", "Outlooks", "Setting"]
