"""The arithmetic, the verdicts, the table and the small problems of ./dev bench mtm, on made-up figures. No Spark."""

import csv
import io
import math
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

import meander
from meander.outlook.exact import solved
from meander.types import runs
from meander_lab.benchmarks import mtm as bench
from meander_lab.benchmarks import mtm_figures as m
from meander_lab.benchmarks import mtm_gap as gap
from meander_lab.experiments import History, Lab, Outlooks, Setting
from meander_lab.experiments.arrivals import arrivals
from meander_lab.replay import balanced
from outlooks import solve

TINY = Setting(bins=10, lo=2, hi=4, migrations=8, seeds=2, redist_seeds=1)


def a_line(series="a", tau=0.4, drift=0.0, ssm=100.0, mtm=80.0, even=1000.0, percent=5.0, **more):
    others = dict.fromkeys(("free", "redist", "consistent_hash", m.CLAIRVOYANT), 90.0)
    moved = {"ssm": ssm, "mtm": mtm, "even": even, m.BOUND: 40.0, **others}
    facts = {"raised": 0, "raised_to": 0.0, "pmc_s": 40.0, "median_ms": 3.0, "p99_ms": 6.0, **more}
    return m.ReplayLine(series, tau, drift, 100, moved, percent, **facts)


def missed(*lines):
    return [each.what for each in m.verdicts(lines) if not each.met]


# --- verdicts ---


def test_all_is_well_where_every_target_is_met():
    lines = [a_line(), a_line("b", mtm=101.0), a_line(drift=0.05), a_line(tau=1.2)]
    assert missed(*lines) == []
    assert len(m.verdicts(lines)) == 3 * 3 + 1


def test_totals_count_over_all_series_of_a_tau_and_drift():
    assert missed(a_line(mtm=101.5), a_line("b", mtm=98.0)) == []
    assert missed(a_line(mtm=101.5), a_line("b", mtm=98.5)) == ["tau 0.4, loads that stay: mtm in total below ssm"]
    split = [a_line(mtm=90.0), a_line(drift=0.05, mtm=101.0)]
    assert missed(*split) == ["tau 0.4, loads that drift by 5 %: mtm in total below ssm"]


def test_one_series_far_above_is_a_miss_of_its_own_and_named():
    lines = [a_line(mtm=50.0), a_line("bad", mtm=102.1)]
    assert missed(*lines) == ["tau 0.4, loads that stay: on no series more than 2 % above ssm"]
    (verdict,) = [each for each in m.verdicts(lines) if not each.met]
    assert "1.021 x ssm, bad" in verdict.figure
    assert missed(a_line(mtm=50.0), a_line("just", mtm=102.0)) == []


def test_half_of_even_and_five_minutes():
    assert missed(a_line(even=161.0)) == []
    assert missed(a_line(even=160.0)) == ["tau 0.4, loads that stay: mtm below half of even"]
    assert missed(a_line(pmc_s=300.0)) == []
    assert missed(a_line(pmc_s=301.0)) == ["pre-computation at most 300 s"]
    # Of several outlooks each may take that long.
    assert missed(a_line(pmc_s=900.0, renewed=2)) == []


def test_where_ssm_is_near_zero_it_says_so():
    found = m.verdicts([a_line(percent=0.4), a_line(tau=1.2)])
    assert "ssm is near zero there, 0.40 % of state a migration" in found[0].figure
    assert "near zero" in found[1].figure
    assert not any("near zero" in each.figure for each in found[3:])
    # Nobody moves less than nothing; but more than nothing is more.
    assert missed(a_line(ssm=0.0, mtm=0.0, percent=0.0)) == []
    assert len(missed(a_line(ssm=0.0, mtm=1.0, percent=0.0))) == 2


def test_ratios_of_nothing():
    assert m.ratio(0.0, 0.0) == 1.0
    assert math.isinf(m.ratio(1.0, 0.0))
    assert a_line().ratio("mtm", "even") == 0.08


# --- telling ---


def shown(*things):
    text = io.StringIO()
    Console(width=240, file=text).print(*things)
    return text.getvalue()


