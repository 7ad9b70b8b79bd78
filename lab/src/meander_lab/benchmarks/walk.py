"""./dev bench walk: the modules of Meander that one batch and one rescale pass on the driver, as they are first called.

Counts the modules in which a function is called, in any thread of the driver's process, while a query on `local[2]`
makes one version, and while it is rescaled from two workers to three. What runs in Spark's Python workers is not seen.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import meander as me

ROOT = str(Path(me.__file__).parent)


class Walk:
    """Notes the module of every function of Meander that is called."""

    def __init__(self) -> None:
        self.modules: dict[str, None] = {}

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Called by Python for every call of a function."""
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(ROOT):
            self.modules[file[len(ROOT) + 1 : -3].replace("/", ".")] = None

    def follow(self, act: Callable[[], None]) -> list[str]:
        """The modules that are passed while something is done, in any thread."""
        self.modules.clear()
        threading.setprofile_all_threads(self) if sys.version_info >= (3, 12) else threading.setprofile(self)
        sys.setprofile(self)
        try:
            act()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]
        return list(self.modules)


def main() -> None:
    """Print both walks."""
    from pyspark.sql import functions as F

    spark = me.session()
    spark.sparkContext.setLogLevel("OFF")
    walk = Walk()
    # Threads that start while the profile is set carry it: the stream's own and those of the migration.
    threading.setprofile(walk)
    rows = spark.readStream.format("rate").option("rowsPerSecond", 1000).load()
    words = rows.select((F.col("value") % 100).cast("string").alias("word"))
    with tempfile.TemporaryDirectory() as folder:
        query = me.stream(words).key_by("word").count().start(f"{folder}/c", me.sinks.memory(), workers=2, bins=64)
        until(lambda: query.version >= 3)

        def one_batch() -> None:
            version = query.version
            until(lambda: query.version > version + 1)

        batch = walk.follow(one_batch)
        threading.setprofile(walk)
        rescale = walk.follow(lambda: query.rescale(3).wait(120))
        query.stop()
    for name, modules in (("one batch", batch), ("one rescale", rescale)):
        print(f"{name}: {len(modules)} modules\n  {' '.join(modules)}")


def until(done: Callable[[], bool]) -> None:
    """Wait."""
    while not done():
        time.sleep(0.02)


if __name__ == "__main__":
    main()
