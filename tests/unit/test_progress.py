"""Bars on a terminal, nothing elsewhere, and whoever asked to be told."""

import io

from meander.progress import progress_bars


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
