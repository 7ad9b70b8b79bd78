"""The commands of `meander` and their options. What they do is in the library; how it looks is in `show`."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated, Any

import typer

import meander
from meander.cli import show
from meander.cli.demo import run_demo
from meander.cli.inspect import inspect
from meander.cli.mtm import mtm
from meander.cli.native import native
from meander.cli.planners import show_planners
from meander.cli.read import json_from, numbers_from, options_from
from meander.cli.rows import read
from meander.cli.upkeep import backup, rebin, repair, rollback, verify, versions
from meander.cli.warm import warm
from meander.errors import InvalidProblem
from meander.options import Plugins, chosen, listed

app = typer.Typer(
    name="meander",
    help="Elastic stateful streams for PySpark: what state to move, and in which steps.",
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


OPTION = Annotated[
    list[str],
    typer.Option("--option", "-o", metavar="NAME=VALUE", help="an option of its own; may be given several times"),
]


def _version(wanted: bool) -> None:
    if wanted:
        print(f"meander {meander.__version__}")
        raise typer.Exit


@app.callback()
def _everywhere(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version and stop")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
def plan(
    file: Annotated[str, typer.Argument(help="the problem as JSON; - is standard input")] = "-",
    planner: Annotated[str, typer.Option("--planner", "-p", help="who plans; 'meander planners' lists them")] = "ssm",
    workers: Annotated[int | None, typer.Option(help="plan for so many workers instead of the problem's")] = None,
    tau: Annotated[float | None, typer.Option(help="plan with this tau instead of the problem's")] = None,
    option: OPTION = [],  # noqa: B006 (Typer copies it)
    format: show.FORMAT = None,
) -> None:
    """Decide which bins move where, and print the plan.

    A problem is a JSON object such as

    \b
      {"load": [4, 1, 1], "state": [90, 10, 10], "owner": [0, 0, 0],
       "workers": 2, "tau": 0.2}

    load: work of each bin. state: bytes of each bin. owner: the worker that has it now. workers: how many are
    wanted, or a list of ids. tau: no worker may carry more than (1 + tau) times its fair share. Optional:
    capacities (by worker), must_leave (workers), pinned (bins), idle (workers that own nothing yet).

    For example

    \b
      meander plan problem.json --planner free | meander schedule --name matching
    """
    problem = meander.Problem.from_dict(json_from(file, "a problem"))
    if workers is not None:
        problem = dataclasses.replace(problem, workers=workers)
    if tau is not None:
        problem = dataclasses.replace(problem, tau=tau)
    options = options_from(option)
    chosen("planner", planner, meander.planners()).check_options(list(options))
    answer = meander.plan(problem, planner, **options)
    if show.wants_json(format):
        show.print_json(answer.to_dict())
    else:
        show.console().print(show.plan_table(answer))


@app.command()
def schedule(
    file: Annotated[str, typer.Argument(help="a plan as JSON; - is standard input")] = "-",
    name: Annotated[
        str, typer.Option("--name", "-n", help="which schedule; 'meander schedules' lists them")
    ] = "batched",
    option: OPTION = [],  # noqa: B006 (Typer copies it)
    format: show.FORMAT = None,
) -> None:
    """Cut a plan's moves into steps, and print them.

    The input is what 'meander plan --format json' prints, or any object with "before" and "owner", the worker of each
    bin now and then, and optionally "state", the bytes of each bin. Options of all schedules: max_in (bins a worker
    may receive per step), gap (batches without a move between two steps); of batched: max_bins, max_bytes.

    For example

    \b
      meander plan problem.json | meander schedule --name batched -o max_bins=4 -o gap=1
    """
    now, goal, state = _owners_and_state(json_from(file, "a plan"))
    options = options_from(option)
    chosen("schedule", name, meander.schedules()).check_options(list(options))
    steps = meander.schedule(now, goal, name, state=state, **options)
    if show.wants_json(format):
        show.print_json({"schedule": name, "steps": [[move._asdict() for move in step] for step in steps]})
    else:
        show.console().print(show.schedule_table(name, steps))


def _owners_and_state(data: Any) -> tuple[list[int], list[int], list[float] | None]:
    if not isinstance(data, dict) or not all(isinstance(data.get(key), list) for key in ("before", "owner")):
        raise InvalidProblem('a plan is a JSON object with the lists "before" and "owner"; "meander plan" prints one')
    state = data.get("state")
    if state is None and "moves" in data:
        sizes = {}
        for move in listed("moves", data["moves"], InvalidProblem):
            known = isinstance(move, dict) and type(move.get("bin")) is int and "bytes" in move
            if not known or not 0 <= move["bin"] < len(data["before"]):
                raise InvalidProblem(f"{json.dumps(move)} is not a move of this plan; a move has bin and bytes")
            sizes[move["bin"]] = move["bytes"]
        state = [sizes.get(j, 0) for j in range(len(data["before"]))]
    return data["before"], data["owner"], state


@app.command()
def planners(format: show.FORMAT = None) -> None:
    """List the planners, what they promise and their options."""
    every = meander.planners().values()
    if show.wants_json(format):
        show.print_json(
            [
                {
                    "name": each.name,
                    "summary": each.summary,
                    "keeps_cap": each.keeps_cap,
                    "contiguous": each.contiguous,
                    "options": list(each.options),
                }
                for each in every
            ]
        )
        return
    table = show.new_table("planner", "cap kept", "intervals", "what it is", "options", overflow="fold")
    for each in every:
        table.add_row(
            each.name,
            "yes" if each.keeps_cap else "no",
            "yes" if each.contiguous else "no",
            each.summary,
            ", ".join(each.options),
        )
    show.console().print(table)


@app.command()
def schedules(format: show.FORMAT = None) -> None:
    """List the schedules and their options."""
    every = meander.schedules().values()
    if show.wants_json(format):
        show.print_json([{"name": each.name, "summary": each.summary, "options": list(each.options)} for each in every])
        return
    table = show.new_table("schedule", "what it is", "options", overflow="fold")
    for each in every:
        table.add_row(each.name, each.summary, ", ".join(each.options))
    show.console().print(table)


for _function in (inspect, read, versions, verify, backup, rollback, rebin, repair, mtm, warm):
    app.command()(_function)
app.add_typer(native, name="native")
for _name, _command in sorted(Plugins[Any]("meander.commands").items()):
    if isinstance(_command, typer.Typer):
        app.add_typer(_command, name=_name)
    else:
        app.command(_name)(_command)


@app.command()
def demo(
    master: Annotated[str, typer.Option(help="Spark's master; a cluster needs meander on its executors")] = "local[2]",
    seconds: Annotated[float, typer.Option(min=1.0, help="how long to count at least")] = 30.0,
    through: Annotated[str, typer.Option(help="numbers of workers to go through while it runs")] = "2,4,3",
    bins: Annotated[int, typer.Option(min=1, help="number of bins, a power of two")] = 256,
    rate: Annotated[int, typer.Option(min=1, help="words per second")] = 100_000,
) -> None:
    """Count the words of a skewed stream on Spark, rescale it while it runs, and check every count by a recount."""
    sizes = numbers_from("--through", through, bins)
    run_demo(show.console(), master=master, seconds=seconds, through=sizes, bins=bins, rate=rate)


@app.command()
def compare(
    bins: Annotated[int, typer.Option(min=8, max=4096, help="number of bins")] = 64,
    workers: Annotated[int, typer.Option(min=2, max=64, help="number of workers; one more is added")] = 4,
    tau: Annotated[float, typer.Option(min=0.0, help="the load cap: (1 + tau) times the fair share")] = 0.2,
    seed: Annotated[int, typer.Option(min=0, help="another seed, other loads")] = 7,
) -> None:
    """Compare three planners and the schedules on a skewed stream that gets one more worker."""
    show_planners(show.console(), bins=bins, workers=workers, tau=tau, seed=seed)
