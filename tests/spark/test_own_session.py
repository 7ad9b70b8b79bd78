"""A user's own Spark session: what would break exactly-once is refused by name, with the value it must have."""

from __future__ import annotations

import pytest

import meander as me
from meander.engine.spark.launch import FILE_MANAGER
from streams import PATIENCE_S, Feed, as_ints

pytestmark = pytest.mark.spark


@pytest.fixture
def own():
    from pyspark.sql import SparkSession

    made = []

    def build(**settings):
        each = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        for name, value in settings.items():
            each = each.config(name.replace("__", "."), value)
        session = each.getOrCreate()
        session.sparkContext.setLogLevel("OFF")
        made.append(session)
        return session

    yield build
    for session in made:
        session.stop()


def test_wrong_settings_are_refused_by_name(own):
    # A JVM keeps what its first session was given, so nothing is left to Spark's defaults here.
    session = own(
        spark__python__worker__reuse="false", spark__speculation="true", spark__stage__maxConsecutiveAttempts="4"
    )
    with pytest.raises(me.InvalidOption) as refused:
        me.stream(session.readStream.format("rate").load())
    told = str(refused.value)
    assert "spark.python.worker.reuse must be true, not false" in told
    assert "spark.speculation must be false, not true" in told
    assert "spark.stage.maxConsecutiveAttempts must be 1, not 4" in told
    assert "\n" not in told
    with pytest.raises(me.InvalidOption, match="spark.speculation must be false"):
        me.session(spark__speculation=True)


def test_a_session_with_the_right_settings_works_and_keeps_what_else_it_has(own, tmp_path):
    session = own(
        spark__python__worker__reuse="true", spark__speculation="false",
        spark__stage__maxConsecutiveAttempts="1", spark__stage__ignoreDecommissionFetchFailure="false",
        spark__sql__adaptive__enabled="true", spark__sql__session__timeZone="America/New_York",
        spark__sql__shuffle__partitions="5",
    )  # fmt: skip
    feed = Feed(tmp_path / "in", as_ints([]).schema).add(as_ints([4, 5, 4]), as_ints([4]))
    sink = me.sinks.memory()
    query = (
        me.stream(feed.read(session)).key_by("key").count().start(tmp_path / "ck", sink, trigger={"availableNow": True})
    )
    query.await_termination(PATIENCE_S)
    assert len(query.workers) == 2
    assert {row["key"]: row["count"] for row in sink.latest("key")} == {4: 3, 5: 1}
    assert session.conf.get("spark.sql.adaptive.enabled") == "true"
    assert session.conf.get("spark.sql.session.timeZone") == "America/New_York"
    assert query.misrouted == 0


@pytest.mark.parametrize("chosen", [None, "FileContextBasedCheckpointFileManager"])
def test_a_local_checkpoint_has_the_cheaper_file_manager_unless_another_one_is_set(own, tmp_path, chosen):
    package = "org.apache.spark.sql.execution.streaming.checkpointing"
    session = own(
        spark__python__worker__reuse="true", spark__speculation="false",
        spark__stage__maxConsecutiveAttempts="1", spark__stage__ignoreDecommissionFetchFailure="false",
    )  # fmt: skip
    session.conf.unset(FILE_MANAGER)
    if chosen:
        session.conf.set(FILE_MANAGER, f"{package}.{chosen}")
    feed = Feed(tmp_path / "in", as_ints([]).schema).add(as_ints([4, 5, 4]))
    of_stream = []
    query = (
        me.stream(feed.read(session)).key_by("key").count().start(
            tmp_path / "ck", lambda rows, _: of_stream.append(rows.sparkSession.conf.get(FILE_MANAGER)),
            trigger={"availableNow": True},
        )
    )  # fmt: skip
    assert session.conf.get(FILE_MANAGER, None) == (f"{package}.{chosen}" if chosen else None)
    query.await_termination(PATIENCE_S)
    assert of_stream == [f"{package}.{chosen or 'FileSystemBasedCheckpointFileManager'}"]
