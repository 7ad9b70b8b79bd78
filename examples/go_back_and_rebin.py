"""A stopped query goes back to an older version, gets four times as many bins, and goes on."""

import tempfile

import meander as me

folder = tempfile.mkdtemp()
words = me.stream(me.testing.source("word string")).key_by("word").count()


def count(bins, *batches):
    """The counts after these batches."""
    with me.testing.harness(words, bins=bins, checkpoint=folder) as h:
        for batch in batches:
            h.batch([{"word": word} for word in batch.split()])
        print({row["word"]: row["count"] for row in sorted(h.state(), key=lambda row: row["word"])})


count(16, "the duck", "the goose", "a wrong wrong file")
checkpoint = me.checkpoint(folder)
print(checkpoint.rollback(to=1, take_over=True))  # a harness is no process that can be seen to have ended
count(16)
print(checkpoint.rebin(64, take_over=True))
count(64, "the swan")
print([version.kind for version in checkpoint.versions()])
