"""`meander warm`: that it reaches every kernel, in one variant each, and when it has nothing to do."""

import json
import subprocess
import sys

import pytest

from meander import warmth
from meander.cli import main
from meander.cli import warm as command

EVERY_PART = """
import collections, importlib, json, pkgutil
import meander
from meander.cli.warm import PARTS, run
from meander.kernel import Kernel
from meander.kernel_cache import variants

for name in PARTS:
    run(name)
kernels = set()
for package in ("operators", "planning", "route", "state", "store"):
    of = importlib.import_module(f"meander.{package}")
    for module in pkgutil.iter_modules(of.__path__, of.__name__ + "."):
        for each in vars(importlib.import_module(module.name)).values():
            if isinstance(each, Kernel):
                kernels.add(f"{each.__module__}.{each.__name__}")
counts = collections.Counter(each.kernel for each in variants)
print(json.dumps([sorted(kernels), counts]))
"""

WITHIN_OTHERS = {
    "meander.planning.free_kernel.cheapest_cover",
    *(f"meander.planning.ssm_kernel.{name}" for name in ("prefix_sums", "left_ends", "bands", "gains", "trace")),
}
"""Kernels that others call and, on this path, nothing else."""

OF_TWO_TYPES = {f"meander.state.records_kernel.{name}" for name in ("add", "lowest", "highest")}
"""Of whole numbers and of others."""


def test_every_kernel_of_a_query_is_reached_and_has_one_variant():
    """One more variant is a kernel compiled once more, in the first minute of every installation.

    A kernel that only another one calls is within that one's code, and is not heard of where that is loaded.
    """
    done = subprocess.run([sys.executable, "-c", EVERY_PART], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    kernels, counts = json.loads(done.stdout)
    within = {name for name in kernels if name.rpartition(".")[2].startswith("_")}
    missing = set(kernels) - set(counts) - within - WITHIN_OTHERS
    assert not missing
    several = {name: count for name, count in counts.items() if count > (2 if name in OF_TWO_TYPES else 1)}
    assert not several


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An empty folder for compiled code and for marks."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    return tmp_path


def test_who_has_compiled_everything_leaves_a_mark_and_nothing_is_done_again(place, capsys):
    assert not warmth.is_warm()
    warmth.mark_warm()
    assert warmth.is_warm()
    assert len(list(place.iterdir())) == 1
    assert main(["warm", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"compiled": 0, "loaded": 0}


def test_other_kernels_need_another_mark(place, monkeypatch, tmp_path_factory):
    package = tmp_path_factory.mktemp("package")
    monkeypatch.setattr(warmth, "PACKAGE", package)
    marks = []
    for text in ("@kernel\ndef f(): ...", "@kernel\ndef g(): ...", "@kernel\ndef g(): ..."):
        (package / "loops.py").write_text(f"\n{text}\n")
        (package / "others.py").write_text(f"# {len(marks)}")
        warmth.mark.cache_clear()
        marks.append(warmth.mark())
    warmth.mark.cache_clear()
    assert marks[0] != marks[1] == marks[2]


def test_the_command_runs_its_parts_in_processes_and_counts_what_they_compile(place, monkeypatch, capsys):
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    monkeypatch.setattr(warmth, "_folders", lambda: [place])
    monkeypatch.setattr(command, "PARTS", {"numbers": command.PARTS["numbers"]})
    assert main(["warm", "--processes", "1", "--format", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["compiled"] + answer["loaded"] > 10
    assert warmth.is_warm()


def test_one_process_beside_compiles_where_that_has_not_been_done(place, monkeypatch):
    started = []
    monkeypatch.setattr(warmth, "_beside", [])
    monkeypatch.setattr(subprocess, "Popen", lambda command, **_: started.append(command))
    warmth.warm_beside()
    warmth.warm_beside()
    assert [each[1:4] for each in started] == [["-m", "meander", "warm"]]
    warmth.mark_warm()
    monkeypatch.setattr(warmth, "_beside", [])
    warmth.warm_beside()
    assert len(started) == 1
