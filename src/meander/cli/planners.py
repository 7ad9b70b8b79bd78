"""The planners at work: a skewed stream gets one more worker. What planners would move, and in which steps."""

from __future__ import annotations

import numpy as np
from rich.console import Console
from rich.table import Table

import meander
from meander.cli import show
from meander.errors import Infeasible
from meander.pictures import many

PLANNERS = ("even", "ssm", "free")
"""Those to compare; `even`, Storm's default, comes with meander-lab."""


def skewed_problem(bins: int, workers: int, tau: float, seed: int) -> meander.Problem:
    """A Zipf-skewed stream spread evenly by bin count, so that some workers carry far too much."""
    rng = np.random.default_rng(seed)
    load = rng.permutation(100.0 / np.arange(1, bins + 1) ** 0.7).round(1)
    state = (load * rng.uniform(2e4, 2e5, bins)).astype(np.int64)
    owner = np.arange(bins) * workers // bins
    return meander.Problem(load, state, owner, workers + 1, tau)


def show_planners(console: Console, bins: int, workers: int, tau: float, seed: int) -> None:
    """Print the situation, plans with their loads, and the schedules of the best plan."""
    problem = skewed_problem(bins, workers, tau, seed)
    total = sum(problem.state)
    console.print(
        f"[bold]A skewed stream[/]: {many(bins, 'bin')} on {many(workers, 'worker')}, {show.size(total)} of state. "
        f"One worker is added; no worker may carry more than {1 + tau:g} times its fair share.\n"
    )
    now = meander.Problem(problem.load, problem.state, problem.owner, workers, tau)
    loads = {w: sum(x for x, o in zip(now.load, now.owner, strict=True) if o == w) for w in now.current}
    console.print(show.load_table(loads, now.caps(now.current), title="[bold]now[/]"))

    columns = ("planner", ">moves", ">bytes", ">of the state", ">heaviest load", ">cap kept", ">took")
    summary = show.new_table(*columns, title="[bold]what would move[/]")
    plans = {}
    for name in (each for each in PLANNERS if each in meander.planners()):
        try:
            for _ in range(3):  # the first is interpreted, the second loads compiled code, the third is timed
                plan = plans[name] = meander.plan(problem, name)
        except Infeasible as error:
            console.print(f"\n{name}: {error}")
            continue
        meander.check(problem, plan, cap=not plan.over_cap)
        console.print()
        console.print(show.plan_table(plan))
        heaviest = max(plan.loads.values()) / (problem.total_load / problem.wanted)
        summary.add_row(
            name,
            str(len(plan.moves)),
            show.size(plan.cost),
            f"{plan.cost / total:.1%}",
            f"{heaviest:.2f}x fair",
            "no" if plan.over_cap else "yes",
            f"{plan.elapsed_ms:.2g} ms",
        )
    console.print()
    console.print(summary)
    if "free" in plans:
        console.print()
        console.print(_steps_table(problem, plans["free"]))
    console.print("\nEvery plan above was recomputed from the problem by an independent checker.")
    console.print("Next: [bold]meander plan --help[/], docs/plan-a-rescale.md")


def _steps_table(problem: meander.Problem, plan: meander.Plan) -> Table:
    columns = ("schedule", ">steps", ">most bytes in a step", "what it is")
    table = show.new_table(*columns, title="[bold]in which steps[/] (the plan of free)")
    for name, schedule in meander.schedules().items():
        steps = meander.schedule(plan.before, plan.owner, name, state=problem.state)
        largest = max((sum(move.bytes for move in step) for step in steps), default=0)
        table.add_row(name, str(len(steps)), show.size(largest), schedule.summary)
    return table
