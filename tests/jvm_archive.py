"""`python jvm_archive.py FILE`: the classes that Spark's JVMs load, in an archive that they start from.

A JVM that finds its classes there starts with about half the work (CDS, -XX:SharedArchiveFile). `streams.QUICK` names
the archive where `MEANDER_JVM_ARCHIVE` does; a JVM that cannot use it starts as ever.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pyarrow as pa

import meander as me
from streams import STARTED_SOON, Feed

ROWS = pa.table({"word": ["a", "b", "a"]})


def count_words(master: str, options: str, folder: Path) -> None:
    """Run a small query on a Spark of its own, so that the JVM loads what tests need."""
    spark = me.session(master, spark__driver__extraJavaOptions=options)
    spark.sparkContext.setLogLevel("OFF")
    feed = Feed(folder / "in", ROWS.schema).add(ROWS, ROWS)
    stream = me.stream(feed.read(spark)).key_by("word").count()
    query = stream.start(folder / "ck", me.sinks.files(folder / "out"), workers=1, bins=8)
    query.process_all_available()
    query.stop()
    spark.stop()


def main() -> None:
    options = f"{STARTED_SOON} -XX:ArchiveClassesAtExit={sys.argv[1]} -Xlog:cds=off -Xlog:cds+dynamic=off"
    with tempfile.TemporaryDirectory() as folder:
        for number, master in enumerate(("local-cluster[1,1,1024]", "local[2]")):  # of both, in one JVM
            count_words(master, options, Path(folder) / str(number))


if __name__ == "__main__":
    main()
