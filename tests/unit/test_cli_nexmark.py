"""`meander nexmark`: what it lists, generates and refuses, without Spark."""

from __future__ import annotations

import json

import pytest

from meander.cli import main
from meander_lab.nexmark.queries import QUERIES


def test_every_query_is_listed_with_its_lines_beside_megaphones(capsys):
    assert main(["nexmark", "list"]) == 0
    listed = capsys.readouterr().out
    for asked in QUERIES.values():
        assert f"\n{asked.name} " in listed
    (q4,) = [line for line in listed.splitlines() if line.startswith("q4 ")]
    assert q4.split()[-2:] == ["128", "74"]


def test_a_query_says_what_its_rows_are(capsys):
    assert main(["nexmark", "list", "q8"]) == 0
    told = capsys.readouterr().out
    assert "columns: id, name, starttime" in told


def test_generated_events_are_json_lines_of_each_kind(tmp_path, capsys):
    assert main(["nexmark", "generate", str(tmp_path / "new" / "events"), "--events", "500"]) == 0
    rows = {
        kind: [json.loads(line) for line in (tmp_path / "new" / "events" / f"{kind}.jsonl").read_text().splitlines()]
        for kind in ("person", "auction", "bid")
    }
    assert {kind: len(found) for kind, found in rows.items()} == {"person": 10, "auction": 30, "bid": 460}
    assert rows["person"][0]["id"] == 1000
    assert rows["person"][0]["dateTime"] == "2015-07-15T00:00:00.000Z"
    assert list(rows["bid"][0]) == ["auction", "bidder", "price", "channel", "url", "dateTime", "extra"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["q99"], "there is no query 'q99'; there are: q0, q1"),
        (["q4", "--migrate", "batched"], "write a schedule and when"),
        (["q4", "--window", "soon"], "--window is 'soon'; write a duration"),
        (["q4", "--input", "here", "--events", "5"], "--input brings its own events"),
        (["q4", "--input", "here", "--rate", "5"], "--input brings its own events"),
        (["q4", "--out", "no/such/folder/rows.jsonl"], "cannot write no/such/folder/rows.jsonl"),
        (["q4", "--dialect", "latin"], "--dialect"),
        (["q4", "--events", "0"], "--events"),
        (["q4", "--rate", "0"], "--rate"),
    ],
)
def test_a_slip_is_one_sentence_before_anything_starts(arguments, sentence, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["nexmark", "run", *arguments]) == 2
    told = capsys.readouterr()
    assert sentence in told.err
    assert told.err.count("\n") == 1
    assert told.out == ""
