"""Whether it is time to move state, and the balancer that acts on it. Spark and Arrow may not enter.

window       what was counted in the last batches, and the figures of a window of them
straggler    when to lighten a straggler, or change the number of workers (Ls-Stream)
threshold    when the busiest worker has been too far above the mean for long enough
policies     both behind one protocol: a `View` in, a `Choice` with its reason out
balancer     looks, asks a policy, and moves bins through the port `Movable`
"""

from __future__ import annotations

from meander.control.straggler import Straggler, StragglerRules, Verdict
from meander.control.threshold import Advice, Look, Threshold, ThresholdRules
from meander.control.window import LoadWindow, Sample

__all__ = [
    "Advice",
    "LoadWindow",
    "Look",
    "Sample",
    "Straggler",
    "StragglerRules",
    "Threshold",
    "ThresholdRules",
    "Verdict",
]
