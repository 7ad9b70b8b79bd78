"""Figures as text that fits a terminal: numbers that are never long, names that cannot steer it, tables as lines."""

from __future__ import annotations

from collections.abc import Sequence

TO_THE_LEFT = ("group", "executor", "host")
"""Columns of names; all others are figures."""


def aligned(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table as lines: names to the left, figures to the right, two spaces in between."""
    widths = [max(len(column), *(len(row[i]) for row in rows), 0) for i, column in enumerate(columns)]
    return [
        "  ".join(
            f"{cell:<{width}}" if column in TO_THE_LEFT else f"{cell:>{width}}"
            for cell, width, column in zip(row, widths, columns, strict=True)
        )
        for row in (columns, *rows)
    ]


def figure(value: float, digits: int = 0) -> str:
    """A number for people, never long: 12,345, or 1.23e+10.

    >>> figure(12345.678, 1), figure(12_345_678_901)
    ('12,345.7', '1.23e+10')
    """
    return f"{value:,.{digits}f}" if value < 1e9 else f"{value:.3g}"


def printable(text: str, most: int) -> str:
    """A text of at most so many characters that cannot steer a terminal.

    >>> printable("a\\x1b[2Jb", 20), printable("abcdef", 4)
    ('a?[2Jb', 'abc…')
    """
    safe = "".join(character if character.isprintable() else "?" for character in text[: most + 1])
    return safe if len(safe) <= most else f"{safe[: most - 1]}…"
