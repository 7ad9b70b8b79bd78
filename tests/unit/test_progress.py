"""Bars on a terminal and in a notebook, nothing elsewhere, and whoever asked to be told."""

import io
import sys
from types import SimpleNamespace

import pytest

import meander as me
from meander.progress import bars, notebook_display, progress_bars


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_there_is_a_bar_for_each_part_on_a_terminal_and_none_elsewhere(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    for stream, shown in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr("sys.stderr", stream)
        with progress_bars() as tell:
            tell(1, 4, "blocks of pairs")
            tell(2, None, "sweeps")
        assert ("blocks of pairs" in stream.getvalue()) == shown
        assert ("sweeps" in stream.getvalue()) == shown


def test_whoever_asked_is_told_and_there_is_no_bar(monkeypatch):
    stream, heard = Terminal(), []
    monkeypatch.setattr("sys.stderr", stream)
    with progress_bars(lambda *said: heard.append(said)) as tell:
        tell(1, 4, "cases")
    assert (heard, stream.getvalue()) == ([(1, 4, "cases")], "")


class Notebook:
    """IPython in a kernel, as far as bars see it: what is displayed, and what is drawn over it."""

    def __init__(self, kernel=True):
        self.cells = []
        self.shell = SimpleNamespace(kernel=object() if kernel else None)

    def get_ipython(self):
        return self.shell

    @property
    def display(self):
        """The module with the function."""
        return SimpleNamespace(display=self._show)

    def _show(self, value, display_id):
        assert display_id is True
        cell = [value]
        self.cells.append(cell)
        return SimpleNamespace(update=cell.append)


@pytest.fixture
def notebook(monkeypatch):
    book = Notebook()
    monkeypatch.setitem(sys.modules, "IPython", book)
    monkeypatch.setitem(sys.modules, "IPython.display", book.display)
    return book


def test_a_notebook_gets_one_bar_for_each_part_drawn_over_when_it_changes(notebook):
    with progress_bars() as tell:
        for done in (1, 1, 2):
            tell(done, 4, "<blocks>")
        tell(2, None, "sweeps")
    blocks, sweeps = notebook.cells
    assert [repr(each) for each in blocks] == ["<blocks>: 1/4", "<blocks>: 2/4"]
    assert [repr(each) for each in sweeps] == ["sweeps: 2/?"]
    shown = blocks[-1]._repr_html_()
    assert "max='4' value='2'" in shown
    assert "<blocks>" not in shown
    assert "max=" not in sweeps[0]._repr_html_(), "nobody knows how long it will be"


def test_a_migration_that_is_waited_for_in_a_notebook_shows_a_bar(notebook):
    words = me.stream(me.testing.source("word string")).key_by("word").count()
    with me.testing.harness(words, workers=2, bins=16) as h:
        h.batch([{"word": word} for word in "abcdef"])
        move = h.rescale(3)
        assert move.wait()
        assert move.wait(show=False)
        (cell,) = notebook.cells
        assert repr(cell[-1]) == f"moving state: {move.progress}"
        assert f"value='{move.report.bins}'" in cell[-1]._repr_html_()


def test_ipython_on_a_terminal_is_no_notebook(monkeypatch):
    monkeypatch.setitem(sys.modules, "IPython", Notebook(kernel=False))
    assert notebook_display() is None
    monkeypatch.setattr("sys.stderr", io.StringIO())
    with bars() as draw:
        assert draw is None
