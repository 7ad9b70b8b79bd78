"""The examples in docstrings, and the values that they may use without making them: a query that counts words, ..."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
import tempfile
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path

import meander
import meander as me
from meander.operators.key_state import StateChanges, state_type
from plain_spark import PlainSpark

MODULES = [name for _, name, _ in pkgutil.walk_packages(meander.__path__, "meander.") if not name.endswith("__main__")]
WORDS = ["to", "be", "or", "not", "to", "be", "that", "is", "the", "question"]
OF_SPARK = re.compile(r"\b(spark|counting|pyspark)\b")


class Given:
    """What examples may use, made when one does."""

    def __init__(self, stack):
        self._stack, self._made = stack, {}

    def __call__(self, name):
        if name not in self._made:
            self._made[name] = getattr(self, f"_{name}")()
        return self._made[name]

    @classmethod
    def names(cls):
        """What there is."""
        return [name[1:] for name, each in vars(cls).items() if callable(each) and re.match("_[a-z]", name)]

    def _me(self):
        return me

    def _folder(self):
        return Path(self._stack.enter_context(tempfile.TemporaryDirectory()))

    def _h(self):
        words = me.stream(me.testing.source("word string")).key_by("word").count()
        checkpoint = str(self("folder") / "checkpoint")
        harness = self._stack.enter_context(me.testing.harness(words, workers=2, bins=16, checkpoint=checkpoint))
        harness.batch([{"word": word} for word in WORDS])
        return harness

    def _query(self):
        return self("h").query

    def _migration(self):
        return self("h").rescale(3)

    def _checkpoint(self):
        self("h")
        return me.checkpoint(self("folder") / "checkpoint")

    def _visits(self):
        clicks = me.stream(me.testing.source("user string, at timestamp")).key_by("user")
        harness = self._stack.enter_context(me.testing.harness(clicks.window("at", "1 hour", emit="final").count()))
        harness.batch([{"user": "ann", "at": datetime(2026, 1, 1, 10, minute)} for minute in (5, 20)])
        return harness

    def _state(self):
        return state_type(("total", "last"))(StateChanges(), 0, (None, None))

    def _attached(self):
        return self._stack.enter_context(PlainSpark()).attached


def tests_of(module):
    """The docstrings of a module with examples, and what those run in."""
    finder = doctest.DocTestFinder()
    yield from finder.find(module, module.__name__)
    for value in vars(module).values():
        # A planner or schedule is an object; its docstring is that of the function it was made of.
        function = getattr(value, "target", None) or getattr(value, "steps", None)
        if callable(function) and getattr(function, "__module__", None) == module.__name__:
            yield from finder.find(
                function, f"{module.__name__}.{function.__name__}", globs={**vars(module), "__name__": module.__name__}
            )


def source_of(test):
    """All that a docstring's examples do."""
    return "".join(example.source for example in test.examples)


@contextmanager
def given_for(test):
    """What a docstring's examples use and do not make themselves."""
    source = source_of(test)
    with ExitStack() as stack:
        given = Given(stack)
        used = [
            name
            for name in Given.names()
            if re.search(rf"(?<![.\"'])\b{name}\b(?!=)", source)
            and not re.search(rf"(^|as |for |import ){name}\b\s*(=[^=]|:|in |$)", source, re.MULTILINE)
        ]
        if "folder" in used and "checkpoint" in source:
            given("h")  # whose checkpoint is in the folder
        # The function `checkpoint` is no checkpoint.
        yield {name: given(name) for name in used if name not in test.globs or ".Checkpoint." in test.name}


def run(name, of_spark, **names):
    """Run the examples of a module, those of Spark or the others; returns how many there were and what failed."""
    runner = doctest.DocTestRunner()
    for test in tests_of(importlib.import_module(name)):
        if test.examples and bool(OF_SPARK.search(source_of(test))) == of_spark:
            with given_for(test) as given:
                test.globs.update(given, **names)
                runner.run(test, clear_globs=False)
    return runner.summarize(verbose=False)
