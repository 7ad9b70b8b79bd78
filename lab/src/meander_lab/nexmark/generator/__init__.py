"""Beam's NEXMark generator, event for event: pure NumPy, Numba and Arrow, without Spark.

`config` says what is generated and when, `events` makes batches of it. The values are those of Beam's Java classes
`Generator`, `GeneratorConfig` and `*Generator`: each event draws them from a `java.util.Random` that is seeded with
the event's id, so any range of events can be made on its own, anywhere, in any order.
"""

from meander_lab.nexmark.generator.config import Config
from meander_lab.nexmark.generator.events import events

__all__ = ["Config", "events"]
