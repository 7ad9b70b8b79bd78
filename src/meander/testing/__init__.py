"""The whole engine in one process, without Spark: for tests of users, and for simulations under faults.

    harness              test a stream or an operator of your own in milliseconds
    rows                 sources without rows, and rows as tests give them
    inprocess, stream    the driver's ports in one process, over the real worker code and real state files
    simulation           the production driver under seeded faults; with faults, model and backends

Spark may not enter.
"""

from __future__ import annotations

from meander.testing.harness import Harness, harness
from meander.testing.rows import source

__all__ = ["Harness", "harness", "source"]
