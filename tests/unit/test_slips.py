"""What people get wrong, and the one sentence that each slip is answered with."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import meander as me
from meander.attached import Attached
from meander.sessions import check, check_java
from meander.sinks import sink_of
from meander.store.lookup import conditions
from meander.streams import trigger_of
from plain_spark import PlainSpark

CLICKS = "user string, page string, ts timestamp, n int"


def keyed(*key):
    return me.stream(me.testing.source(CLICKS)).key_by(*(key or ["user"]))


class Pages(me.Operator):
    """An operator that looks for a table it has not declared."""

    input = "user string, page string"
    output = "user string"
    state: ClassVar = {"seen": me.KeyedTable(key="user string", value="page string")}

    def on_batch(self, rows, state, now):
        return state["sen"].get(rows["user"])


class ForeignKey(Pages):
    """State by another column than the stream's key."""

    state: ClassVar = {"seen": me.KeyedTable(key="page string", value="user string")}


def mapped(function):
    return keyed().map_with_state(function, state="n int", output="user string")


def total(rows):
    """A fold that forgets the state."""


def run(stream, *rows, **options):
    with me.testing.harness(stream, **options) as h:
        h.batch(list(rows))


def started(**options):
    with me.testing.harness(keyed().count(), workers=2, bins=16) as h:
        h.batch([{"user": "u", "page": "p"}])
        return options["then"](h.query)


SLIPS = {
    "the trigger is 5; give '10 seconds', 'availableNow', or Spark's own": lambda: trigger_of(5),
    "the trigger is {'every': '1 s'}; give '10 seconds'": lambda: trigger_of({"every": "1 s"}),
    "the trigger's interval is 'soon'; write a number and a unit, such as '10 seconds'": lambda: trigger_of("soon"),
    "the trigger's interval is 10; write a number and a unit": lambda: trigger_of({"processingTime": 10}),
    "a window has a size, or a size and a slide, or (for sessions) a gap": lambda: keyed().window("ts"),
    "time names the column 'when'; the columns are user, page, ts, n": lambda: keyed().window("when", "1 minute"),
    "there is no column 'usr' to key by; there are: user, page, ts, n": lambda: keyed("usr"),
    "Pages has no state 'sen'; it declares: seen": lambda: run(keyed().process(Pages), {"user": "u", "page": "p"}),
    "but the stream is keyed by (user string); a state's key begins with": lambda: keyed().process(ForeignKey),
    "workers is 0": lambda: started(then=lambda query: query.rescale(0)),
    "rescale has no option 'dry_run': plan_rescale takes the same": lambda: started(
        then=lambda query: query.rescale(3, dry_run=True)
    ),
    "options is an object; give me.MoveOptions": lambda: started(
        then=lambda query: query.rebalance(options={"tau": 1})
    ),
    "there is no planner 'fre'; there are: ": lambda: started(then=lambda query: query.plan_rescale(3, planner="fre")),
    "move has no option 'planner': it is you who says": lambda: started(
        then=lambda query: query.move({0: 1}, planner="ssm")
    ),
    "there is no operator 'sum'; there are: 0:count": lambda: started(
        then=lambda query: query.plan_rebalance(operator="sum")
    ),
    "rescale has no option 'planer'; with planner free and schedule batched there are: ": lambda: started(
        then=lambda query: query.rescale(3, planer="ssm")
    ),
    "there is no schedule 'slow'; there are: ": lambda: started(then=lambda query: query.rescale(3, schedule="slow")),
    "workers is '3'; it must be a whole number": lambda: started(then=lambda query: query.rescale("3")),
    "targets is a list; give {bin: worker}": lambda: started(then=lambda query: query.move([0, 1])),
    "bin is 99; it must be a whole number from 0 to 15": lambda: started(then=lambda query: query.move({99: 0})),
    "there is no policy 'stragler'; there are: straggler": lambda: started(
        then=lambda query: query.keep_balanced("stragler")
    ),
    "in a harness nothing goes on by itself; give the migration to h.finish(..)": lambda: started(
        then=lambda query: query.rescale(3).wait()
    ),
    "the trigger's interval is '10 foos'; write a number and a unit": lambda: trigger_of("10 foos"),
    "the sink is int; give one of me.sinks": lambda: sink_of(5),
    "that of a view in Spark's SQL, and 'my-counts' cannot be one": lambda: me.sinks.memory("my-counts"),
    "add .key_by(...) and an operator such as .count()": lambda: me.stream(me.testing.source(CLICKS)).start("x", print),
    "has no rows of its own; run it with me.testing.harness": lambda: keyed().count().start("x", print),
    "this is not a streaming DataFrame; make one with spark.readStream": lambda: me.stream([1, 2]),
    "start has no option 'worker'; there are: sink, trigger, checkpoint, workers": lambda: run(
        keyed().count(), worker=3
    ),
    "bins must be a power of two, not 100; nearest: 64, 128": lambda: run(keyed().count(), bins=100),
    "there is no column 'usr'; the columns are user, page, ts, n": lambda: run(keyed().count(), {"usr": "u"}),
    "the function 'total' of fold takes (rows); write it as f(rows, state)": lambda: keyed().fold(
        total, "t int", "user string"
    ),
    "of fold, as its state, returned a ndarray; return a pyarrow Table": lambda: run(
        keyed().fold(lambda rows, state: (np.zeros(3), None), "t int", "user string"), {"user": "u"}
    ),
    "of fold, as its state, returned a Series; return a pyarrow Table": lambda: run(
        keyed().fold(lambda rows, state: (pd.Series([1.5]), None), "t int", "user string"), {"user": "u"}
    ),
    "of map_with_state gave a row without 'user'; its columns are user": lambda: run(
        mapped(lambda key, rows, state: [{"usr": key}]), {"user": "u"}
    ),
    "the state has no column 'm' to update; its columns are n": lambda: run(
        mapped(lambda key, rows, state: state.update(m=1)), {"user": "u"}
    ),
    "the state has no column 'm'; its columns are n": lambda: run(
        mapped(lambda key, rows, state: [state.m]), {"user": "u"}
    ),
    "the aggregate 'x' is ('median', 'n'); write a function and a column": lambda: keyed().aggregate(x=("median", "n")),
    "the aggregate 'x' names the column 'price'; the columns are user": lambda: keyed().aggregate(x=("sum", "price")),
    "cannot take the sum of 'page' of type string; it needs numbers": lambda: keyed().aggregate(x=("sum", "page")),
    "lateness is 'soon'; write a duration such as": lambda: keyed().window("ts", "1 hour", lateness="soon"),
    "k is 0; it must be a whole number": lambda: keyed().top_k(0, by="n"),
    "the function '<lambda>' is no operator; give a subclass of me.Operator": lambda: keyed().process(
        lambda rows: rows
    ),
    "a join needs within=": lambda: me.stream(me.testing.source(CLICKS)).join(
        me.stream(me.testing.source(CLICKS)), on="user"
    ),
    "a union needs the same columns: these are (a int32) and (b int32)": lambda: me.stream(
        me.testing.source("a int")
    ).union(me.stream(me.testing.source("b int"))),
    "there is no checkpoint at ": lambda: me.checkpoint("/nowhere/at/all"),
    "'user like x' cannot be read as conditions; write column = value": lambda: conditions("user like x"),
    "spark.task.maxFailures must be 1, not 4; leave it out": lambda: me.session(spark__task__maxFailures=4),
    "attach takes what writeStream.start() returns, not int": lambda: me.attach(5),
    "at is 'noon'; a time of day is written '02:00'": lambda: started(then=lambda query: query.rescale(3, at="noon")),
}


