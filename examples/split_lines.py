"""One row in, any number out: lines of text become words, and those are counted."""

import meander as me


def words_of(line):
    """The words of a line, each as a row."""
    return [{"page": line.page, "word": word} for word in line.text.lower().split()]


lines = me.stream(me.testing.source("page string, text string"))
words = lines.key_by("page").flat_map(words_of, output="page string, word string")
counts = words.key_by("word").count()
with me.testing.harness(counts) as h:
    h.batch([{"page": "1", "text": "Duck duck goose"}, {"page": "2", "text": ""}])
    h.batch([{"page": "3", "text": "Goose"}])
    found = {row["word"]: row["count"] for row in h.latest("word")}
print(found)
assert found == {"duck": 2, "goose": 2}
