"""Every public function says what it takes, gives back and raises, and shows an example that runs in the tests."""

import importlib
import inspect
import re

import pytest

import meander as me

CLASSES = [
    *(
        value
        for name in me.__all__
        if isinstance(value := getattr(me, name), type) and not issubclass(value, Exception)
    ),
    *(
        getattr(importlib.import_module(module), name)
        for module, name in (
            ("meander.checkpoints", "Checkpoint"),
            ("meander.checkpoints", "VersionSummary"),
            ("meander.control.balancer", "Balancer"),
            ("meander.keyed", "ConnectedStreams"),
            ("meander.keyed", "WindowedStream"),
            ("meander.sinks", "Memory"),
            ("meander.sinks", "Sink"),
            ("meander.testing", "Harness"),
        )
    ),
]
FUNCTIONS = [
    *(each for name in me.__all__ if inspect.isfunction(each := inspect.unwrap(getattr(me, name)))),
    *(getattr(me.sinks, name) for name in ("memory", "console", "files", "format", "kafka")),
    *(getattr(me.testing, name) for name in ("harness", "source")),
]
PARTS = ("Args", "Returns", "Raises", "Example")

RAISES_NOTHING = {
    "only look at what is there": """
        Assignment.bins_of Assignment.initial Checkpoint.verify Decision.to_dict Event.to_dict Harness.dead
        Harness.emitted Harness.late Harness.latest Harness.output Loads.to_dict Memory.latest Memory.to_arrow
        Memory.to_df MoveOptions.to_dict Observation.slowest Observation.to_dict Plan.to_dict Problem.capacity
        Problem.caps Problem.to_dict Progress.to_dict Proposal.to_dict Query.exception Report.to_dict
        Transitions.to_dict VersionProgress.to_dict planners schedules""",
    "end something, which cannot be refused": """
        Attached.detach Attached.refill Balancer.stop Harness.close KeyState.clear Migration.cancel Query.stop""",
    "subscribe": "Moves.off_event Moves.on_event",
    "let time go on": "Harness.control Harness.end Harness.idle",
    "make a sink out of what they are given, or are called by the driver": """
        Sink.abort Sink.begin Sink.commit Sink.form Sink.sweep Sink.undo console format kafka""",
}
NO_EXAMPLE = {
    "are called by the driver; docs/write-to-a-sink.md shows a sink of one's own": """
        Sink.abort Sink.begin Sink.commit Sink.form Sink.prepare Sink.sweep Sink.undo""",
    "take a minute of the executors; see examples/look_ahead.py": "Query.look_ahead pmc",
    "docs/write-an-operator.md shows timers": "Operator.on_time",
    "the class shows one": "Decision.to_dict Plan.to_dict",
}
NOT_FOR_USERS = {
    "builds a value for the engine": """
        Loads.of Plan.of VersionProgress.of VersionSummary.of Transitions.fingerprint""",
    "what the engine calls of a declaration": """
        KeyedTable.specs KeyedTable.view Multimap.specs Multimap.view Timers.specs Timers.view""",
    "what modes and the engine call of a migration": """
        Migration.conclude Migration.end Migration.give_way Migration.join Migration.know_as Migration.mark_running
        Migration.note_hold Migration.plan_again Migration.poll Migration.resume Migration.start Migration.submit""",
    "what the driver calls of the sink; documented at Sink": """
        Memory.abort Memory.begin Memory.commit Memory.prepare Memory.sweep Memory.undo""",
    "other streams and starts call them": "Stream.behind Stream.check_end",
    "the query calls them": "Balancer.look Balancer.start Query.accompany",
}


def names_in(reasons):
    """The functions of an exception list."""
    return {name for names in reasons.values() for name in names.split()}


def methods(cls):
    """The public functions that a class or its bases of ours define, but for what the language or dataclasses call."""
    for name, member in inspect.getmembers(cls, inspect.isroutine):
        function = inspect.unwrap(getattr(member, "__func__", member))
        ours = (getattr(function, "__module__", None) or "").startswith("meander")
        if ours and not name.startswith("_") and function.__qualname__ not in names_in(NOT_FOR_USERS):
            yield function


def public():
    """Every public function once, by the name of where it is defined."""
    every = {each.__qualname__: each for each in FUNCTIONS}
    for cls in CLASSES:
        every |= {each.__qualname__: each for each in methods(cls)}
    return every


def sections(function):
    """The parts of a docstring, by name; the first line has the name ""."""
    text = inspect.cleandoc(function.__doc__ or "")
    pieces = re.split(rf"^({'|'.join(PARTS)}):$", text, flags=re.MULTILINE)
    return {"": pieces[0].strip(), **dict(zip(pieces[1::2], pieces[2::2], strict=True))}


def parameters(function):
    names = [name for name in inspect.signature(function).parameters if name not in ("self", "cls")]
    return [name for name in names if not name.startswith("_")]


def lacks(function):
    """What a function's docstring does not say."""
    said, name = sections(function), function.__qualname__
    if not said[""]:
        yield "a first line"
    if not said[""].partition("\n")[0].endswith((".", ":")):
        yield "a first line that is a sentence"
    told = set(re.findall(r"^    (\w+): ", said.get("Args", ""), re.MULTILINE))
    for each in parameters(function):
        if each not in told:
            yield f"the argument {each}"
    for each in told - set(parameters(function)):
        yield f"no argument {each}, which is not there"
    if inspect.signature(function).return_annotation not in ("None", None, "NoReturn") and "Returns" not in said:
        yield "what it returns"
    if "Raises" not in said and name not in names_in(RAISES_NOTHING):
        yield "what it raises"
    if ">>>" not in said.get("Example", "") and name not in names_in(NO_EXAMPLE):
        yield "an example"


@pytest.mark.parametrize("name", sorted(public()))
def test_a_public_function_says_everything(name):
    assert not list(lacks(public()[name]))


def test_exceptions_name_what_there_is():
    names = set(public())
    for reasons in (RAISES_NOTHING, NO_EXAMPLE):
        assert names_in(reasons) <= names, names_in(reasons) - names
    for name in names_in(RAISES_NOTHING):
        assert "Raises" not in sections(public()[name]), name
    for name in names_in(NO_EXAMPLE):
        assert "Example" not in sections(public()[name]), name
    assert not names_in(NOT_FOR_USERS) & names
    assert {"stream", "attach", "Stream.start", "Query.rescale", "Harness.batch", "KeyedStream.fold"} <= names


def test_a_lack_is_found():
    def undone(rows: int, options: dict) -> int:
        """What it does

        Args:
            rows: how many.
            other: what is not there.
        """

    assert len(list(lacks(undone))) == 6


def test_examples_that_need_spark_are_few():
    needy = [name for name, each in public().items() if "spark" in sections(each).get("Example", "")]
    assert 5 <= len(needy) <= 15, "what can be shown without Spark is shown without it"