@pytest.mark.parametrize("sentence", SLIPS)
def test_a_slip_gets_one_sentence(sentence):
    with pytest.raises((me.MeanderError, AttributeError)) as refused:
        SLIPS[sentence]()
    assert sentence in str(refused.value)
    assert sentence in str(refused.value).splitlines()[0], "what a function raises comes with its traceback below"


def test_the_table_is_long():
    assert len(SLIPS) >= 45


MOVING = {
    "spread": lambda attached: attached.spread(),
    "plan_spread": lambda attached: attached.plan_spread(),
    "rebalance": lambda attached: attached.rebalance(),
    "plan_rebalance": lambda attached: attached.plan_rebalance(),
    "move": lambda attached: attached.move({0: "1"}),
    "plan_move": lambda attached: attached.plan_move({0: "1"}),
    "rescale": lambda attached: attached.rescale(2),
    "plan_rescale": lambda attached: attached.plan_rescale(2),
    "drain": lambda attached: attached.drain("0"),
    "keep_balanced": lambda attached: attached.keep_balanced(),
}


def test_in_local_mode_every_moving_call_refuses_with_the_same_sentence():
    assert set(MOVING) == {
        name
        for name in dir(Attached)
        if name.removeprefix("plan_") in ("spread", "rebalance", "move", "rescale", "drain", "keep_balanced")
    }
    with PlainSpark() as spark:
        spark.local = True
        for name, call in MOVING.items():
            with pytest.raises(me.InvalidOption, match="^in local mode there is one process and nothing to place;"):
                call(spark.attached)
            assert spark.attached.migration is None, name


def test_executors_go_by_the_ids_that_observe_prints():
    with PlainSpark() as spark:
        attached = spark.attached
        printed = str(attached.observe())
        assert attached.executors == ["0", "1", "2"]
        assert all(re.search(rf"^ *{each}\b", printed, re.MULTILINE) for each in attached.executors), printed
        with pytest.raises(me.InvalidOption, match=r"there is no executor '7'; there are: 0, 1, 2"):
            attached.drain(7)
        with pytest.raises(me.MeanderError, match="7"):
            attached.move({0: "7"})
        assert attached.move({0: "2"}).wait(20, show=False)
        assert attached.assignment["0:count"][0] == "2"


def settings_of(master, **settings):
    """A session that runs, as far as its settings are looked at."""
    conf = SimpleNamespace(get=lambda name, default=None: settings.get(name.replace(".", "_"), default))
    context = SimpleNamespace(master=master, getConf=lambda: conf)
    return SimpleNamespace(sparkContext=context, version="4.3.0")