def test_the_table_has_each_line_and_the_totals():
    lines = [
        a_line("taxi", raised=3, raised_to=1.02, fell_back=2, renewed=1),
        a_line("tweets", ssm=300.0, mtm=330.0, percent=0.5),
    ]
    rows = [" ".join(line.split()) for line in shown(m.table(lines, "title")).splitlines()]
    taxi, tweets = (next(row for row in rows if row.startswith(name)) for name in ("taxi", "tweets"))
    assert taxi.startswith("taxi 0.4 0 5.00 0.800 0.900 0.900 10.000 0.900 0.900 0.400 0.080 3 x, to 1.02 40 3.0 6.0")
    assert "2 of 100 planned by ssm; renewed 1 x" in taxi
    assert "never" in tweets
    assert "ssm near zero (0.50 %)" in tweets
    everything = next(row for row in rows if row.startswith("all 2 series"))
    # 410 of 400, and the mean of 5 % and 0.5 % over as many migrations.
    assert everything.startswith("all 2 series 0.4 0 2.75 1.025")


def test_a_report_writes_its_files_and_ends_with_1_where_a_target_is_missed(tmp_path, capsys):
    good, bad = a_line(), a_line(drift=0.05, mtm=110.0)
    assert bench.report([good], tmp_path, TINY, None) == 0
    assert "never renewed" in " ".join(capsys.readouterr().out.split())
    assert bench.report([good, bad], tmp_path, TINY, 0.2) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "renewed under drift beyond a distance of 0.2" in said
    assert "missed: tau 0.4, loads that drift by 5 %: mtm in total below ssm: 1.100 x ssm" in said
    assert "at most 3.0 ms" in said
    with (tmp_path / "mtm.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["mtm_of_ssm"]) for row in rows] == [0.8, 1.1]
    assert [float(row["mtm_of_even"]) for row in rows] == [0.08, 0.11]
    assert (tmp_path / "mtm.png").stat().st_size > 10_000


def test_a_plot_bears_lines_without_any_bytes(tmp_path):
    nothing = a_line(ssm=0.0, mtm=0.0, percent=0.0)
    assert m.plot([nothing, a_line(tau=1.2)], tmp_path / "plot.png").stat().st_size > 5000


# --- replays ---


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    return Lab(
        TINY, [History.of("made", arrivals(), TINY)], Outlooks(tmp_path_factory.mktemp("outlooks"), solve)
    )  # fmt: skip


def test_a_line_holds_what_the_replays_found(lab):
    history = lab.histories[0]
    line = bench.line_of(lab, history, 0.4, 0.0, None)
    assert set(line.moved) == {"ssm", *m.COMPARED}
    assert line.migrations == 8
    for name in ("ssm", "mtm", "even"):
        assert line.moved[name] == lab.replayed(history, name, 0.4, 0.0).total_bytes
    assert line.moved[m.BOUND] <= min(line.moved["ssm"], line.moved["mtm"], line.moved[m.CLAIRVOYANT])
    assert (line.renewed, line.fell_back) == (0, 0)
    assert line.pmc_s == lab.outlook(history, 0.4).seconds
    assert 0 < line.median_ms <= line.p99_ms


def test_an_outlook_is_renewed_when_loads_have_gone_too_far(lab):
    history = lab.histories[0]
    never, often = (bench.line_of(lab, history, 0.8, 0.05, limit) for limit in (1.0, 0.01))
    assert never.renewed == 0
    assert never.moved["mtm"] == bench.line_of(lab, history, 0.8, 0.05, None).moved["mtm"]
    assert 0 < often.renewed <= often.migrations
    assert often.pmc_s > never.pmc_s


def test_series_come_from_the_folder_or_are_made_up_and_that_is_said(tmp_path, capsys):
    made = arrivals(days=44)
    for name in ("b", "a"):
        lines = [f"{when},{many:g}" for when, many in zip(made.times, made.values, strict=True)]
        (tmp_path / f"{name}.csv").write_text("time,rows\n" + "\n".join(lines) + "\n")
    (tmp_path / "words.csv").write_text("to be,or not\nto,be\n")
    assert [each.name for each in bench.histories(tmp_path, TINY, None)] == ["a", "b"]
    assert "words.csv is left out" in capsys.readouterr().out
    assert [each.name for each in bench.histories(tmp_path, TINY, 1)] == ["a"]
    names = [each.name for each in bench.histories(None, TINY, None)]
    assert names == [f"generated-{seed}" for seed in range(1, len(names) + 1)]
    assert "made up" in capsys.readouterr().out


def test_the_command_line():
    full, quick = bench.parsed([]), bench.parsed(["--quick"])
    assert full.taus == [0.2, 0.4, 0.8, 1.2]
    assert full.drifts == [0.0, 0.05]
    assert (full.setting.migrations, full.series, full.renew) == (100, None, None)
    assert (len(quick.taus), quick.series, quick.setting.migrations) == (2, 1, 30)
    assert bench.parsed(["--taus", "0.3,0.5", "--migrations", "7"]).taus == [0.3, 0.5]
    assert bench.parsed(["--quick", "--migrations", "7"]).setting.migrations == 7


# --- the gap on small problems ---


@pytest.mark.parametrize("small", [gap.Small(8, 2, 4, 0.4), gap.Small(9, 2, 3, 1.2, seed=2, gamma=0.5)], ids=str)
def test_the_policy_of_an_exact_outlook_is_worth_what_the_outlook_says(small):
    case = small.case()
    optimum = solved(case)
    value = gap.value_of(case, lambda problem: meander.planners()["mtm"](problem, outlook=optimum))
    assert np.array_equal(np.isnan(value), np.isnan(optimum.projected))
    assert np.nanmax(np.abs(value - optimum.projected)) <= 4e-6 * case.total
    ssm = gap.value_of(case, meander.planners()["ssm"])
    assert (ssm >= value - 4e-6 * case.total)[~np.isnan(value)].all()


def test_a_policy_is_worth_the_mean_of_its_walks():
    """Walks through the transitions, each step planned by ssm, cost on average what the equations say."""
    small = gap.Small(8, 2, 4, 0.4)
    case = small.case()
    rng, lo = np.random.default_rng(1), case.transitions.lo
    planned = {}
    totals = []
    for _ in range(400):
        workers, owner, total, weight = 3, tuple(balanced(case.load, 3)), 0.0, 1.0
        for _ in range(40):
            wanted = lo + int(rng.choice(case.transitions.size, p=case.transitions.row(workers)))
            key = (owner, wanted)
            if key not in planned:
                planned[key] = meander.plan(
                    meander.Problem(case.load, case.state, owner, wanted, case.taus[wanted]), "ssm"
                )  # fmt: skip
            plan = planned[key]
            total, weight = total + weight * plan.cost, weight * case.gamma
            names = {worker: at for at, worker in enumerate(dict.fromkeys(plan.owner))}
            workers, owner = wanted, tuple(names[worker] for worker in plan.owner)
        totals.append(total)
    ends = case.table(0, case.partitionings)
    cuts = [run.stop for run in runs(balanced(case.load, 3))]
    at = next(row for row in range(len(ends)) if [*dict.fromkeys(ends[row].tolist())] == cuts)
    value = gap.value_of(case, meander.planners()["ssm"])[3 - lo, at]
    error = 4 * np.std(totals) / math.sqrt(len(totals))
    assert abs(np.mean(totals) - value) <= error
    assert error < 0.1 * value


def test_gaps_as_per_cents():
    found = gap.Gap(gap.Small(12, 2, 4, 0.4), 23, optimum=80.0, learned=82.0, ssm=90.0)
    assert (found.learned_above, found.ssm_above, found.gained) == (pytest.approx(2.5), pytest.approx(12.5), 80.0)
    same = replace(found, learned=80.0, ssm=80.0)
    assert math.isnan(same.gained)
    rows = [" ".join(line.split()) for line in shown(gap.table([found, same])).splitlines()]
    assert rows[-2] == "12 2 to 4 0.4 23 80.0 2.50 % 12.50 % 80 %"
    assert rows[-1].endswith("0.00 % 0.00 % nothing to save")


def test_a_gap_is_found_by_exact_evaluation(tmp_path):
    found = gap.gap(gap.Small(8, 2, 4, 0.4), Outlooks(tmp_path, solve))
    assert found.learned == pytest.approx(found.optimum, rel=1e-4)
    assert found.ssm >= found.optimum * (1 - 1e-6)
