"""The ways in which bins can be moved, behind one interface.

Ours is live: bins are copied ahead, flip at a version, and are released later. Others, to compare it with, are plug-ins
under the entry points `meander.modes`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from meander.migration.handle import Migration
    from meander.migration.request import Request


class Mode(Protocol):
    """A way of moving bins."""

    name: str
    forced: bool
    """Whether bins flip as soon as their turn comes, and are read at that moment."""

    def adapt(self, request: Request) -> Request:
        """The request as this mode carries it out; raises `InvalidOption` where it cannot."""

    def run(self, migration: Migration) -> None:
        """Carry a migration out, or begin to."""

    def ended(self, migration: Migration) -> None:
        """The migration is over: clean up."""


class Live:
    """Let the engine do it, version by version."""

    name = "live"
    forced = False

    def adapt(self, request: Request) -> Request:
        """As it is."""
        return request

    def run(self, migration: Migration) -> None:
        """Submit the steps to the engine."""
        migration.submit()

    def ended(self, migration: Migration) -> None:
        """There is nothing to clean up."""
