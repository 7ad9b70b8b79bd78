"""What happens to a query, heard by a function: each event is a value with a name, a version, a migration and facts."""

from collections import Counter

import meander as me

heard: Counter[str] = Counter()


def listen(event: me.Event) -> None:
    """Count events; a real listener would page somebody, or call the query: `query.migration.cancel()`."""
    heard[event.name] += 1
    if event.name in ("planned", "finished"):
        print(event)


words = me.stream(me.testing.source("word string")).key_by("word").count()
with me.testing.harness(words, workers=2, bins=16) as h:
    h.query.on_event(listen)
    h.batch([{"word": f"word {n}"} for n in range(100)])
    h.rescale(3)
    progress: me.VersionProgress = h.query.last_progress
    print(progress)
    h.query.off_event(listen)
    h.rescale(2)
assert heard["finished"] == 1
