"""The arithmetic of `./dev bench growth`, and that what it measures runs; never how long anything takes."""

import json
import math

import pytest

from meander_lab.benchmarks.growth import LEAST, MOST, as_json, axes, axis_table, corners, driver_table, run, target_of
from meander_lab.benchmarks.growth_case import GrowthCase, GrowthFigures, measure, stream_of
from meander_lab.benchmarks.growth_plots import draw, exponent

FIGURES = GrowthFigures(3.0, 1.0, 1.5, 2.0, 100.0, 200.0)


def test_the_exponent_is_that_of_the_power():
    sizes = [1, 10, 100, 1000]
    assert exponent(sizes, [3 * each**1.5 for each in sizes]) == pytest.approx(1.5)
    assert exponent(sizes, [7.0] * 4) == pytest.approx(0.0)
    assert math.isnan(exponent([5, 5], [1, 2]))
    assert math.isnan(exponent([5, 6], [0, 2]))


def test_one_size_grows_along_an_axis():
    for axis, cases in axes(False, 10**8).items():
        rest = {tuple(value for name, value in vars(case).items() if name != axis) for case in cases}
        assert len(rest) == 1
        assert len({getattr(case, axis) for case in cases}) == len(cases) >= 3
    assert max(case.keys for case in axes(False, 10**7)["keys"]) == 10**7


def test_the_target_compares_few_bins_and_workers_with_many():
    figures = dict.fromkeys(corners(False), FIGURES)
    assert target_of(figures).measured == 1.0
    assert {LEAST, MOST} <= {(case.bins, case.workers) for case in figures}
    assert target_of(dict.fromkeys(corners(True), FIGURES)) is None


def test_a_chain_has_so_many_operators():
    import meander as me

    assert len(stream_of(3, me.testing.source("key bigint")).flow.graph.operators) == 3


def test_small_cases_are_measured_drawn_and_written(tmp_path):
    cases = [GrowthCase(20, 50, bins=8, workers=2, chain=each, batches=2, warm=1) for each in (1, 2)]
    results = run({"chain": cases}, measure)
    for each in results["chain"].values():
        assert each.control_bytes > 0
        assert each.report_bytes > 0
    written = json.loads(as_json(results))
    assert [line["chain"] for line in written["chain"]] == [1, 2]
    assert axis_table("chain", results["chain"]).row_count == 3
    assert driver_table(results["chain"]).row_count == 1
    assert draw("chain", [1, 2], list(results["chain"].values()), tmp_path / "a" / "chain.png").exists()
