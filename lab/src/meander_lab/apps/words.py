"""Words of lines, counted: the papers' first application.

counted(lines).start(checkpoint, me.sinks.memory("counts"))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from meander.errors import InvalidOption

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from meander.streams import Stream

BETWEEN = r"[^\p{L}\p{N}']+|(?<![\p{L}\p{N}])'|'(?![\p{L}\p{N}])"
"""What stands between words: all but letters, digits, and an apostrophe within a word."""


def words_of(text: Column) -> Column:
    """The words of a text in lower case, in order, as an array."""
    from pyspark.sql import functions as F

    return F.filter(F.split(F.lower(text), BETWEEN), lambda word: word != "")


def words(lines: DataFrame, text: str = "value", at: str | None = None) -> DataFrame:
    """A row for each word: `word`, and `at`, when its line arrived, where a column says so."""
    from pyspark.sql import functions as F

    for column in (text, at):
        if column is not None and column not in lines.columns:
            raise InvalidOption(f"there is no column {column!r}; there are: {', '.join(lines.columns)}")
    word = F.explode(words_of(F.col(f"`{text}`"))).alias("word")
    return lines.select(word) if at is None else lines.select(word, F.col(f"`{at}`").alias("at"))


def counted(lines: DataFrame, text: str = "value", at: str | None = None) -> Stream:
    """How often each word has come: `word`, `count`, and `at`, when the last one arrived, where a column says so.

    With `at` the delay of a result can be told: the time its version was committed less its `at`.

    Args:
        lines: a streaming DataFrame.
        text: its column of text.
        at: its column of arrival times.
    """
    import meander as me

    keyed = me.stream(words(lines, text, at)).key_by("word")
    return keyed.count() if at is None else keyed.aggregate(count="count", at=("max", "at"))
