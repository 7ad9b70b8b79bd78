"""Deliver output to a database in two steps: staged before a version is committed, moved into its table after that."""

import sqlite3
import tempfile
from pathlib import Path
from uuid import uuid4

import meander as me


class Database(me.sinks.Sink):
    """A table of counts that shows committed versions only, each once."""

    def __init__(self, path):
        self.rows = sqlite3.connect(path, check_same_thread=False)
        self.rows.execute("CREATE TABLE counts (word TEXT PRIMARY KEY, count INTEGER)")
        self.rows.execute("CREATE TABLE staged (word TEXT, count INTEGER, token TEXT, epoch INTEGER, version INTEGER)")

    def prepare(self, output, write):
        """Stage one version's rows under a name of their own."""
        token = str(uuid4())
        staged = [(*row.values(), token, write.epoch, write.version) for row in output.to_arrow().to_pylist()]
        with self.rows:
            self.rows.executemany("INSERT INTO staged VALUES (?, ?, ?, ?, ?)", staged)
        return token

    def commit(self, token):
        """Move them into the table, in one transaction: the second time there is nothing to move."""
        with self.rows:
            self.rows.execute("REPLACE INTO counts SELECT word, count FROM staged WHERE token = ?", (token,))
            self.rows.execute("DELETE FROM staged WHERE token = ?", (token,))

    def sweep(self, last):
        """Remove what nobody will commit."""
        with self.rows:
            self.rows.execute("DELETE FROM staged WHERE (epoch, version) <= (?, ?)", (last.epoch, last.version))


folder = Path(tempfile.mkdtemp())
(folder / "words").mkdir()
(folder / "words" / "1.csv").write_text("duck\ngoose\nduck\n")
words = me.stream(me.session().readStream.schema("word string").csv(str(folder / "words"))).key_by("word").count()
database = Database(folder / "counts.db")
words.start(folder / "checkpoint", database, trigger={"availableNow": True}).await_termination()
print(*database.rows.execute("SELECT * FROM counts ORDER BY word"), sep="\n")
print(*database.rows.execute("SELECT count(*) FROM staged").fetchone(), "rows are staged")
