"""What one sees of values: one line each, HTML in a notebook that has no script and escapes what it shows."""

import re
from html.parser import HTMLParser
from itertools import pairwise

import pytest

import meander as me
from meander.pictures import bin_strip, facts, many


class Closed(HTMLParser):
    """Fails where a tag is not closed in order."""

    def __init__(self):
        super().__init__()
        self.open, self.tags = [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def tags(html):
    """The tags of well-formed HTML."""
    parser = Closed()
    parser.feed(html)
    assert not parser.open
    assert not {tag for tag, _ in parser.tags} & {"script", "style", "link", "img"}
    return parser.tags


@pytest.fixture
def harness():
    words = me.stream(me.testing.source("word string")).key_by("word").count()
    with me.testing.harness(words, workers=2, bins=16, name="spend") as h:
        for _ in range(3):
            h.batch([{"word": word} for word in ("a", "b", "c", "d", "e")])
        yield h


def test_everything_is_one_line(harness):
    query = harness.query
    assert repr(query) == "<Query spend: version 2, 2 workers, running>"
    stream = me.stream(me.testing.source("word string"))
    assert repr(stream) == "<Stream: word string>"
    assert repr(stream.key_by("word")) == "<KeyedStream by word of <Stream: word string>>"
    assert repr(stream.key_by("word").count()) == "<Stream of count: word string, count int64>"
    move = query.rescale(1)
    assert re.fullmatch(r"<Migration 1: \w+: 0 of \d+ bins, 0 of \d+ bytes, step 0 of \d+>", repr(move)), repr(move)
    harness.finish(move)
    assert repr(query) == f"<Query spend: version {query.version}, 1 worker, running>"
    values = [
        move, move.report, move.progress, query.plan_rescale(2), query.last_progress, query.loads["0:count"],
        query.events[-1], me.Assignment.initial(query.assignment["0:count"]),
    ]  # fmt: skip
    for value in values:
        assert "\n" not in repr(value), repr(value)
        assert len(repr(value)) < 300, repr(value)
        assert not re.search(r"\b1 (bins|steps|workers|versions|batches)\b", f"{value!r} {value!s}"), repr(value)
    clicks = me.stream(me.testing.source("user string, at timestamp")).key_by("user")
    assert repr(clicks.window("at", "1 hour")).startswith("<WindowedStream by at of <KeyedStream by user of ")
    assert repr(clicks.connect(clicks)).startswith("<ConnectedStreams of <KeyedStream by user of ")
    assert repr(harness) == f"<Harness of {query!r}>"
    assert [repr(each) for each in (me.sinks.memory("counts"), me.sinks.memory(), me.sinks.console())] == [
        "<Memory sink counts: 0 rows>", "<Memory sink: 0 rows>", "<Console sink>",
    ]  # fmt: skip
    assert repr(me.sinks.files("out", format="json")).endswith("out: json>")
    assert repr(me.sinks.kafka("host:9092", topic="t")) == "<Format sink kafka: append>"
    harness.query.stop()
    assert repr(query).endswith("stopped>")


def test_a_checkpoint_is_one_line(tmp_path):
    words = me.stream(me.testing.source("word string")).key_by("word").count()
    with me.testing.harness(words, checkpoint=str(tmp_path / "ck")) as h:
        h.batch([{"word": "a"}])
        assert repr(me.checkpoint(tmp_path / "ck")) == f"<Checkpoint {tmp_path / 'ck'}>"


def test_notebooks_show_bins_by_worker(harness):
    query = harness.query
    stripes = [attrs for tag, attrs in tags(query._repr_html_()) if tag == "rect"]
    owners = query.assignment["0:count"]
    assert len(stripes) == 1 + sum(one != other for one, other in pairwise(owners))
    assert len({each["fill"] for each in stripes}) == 2
    assert sum(float(each["width"]) for each in stripes) == pytest.approx(640, abs=0.2 * len(stripes))
    proposal = query.plan_rescale(3)
    fills = {attrs["fill"] for tag, attrs in tags(proposal._repr_html_()) if tag == "rect"}
    assert len(fills) == 3
    move = query.rescale(3)
    harness.finish(move)
    for value in (move.report, move.progress, query.loads["0:count"], me.Assignment.initial([0, 1])):
        assert tags(value._repr_html_())


def test_what_is_shown_is_escaped():
    shown = facts("<b>", {"<script>": "a & b"}, bin_strip([], "<none>"))
    assert "<script>" not in shown
    assert "a &amp; b" in shown
    tags(shown)


def test_one_thing_is_singular():
    assert [many(count, "batch", "batches") for count in (0, 1, 2, 1000)] == [
        "0 batches", "1 batch", "2 batches", "1,000 batches",
    ]  # fmt: skip
