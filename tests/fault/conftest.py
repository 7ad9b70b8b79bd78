"""What every fault test has: a stream of known batches, a driver program to run, and the check at the end."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from streams import Feed, Program, as_ints, by_batch, files_written, recounted, state_of

DRIVER = Path(__file__).parent / "driver.py"


class Case:
    """One stream, one checkpoint, and the programs that work on it, one after the other or two at a time."""

    def __init__(self, root: Path, batches: int, rows: int, seed: int) -> None:
        rng = random.Random(seed)
        self.root, self.rng = root, rng
        self.batches = [as_ints([rng.randrange(700) for _ in range(rows)]) for _ in range(batches)]
        Feed(root / "in", self.batches[0].schema).add(*self.batches)
        self.signals = root / "signals"
        self.signals.mkdir()
        self.programs: list[Program] = []

    def start(self, **options) -> Program:
        """Start a driver on the stream."""
        told = {
            "input": str(self.root / "in"),
            "output": str(self.root / "out"),
            "checkpoint": str(self.root / "ck"),
            "signals": str(self.signals),
            **options,
        }
        program = Program(DRIVER, told, self.root / f"log{len(self.programs)}")
        self.programs.append(program)
        return program

    def finish(self, program: Program) -> None:
        """Wait for the end of all input, and check that nothing was lost and nothing counted twice."""
        assert program.wait() == 0, f"{program.told('failed')}\n{program.text()}"
        (done,) = program.told("done")
        assert done["misrouted"] == 0
        assert done["version"] == len(self.batches) - 1
        self.check()

    def check(self) -> None:
        """What the files sink has, and what the checkpoint has, is what a recount has."""
        expected = recounted(self.batches, ["key"])
        total = {each: n for found in expected for each, n in found.items()}
        assert {(row["key"],): row["count"] for row in state_of(self.root / "ck")} == total
        assert by_batch(files_written(self.root / "out"), ["key"]) == dict(enumerate(expected))


@pytest.fixture
def case(tmp_path):
    made: list[Case] = []

    def make(batches=12, rows=2000, seed=1) -> Case:
        made.append(Case(tmp_path, batches, rows, seed))
        return made[-1]

    yield make
    for each in made:
        for program in each.programs:
            program.end()
