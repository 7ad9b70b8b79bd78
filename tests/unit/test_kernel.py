import os
import subprocess
import sys

import numpy as np
import pytest

from meander.kernel import LIGHT_CALLS, kernel


@kernel
def twice(x):
    return x + x


@kernel
def four_times(x):
    return twice(twice(x))


def test_kernels_call_kernels_compiled_and_interpreted():
    for _ in range(LIGHT_CALLS):
        assert four_times.lightly(np.float64(3.0)) == 12.0
        assert "compiled" not in vars(four_times)
    assert four_times.lightly(np.float64(3.0)) == 12.0
    assert "compiled" in vars(four_times)
    assert four_times(np.float64(5.0)) == 20.0


def test_both_ways_give_the_same_plan():
    rng = np.random.default_rng(2)
    from meander.planning import ssm_kernel

    for _ in range(20):
        load, state = (rng.integers(0, 4, 24).astype(np.float64) for _ in range(2))  # with many ties
        edge, keeps = np.array([0, 5, 11, 17, 24]), np.array([True, True, False, True])
        cap = 1.5 * load.sum() / 5 + 2
        by_hand = ssm_kernel.best_intervals.compiled(load, state, edge, keeps, cap, 5)
        fresh = kernel(ssm_kernel.best_intervals.function)
        interpreted = fresh.lightly(load, state, edge, keeps, cap, 5)
        for one, other in zip(by_hand, interpreted, strict=True):
            assert one.tolist() == other.tolist()


def test_both_ways_give_the_same_plan_to_any_worker():
    """The steps of `free` that the first plans of a process take by the interpreter, bit for bit."""
    from meander.planning import free_kernel as steps

    rng = np.random.default_rng(3)
    for _ in range(20):
        bins, workers = 40, 5
        load, state = rng.random(bins) + 0.01, rng.random(bins)
        home = rng.integers(-1, 3, bins)
        room = np.full(workers, load.sum() * 1.02 / workers)
        order, dearest = steps.by_bytes_per_load(load, state), steps.descending(state)
        results = []
        for way in ("compiled", "lightly"):
            shed, settle, improve = (
                getattr(each if way == "compiled" else kernel(each.function), way)
                for each in (steps.shed, steps.settle, steps.improve)
            )
            at, free, floor = shed(load, state, home, room, order, 1000)
            cost = settle(load, state, home, order, at, free, np.inf, 1000)
            if np.isfinite(cost):
                cost = improve(load, state, home, order, dearest, at, free, cost, 50)
            results.append((at.tolist(), free.tolist(), floor.tolist(), cost))
        assert results[0] == results[1]


def test_a_small_plan_in_a_new_process_does_not_wait_for_numba():
    code = (
        "import sys, meander as me\n"
        "for planner in ('ssm', 'free'):\n"
        "    me.plan(me.Problem([3, 1, 1, 1], [1, 2, 3, 4], [0, 0, 1, 1], 3, 1.0), planner=planner)\n"
        "print('numba' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_without_a_place_for_its_cache_a_kernel_still_runs(tmp_path):
    """Numba refuses to cache where neither the source's folder nor the user's is writable."""
    code = (
        "import numba.core.caching as c\n"
        "c.CacheImpl._locator_classes = []\n"
        "from meander.kernel import kernel\n"
        "print(kernel(lambda x: x + 1)(1))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout == "2\n", done.stderr


# --- the cache on disk -----------------------------------------------------------------------------

INNER_LOOPS = """
from meander.kernel import kernel

@kernel
def twice(x):
    return x + x

@kernel
def four_times(x):
    return twice(twice(x))
"""
CALL = """
import inner_loops
print(inner_loops.four_times(3.0), *(each.was_compiled for each in kernel_cache.variants))
"""


@pytest.fixture
def program(tmp_path):
    """A process that runs code beside a module with kernels; the cache is in the module's folder and empty."""
    (tmp_path / "inner_loops.py").write_text(INNER_LOOPS)
    hidden = ("NUMBA_CACHE_DIR", "PYTHONDONTWRITEBYTECODE")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    environment |= {"PYTHONPATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "home")}

    def start(code):
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        code = f"from meander import kernel_cache\n{code}"
        return subprocess.Popen([sys.executable, "-c", code], text=True, env=environment, **pipes)

    return start


def test_what_one_process_compiles_the_others_wait_for_and_load(program):
    pause = """
found = kernel_cache.KernelCache.load_overload
def paused(self, *which):
    code = found(self, *which)
    if code is None and self.cache_path:
        print("compiling", flush=True)
        input()
    return code
kernel_cache.KernelCache.load_overload = paused
"""
    first = program(pause + CALL)
    assert first.stdout.readline() == "compiling\n"
    second = program("print('calling', flush=True)" + CALL)
    assert second.stdout.readline() == "calling\n"
    said, _ = first.communicate("\n\n")
    assert said.splitlines() == ["compiling", "12.0 True True"]
    assert second.communicate()[0] == "12.0 False\n", "what a kernel calls is within its code"


def test_what_was_compiled_at_installation_serves_who_may_not_write_there(program):
    elsewhere = "import numba.core.caching as c\nc.CacheImpl._locator_classes = [c.UserWideCacheLocator]\n"
    assert program(CALL).communicate()[0] == "12.0 True True\n"
    assert program(elsewhere + CALL).communicate()[0] == "12.0 False\n"


def test_it_says_once_that_it_compiles_when_that_lasts_and_is_silent_when_it_loads(program):
    shown = (
        "import logging; logging.basicConfig(level=logging.INFO, format='%(message)s')\nkernel_cache.PATIENCE_S = 0\n"
    )
    said = program(shown + CALL).communicate()[1]
    assert said.count("compiling inner loops") == said.count("\n") == 1
    assert program(shown + CALL).communicate()[1] == ""
