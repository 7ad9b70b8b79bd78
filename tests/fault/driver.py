"""The program that the fault tests kill: it counts the keys of a folder of Parquet files into another folder.

It is started with its options as JSON and tells on its output, one JSON object a line, what it does.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import meander as me
from meander.store.manifest import Log
from streams import Feed, as_ints

OPTIONS = json.loads(sys.argv[1])


def tell(event, **facts):
    print(json.dumps({"event": event, **facts}), flush=True)


def counted(rows, state):
    """Count by key, as a user's function would."""
    import numpy as np
    import pyarrow as pa

    new = np.bincount(rows["__group"], minlength=state.num_rows) + state["count"].fill_null(0).to_numpy()
    return pa.table({"count": new}), pa.table({"key": state["key"], "count": new})


def spinning(folder):
    """Counting in compiled code that runs for a while, and says in which process."""

    def function(rows, state):
        import numba

        @numba.njit(nogil=False)
        def spin(turns):
            x = 1.0
            for i in range(turns):
                x = x * 1.0000001 + i % 3
            return x

        spin(10)
        with open(f"{folder}/running-{os.getpid()}", "w"):  # noqa: PTH123
            pass
        spin(400_000_000)
        return counted(rows, state)

    return function


def tearing(folder):
    """Counting in a process that is killed, as long as there are tokens, when a base has taken half of a delta."""

    def function(rows, state):
        import contextlib
        from pathlib import Path

        from meander.state.base import Base

        if not hasattr(Base, "whole_apply"):
            Base.whole_apply = Base.apply

            def apply(self, delta):
                for token in sorted(Path(folder).glob("token-*")):
                    with contextlib.suppress(FileNotFoundError):
                        token.unlink()
                        self.whole_apply(delta.slice(0, delta.num_rows // 2))
                        os.kill(os.getpid(), signal.SIGKILL)
                self.whole_apply(delta)

            Base.apply = apply
        return counted(rows, state)

    return function


def operator(keyed):
    kind = OPTIONS.get("operator", "count")
    if kind == "count":
        return keyed.count()
    function = {"spin": spinning, "tear": tearing}[kind](OPTIONS["signals"])
    return keyed.fold(function, "count bigint", "key bigint, count bigint")


class Telling(me.sinks.Files):
    """Writes files, and says so; slowly, if it is asked to."""

    def prepare(self, output, write):
        tell("sink", version=write.version)
        time.sleep(OPTIONS.get("sink_s", 0))
        return super().prepare(output, write)

    def commit(self, token):
        super().commit(token)
        if OPTIONS.get("die") == ["shown", token["version"]]:
            os.kill(os.getpid(), signal.SIGKILL)


def die_at(moment, version):
    """Kill this process right before or right after a version's manifest; "shown": when the sink has shown it."""
    append = Log.append

    def appended(self, commit):
        if commit.version == version and moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        append(self, commit)
        if commit.version == version and moment == "after":
            os.kill(os.getpid(), signal.SIGKILL)

    Log.append = appended


def main():
    if "die" in OPTIONS:
        die_at(*OPTIONS["die"])
    spark = me.session(OPTIONS.get("master", "local[2]"), **OPTIONS.get("spark", {}))
    spark.sparkContext.setLogLevel("OFF")
    feed = Feed(Path(OPTIONS["input"]), as_ints([]).schema)
    sink = Telling(OPTIONS["output"], "parquet", {})
    stream = operator(me.stream(feed.read(spark)).key_by("key"))
    query = stream.start(
        OPTIONS["checkpoint"], sink, workers=2, bins=64, snapshot_every=4, trigger={"availableNow": True}
    )
    tell("started", version=query.version)
    try:
        query.await_termination()
    except Exception as problem:
        tell("failed", kind=type(problem).__name__, message=str(problem), version=query.version)
        raise SystemExit(3) from None
    tell("done", version=query.version, misrouted=query.misrouted)


if __name__ == "__main__":
    import logging

    logging.basicConfig(format="%(asctime)s %(message)s")
    logging.getLogger("meander").setLevel(logging.INFO)
    main()
