"""Whether it is time to move state: figures in, a decision with its reason out.

Pure: no clock, no thread, no Spark. Whoever runs a query looks at it now and then, asks here, and acts.
"""

from __future__ import annotations

from meander.control.balance import Balance, Decision, Look, Rules
from meander.control.straggler import Straggler, Straggling, Verdict
from meander.control.view import Sample, View

__all__ = ["Balance", "Decision", "Look", "Rules", "Sample", "Straggler", "Straggling", "Verdict", "View"]
