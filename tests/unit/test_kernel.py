import subprocess
import sys

import numpy as np

from meander.kernel import kernel


@kernel
def twice(x):
    return x + x


@kernel
def four_times(x):
    return twice(twice(x))


def test_kernels_call_kernels_compiled_and_interpreted():
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


def test_a_small_plan_in_a_new_process_does_not_wait_for_numba():
    code = (
        "import sys, meander as me\n"
        "me.plan(me.Problem([3, 1, 1, 1], [1, 2, 3, 4], [0, 0, 1, 1], 3, 1.0))\n"
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
