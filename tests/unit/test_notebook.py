"""A kernel of its own runs cells: what they display arrives as a notebook shows it. The whole one is in tests/spark."""

import os

import nbclient
import nbformat

CELL = """
import meander as me

words = me.stream(me.testing.source("word string")).key_by("word").count()
with me.testing.harness(words, workers=2, bins=16) as h:
    h.batch([{"word": word} for word in "abcdef"])
    move = h.rescale(3)
    move.wait()
    display(h.query)
move.report
"""


def test_a_kernel_shows_a_bar_a_query_and_a_report(tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    nbclient.NotebookClient(notebook, timeout=300).execute(env=dict(os.environ))
    shown = [each["data"] for each in notebook.cells[0].outputs if "data" in each]
    assert [each["text/plain"].split(":")[0] for each in shown] == [
        "moving state", "<Query 00000000-0000-0000-0000-000000000000", "<Report done",
    ]  # fmt: skip
    bar = shown[0]["text/html"]
    assert bar.startswith("<div>moving state <progress")
    assert "done: " in bar
    assert "<svg" in shown[1]["text/html"]
    assert "2 -&gt; 3 workers" in shown[2]["text/html"]
