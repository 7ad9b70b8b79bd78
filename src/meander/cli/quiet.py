"""A start of Spark that shows its errors and leaves out what it says on every machine."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

START_UP = re.compile(
    rb"WARNING: Using incubator modules|Using Spark's default log4j profile|Setting default log level to"
    rb"|To adjust logging level use|(\S+ )?\S+ WARN |\s*$"
)
"""How lines begin that say nothing about the user's machine or query."""


@contextmanager
def without_start_up_warnings() -> Iterator[None]:
    """Leave out Spark's warnings from what processes that start in here write to standard error, as long as they run.

    Everything else they write, such as errors, goes where this process's standard error goes.
    """
    errors = os.dup(2)
    reading, writing = os.pipe()
    threading.Thread(target=_forward, args=(reading, errors), name="spark-errors", daemon=True).start()
    sys.stderr.flush()
    os.dup2(writing, 2)
    os.close(writing)
    try:
        yield
    finally:
        sys.stderr.flush()
        # Whoever started in here keeps the pipe; this process writes to its own standard error again.
        os.dup2(errors, 2)


def _forward(reading: int, errors: int) -> None:
    with open(reading, "rb") as lines, suppress(OSError):
        for line in lines:
            if not START_UP.match(line):
                os.write(errors, line)
    os.close(errors)
