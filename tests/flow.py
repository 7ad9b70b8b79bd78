"""A stream that keeps flowing while bins of its query move: it is fed until it has been told to end, then recounted."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from streams import Feed, Program, as_ints, state_of, wait_until

DRIVER = Path(__file__).parent / "fault" / "moving.py"

AHEAD = 3
"""So many batches wait to be read: there is always another one."""


class Flow:
    """One stream, one checkpoint, and the programs that count its keys, one after the other."""

    def __init__(self, root: Path, seed: int, rows: int = 1500, keys: int = 700, checkpoint: Path | None = None):
        self.root, self.rng, self.rows, self.keys = root, random.Random(seed), rows, keys
        self.checkpoint = checkpoint or root / "ck"
        self.signals = root / "signals"
        self.signals.mkdir()
        self.programs: list[Program] = []
        self._feed = Feed(root / "in", as_ints([]).schema)
        self._fed = 0
        self._dry = threading.Event()
        self._feeder = threading.Thread(target=self._keep_feeding, daemon=True)
        self._feeder.start()

    def _keep_feeding(self) -> None:
        offsets = self.checkpoint / "spark" / "offsets"
        while not self._dry.wait(0.03):
            begun = max((int(each.name) for each in offsets.glob("[0-9]*") if each.name.isdigit()), default=-1)
            while self._fed < begun + 1 + AHEAD:
                self._feed.add(as_ints([self.rng.randrange(self.keys) for _ in range(self.rows)]))
                self._fed += 1

    def start(self, moves: list[dict[str, Any]], **options: Any) -> Program:
        """Start a driver on the stream; when a migration of an earlier one is under way, it waits for that first."""
        told = {
            "input": str(self.root / "in"),
            "output": str(self.root / "out"),
            "checkpoint": str(self.checkpoint),
            "signals": str(self.signals),
            "run": len(self.programs),
            "moves": moves,
            **options,
        }
        program = Program(DRIVER, told, self.root / f"log{len(self.programs)}")
        self.programs.append(program)
        return program

    def go_on(self, held: dict[str, Any]) -> None:
        """Let a driver go on that is held in a phase."""
        (self.signals / held["until"]).touch()

    def finish(self, program: Program) -> dict[str, Any]:
        """Let all that was fed be counted, and check that nothing was lost and nothing counted twice."""
        program.wait_for("moved")
        self.end_feeding()
        (self.signals / "finish").touch()
        assert program.wait() == 0, f"{program.told('failed')}\n{program.text()}"
        (done,) = program.told("done")
        assert done["misrouted"] == 0
        self.check()
        return done

    def end_feeding(self) -> None:
        """Feed no more."""
        self._dry.set()
        self._feeder.join()

    def end(self) -> None:
        """End everything, however it stands."""
        self.end_feeding()
        for program in self.programs:
            program.end()

    def check(self) -> None:
        """What the sink has, batch by batch, and what the checkpoint has, is what a recount has."""
        total = np.zeros(self.keys, np.int64)
        emitted = self._emitted()
        given = sorted((self.root / "in").glob("*.parquet"))
        assert len(given) == self._fed > 0
        for number, path in enumerate(given):
            seen, times = np.unique(pq.ParquetFile(path).read()["key"].to_numpy(), return_counts=True)
            total[seen] += times
            version, keys, counts = next(emitted, (None, None, None))
            assert version is not None, f"nothing was emitted for batch {number} and those after it"
            assert np.array_equal(keys, seen), (
                f"batch {number} (version {version}) has emitted other keys, or one twice"
            )
            assert np.array_equal(counts, total[seen]), f"batch {number} (version {version}) has emitted other counts"
        left = next(emitted, None)
        assert left is None, f"version {left[0]} has emitted what no batch explains"
        found = {row["key"]: row["count"] for row in state_of(self.checkpoint)}
        assert found == {int(key): int(total[key]) for key in np.flatnonzero(total)}

    def _emitted(self) -> Iterator[tuple[int, Any, Any]]:
        """The keys and counts of each version that emitted any, by key, in the order of versions."""
        for folder in sorted((self.root / "out").glob("batch=*"), key=lambda each: int(each.name[6:])):
            assert (folder / "_SUCCESS").exists(), f"{folder} is not whole"
            parts = [pq.ParquetFile(file).read() for file in sorted(folder.glob("*.parquet"))]
            keys = np.concatenate([np.zeros(0, np.int64), *(part["key"].to_numpy() for part in parts)])
            counts = np.concatenate([np.zeros(0, np.int64), *(part["count"].to_numpy() for part in parts)])
            if keys.size:
                order = np.argsort(keys, kind="stable")
                yield int(folder.name[6:]), keys[order], counts[order]


def wait_for_move(program: Program, count: int) -> dict[str, Any]:
    """Wait for the so-manieth end of a migration, or show what the program died of."""

    def look() -> Any:
        found = program.told("migrated")
        assert found[count - 1 :] or not program.ended, f"{program.told('failed')}\n{program.text()}"
        return found[count - 1 :]

    return wait_until(look, f"migration {count}")[0]
