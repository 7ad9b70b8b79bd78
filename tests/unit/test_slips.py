"""What people get wrong, and the one sentence that each slip is answered with."""

from typing import ClassVar

import pyarrow as pa
import pytest

import meander as me
from meander.sessions import check_java
from meander.streams import trigger_of

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


def run(stream, *rows):
    with me.testing.harness(stream) as h:
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
    "at is 'noon'; a time of day is written '02:00'": lambda: started(then=lambda query: query.rescale(3, at="noon")),
}


@pytest.mark.parametrize("sentence", SLIPS)
def test_a_slip_gets_one_sentence(sentence):
    with pytest.raises(me.MeanderError) as refused:
        SLIPS[sentence]()
    assert sentence in str(refused.value)
    assert sentence in str(refused.value).splitlines()[0], "what a function raises comes with its traceback below"


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