def test_a_session_that_runs_and_is_not_fit_says_what_to_stop_or_set(monkeypatch):
    running = settings_of("spark://host:7077", spark_speculation="true", spark_task_maxFailures="1")
    with pytest.raises(me.InvalidOption, match="set them before Spark starts, or start it with me.session") as refused:
        check(running)
    assert "spark.speculation must be false, not true" in str(refused.value)
    assert "maxFailures" not in str(refused.value)
    monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: running)
    with pytest.raises(me.InvalidOption, match=r"^a Spark session runs already, and it cannot run Meander") as refused:
        me.session()
    assert str(refused.value).endswith("stop it (spark.stop()) and call me.session() again")


NUMBER_AND_NOUN = re.compile(r"\{[^{}!:]*(:,)?\} (bins|workers|partitions|executors|versions|batches|steps|rows)\b")
MANY_FOR_SURE = (
    "need as many cores", "rows recounted by", "/s", "{side} rows", "{wanted} bins", " to {", "workers are'} idle",
    "executors cannot share", "among {workers} workers", "{len(sample.rows)} bins", "partitionings of",
    "rows are shown", "scatters", "different capacities", "cannot be hashed", "amounts are given",
)  # fmt: skip


def test_one_bin_is_never_one_bins():
    """A number stands before its noun through `many`, but where it cannot be one or a range ends."""
    found = []
    for path in sorted(Path(me.__file__).parent.rglob("*.py")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            is_for_us = path.name == "simulation.py"
            if NUMBER_AND_NOUN.search(line) and not is_for_us and not any(each in line for each in MANY_FOR_SURE):
                found.append(f"{path.name}:{number}: {line.strip()}")
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("sparks", "ours"),
    [
        ("lastProgress", "last_progress"),
        ("isActive", "is_active"),
        ("awaitTermination", "await_termination(timeout_s)"),
    ],
)
def test_names_of_spark_lead_to_ours(sparks, ours):
    def look(query):
        with pytest.raises(AttributeError, match=f"^a query has no '{sparks}'; it is called ") as missing:
            getattr(query, sparks)
        assert ours in str(missing.value)
        assert not hasattr(query, "nonsense")

    started(then=look)


def test_triggers_are_understood():
    assert trigger_of("10 seconds") == trigger_of({"processingTime": "10 seconds"}) == {"processingTime": "10 seconds"}
    assert trigger_of("availableNow") == trigger_of({"availableNow": True}) == {"availableNow": True}
    assert trigger_of("once") == {"once": True}
    assert trigger_of(None) == trigger_of({}) == {}


def test_no_java_is_one_sentence(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(me.InvalidOption, match=r"^Spark needs Java 17 or newer, and there is no Java here: install it"):
        check_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(me.InvalidOption, match="JAVA_HOME is .* and no Java is there"):
        check_java()


def test_options_as_a_value_and_as_keywords_are_the_same():
    def look(query):
        gently = me.MoveOptions(planner="ssm", schedule="fluid", planner_options={}, schedule_options={"gap": 2})
        as_value, as_keywords = (
            query.plan_rescale(3, gently),
            query.plan_rescale(3, planner="ssm", schedule="fluid", gap=2),
        )
        assert as_value.steps == as_keywords.steps
        assert query.plan_rescale(3, gently, schedule="all_at_once", gap=0).steps != as_value.steps
        nonsense = me.MoveOptions(tau=-1.0)
        assert query.plan_rebalance(0.5, nonsense).workers, "a tau beside the options counts first"
        with pytest.raises(me.MeanderError, match="tau"):
            query.plan_rebalance(options=nonsense)

    started(then=look)


def test_a_migration_is_logged_when_it_begins_and_when_it_ends(caplog):
    with caplog.at_level("INFO", "meander"), me.testing.harness(keyed().count(), workers=2, bins=16) as h:
        h.batch([{"user": "u", "page": "p"}])
        h.rescale(3)
        lines = [each.getMessage() for each in caplog.records if each.getMessage().startswith("migration ")]
    assert len(lines) == 2
    assert lines[0].startswith("migration 1 begins, a rescale: ")
    assert lines[1].startswith("migration 1 is over: done: 2 -> 3 workers, ")


def test_a_restart_that_keeps_its_workers_says_so(caplog):
    with me.testing.harness(keyed().count(), workers=2, bins=16) as h:
        h.batch([{"user": "u", "page": "p"}])
        h.rescale(3)
        with caplog.at_level("INFO", "meander"):
            h.restart()
        assert len(h.query.workers) == 3
    assert "the query was rescaled to 3 workers before" in caplog.text


def test_bins_are_those_of_the_checkpoint(tmp_path):
    from meander.store.identity import bins_of

    assert bins_of(str(tmp_path / "none")) is None
    with me.testing.harness(keyed().count(), bins=64, checkpoint=str(tmp_path / "ck")) as h:
        h.batch(pa.table({"user": ["u"], "page": ["p"], "ts": pa.array([None], pa.timestamp("us", "UTC")), "n": [1]}))
    assert bins_of(str(tmp_path / "ck")) == 64
