"""Records of the logger `meander`: what each is about, as fields that Python's own handlers can write."""

import json
import logging
import threading
from contextlib import suppress

import meander as me
from meander.logs import FIELDS, about, logger
from meander.migration.events import EventLog
from plain_spark import PlainSpark


def words(**settings):
    stream = me.stream(me.testing.source("word string")).key_by("word").count()
    return me.testing.harness(stream, workers=2, bins=16, **settings)


def subjects(caplog, text):
    return [tuple(getattr(each, name) for name in FIELDS) for each in caplog.records if text in each.getMessage()]


def test_every_record_has_the_fields_and_a_format_may_name_them(caplog):
    with caplog.at_level("DEBUG", "meander"), words(name="spend") as h:
        h.batch([{"word": "a"}])
        h.rescale(3)
        h.restart()
    assert len(caplog.records) > 5
    formatter = logging.Formatter("%(levelname)s %(query)s %(version)s %(migration)s %(message)s")
    lines = [formatter.format(each) for each in caplog.records]
    assert all(line.split()[1] == "spend" for line in lines), lines
    assert all(json.dumps({name: getattr(each, name) for name in FIELDS}) for each in caplog.records)


def test_a_migration_is_known_by_its_number(caplog):
    with caplog.at_level("INFO", "meander"), words(name="spend") as h:
        h.batch([{"word": "a"}])
        for workers in (3, 1):
            h.rescale(workers)
        last = h.query.version
    begins, ends = subjects(caplog, "begins, a rescale"), subjects(caplog, "is over")
    assert begins[0] == ("spend", 0, 1)
    assert [each[2] for each in (*begins, *ends)] == [1, 2, 1, 2]
    assert 0 < ends[0][1] < ends[1][1] <= last


def test_what_goes_wrong_in_a_version_is_about_that_version(caplog):
    with caplog.at_level("WARNING", "meander"), words() as h:
        h.batch([{"word": "a"}])
        h.lose(0)
        h.batch([{"word": "a"}])
        query = h.query.id
    assert set(subjects(caplog, "trying again")) == {(query, 1, None)}


def test_a_query_of_sparks_own_goes_by_its_name(caplog):
    with caplog.at_level("INFO", "meander"), PlainSpark() as spark:
        migration = spark.attached.move({1: 1})
        assert migration.wait(20, show=False)
        name = spark.engine.name
    assert [(query, number) for query, _, number in subjects(caplog, "migration 1")] == [(name, 1)] * 2


def test_events_are_about_what_they_say(caplog):
    with caplog.at_level("DEBUG", "meander"):
        EventLog(query="spend").emit("flipped", version=7, migration=2, step=1)
        EventLog().emit("lost")
    assert subjects(caplog, "flipped") == [("spend", 7, 2)]
    assert subjects(caplog, "lost") == [(None, None, None)]


def test_a_subject_holds_inside_in_this_thread_alone(caplog):
    with caplog.at_level("INFO", "meander"):
        with about(query="a", version=1):
            with suppress(KeyError), about(version=2):
                logger.info("inner")
                thread = threading.Thread(target=lambda: logger.info("beside"))
                thread.start()
                thread.join()
                raise KeyError
            logger.info("outer", extra={"migration": 5})
        logger.info("after")
    assert subjects(caplog, "inner") == [("a", 2, None)]
    assert subjects(caplog, "beside") == [(None, None, None)]
    assert subjects(caplog, "outer") == [("a", 1, 5)]
    assert subjects(caplog, "after") == [(None, None, None)]
