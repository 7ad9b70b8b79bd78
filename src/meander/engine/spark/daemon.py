"""The process that Spark's Python workers are forked from, with everything they need loaded before the first one.

Loading Numba and the compiled kernels takes seconds; done here, it is done once for an executor and not once for each
of its processes. Spark starts it by the setting spark.python.daemon.module.
"""

from __future__ import annotations

from contextlib import suppress


def main() -> None:
    """Load, then do what Spark's own daemon does."""
    from pyspark.daemon import manager

    from meander.engine.worker.process import warm

    # Without the kernels the workers load them themselves; without the daemon there are no workers.
    with suppress(Exception):
        warm()
    manager()


if __name__ == "__main__":
    main()
