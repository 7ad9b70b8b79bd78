"""The notebook runs in a kernel, as somebody would run it, and shows what it says it would."""

from __future__ import annotations

import os
import re
from pathlib import Path

import nbclient
import nbformat
import pytest

import meander

pytestmark = [pytest.mark.spark, pytest.mark.slow]  # tests/unit/test_notebook.py is quick

ROOT = Path(meander.__file__).parents[2]
NOTEBOOK = ROOT / "examples" / "rescale_in_a_notebook.ipynb"


def shown(cell, kind):
    """What a cell shows in a form, all of it."""
    return "\n".join(each["data"].get(kind, "") for each in cell.outputs if "data" in each)


def test_a_query_its_proposal_a_rescale_and_its_report_are_shown(tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("MEANDER_RUNTIME_DIR", str(tmp_path))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute(
        env=dict(os.environ)
    )
    cells = {cell.source.splitlines()[0]: cell for cell in notebook.cells if cell.cell_type == "code"}
    assert not [output for cell in cells.values() for output in cell.outputs if output.output_type == "error"]

    query = [cell for cell in notebook.cells if cell.source.endswith("\nquery") or cell.source == "query"]
    before, after = (shown(each, "text/plain") for each in query)
    assert re.fullmatch(r"<Query notebook: version \d+, 2 workers, running>", before)
    assert re.fullmatch(r"<Query notebook: version \d+, 3 workers, running>", after)
    pictures = [shown(each, "text/html") for each in query]
    assert [len(set(re.findall(r"fill='(#\w+)'", each))) for each in pictures] == [2, 3]

    proposal = cells['query.plan_rescale(3, schedule="fluid")']
    assert "<svg" in shown(proposal, "text/html")
    wait = cells['migration = query.rescale(3, schedule="fluid")']
    bars = [each for each in wait.outputs if each.output_type == "display_data"]
    assert len(bars) == 1, "one bar, drawn over"
    assert "<progress" in bars[0]["data"]["text/html"]
    assert "done: " in bars[0]["data"]["text/plain"]
    assert "done: 2 -&gt; 3 workers" in shown(cells["migration.report"], "text/html")
    assert "500" in cells[next(name for name in cells if "count(distinct user)" in name)].outputs[0]["text"]
