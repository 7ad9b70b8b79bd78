"""One line of JSON for everything that is logged: Python's own handlers, and fields that say what a line is about."""

import json
import logging
import sys

import meander as me
from meander.logs import FIELDS


class JsonLines(logging.Formatter):
    """A record as one object."""

    def format(self, record):
        """The line."""
        subject = {name: getattr(record, name) for name in FIELDS}  # query, version, migration
        return json.dumps({"level": record.levelname, "text": record.getMessage(), **subject})


handler = logging.StreamHandler(sys.stdout)
handler.setFormatter(JsonLines())
logging.getLogger("meander").addHandler(handler)
logging.getLogger("meander").setLevel("INFO")

words = me.stream(me.testing.source("word string")).key_by("word").count()
with me.testing.harness(words, workers=2, name="words") as h:
    h.batch([{"word": word} for word in ("to", "be", "or", "not")])
    h.rescale(3)
