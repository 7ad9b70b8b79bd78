"""A process that ends at a change to a file of the checkpoint, of whatever kind, by number."""

from __future__ import annotations

from pathlib import Path

from meander.store.location import Location


class Killed(BaseException):
    """The process ends here."""


def changes(monkeypatch, until=None):
    """Count every change to a file of the checkpoint and of the output; at number `until` the process ends."""
    count = [0]

    def step(function):
        def call(*arguments, **options):
            if count[0] == until:
                raise Killed
            count[0] += 1
            return function(*arguments, **options)

        return call

    def delete(self, paths):
        for path in [paths] if isinstance(paths, str) else list(paths):
            one(self, path)

    one = step(Location.delete)
    monkeypatch.setattr(Location, "write", step(Location.write))
    monkeypatch.setattr(Location, "create", step(Location.create))
    monkeypatch.setattr(Location, "delete", delete)
    monkeypatch.setattr(Path, "rename", step(Path.rename))
    return count
