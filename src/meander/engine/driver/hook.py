"""The one place where something else may take part in the batch loop: ways of moving bins that are no product.

A hook makes the versions of a batch in its own way. What it must remember from one version to the next goes into one
field of the manifest that only the hook reads. A query that is started again finds the hook by its name among the
entry points `meander.hooks`: each makes a hook of what it remembered.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from meander.errors import CheckpointError
from meander.options import Plugins
from meander.store.entries import Json
from meander.store.manifest import Log

if TYPE_CHECKING:
    from meander.engine.driver.batch_loop import Batch, BatchLoop


class BatchHook(Protocol):
    """Takes part in the batch loop."""

    name: str
    """What it is called among the entry points."""
    note: Json | None
    """What the hook must remember: it is announced and committed with every version, and given back after a restart."""

    @property
    def holds_ticks(self) -> bool:
        """Whether no tick may run now."""

    def make(self, loop: BatchLoop, batch: Batch) -> None:
        """Make the versions of a batch; `loop.advance(batch)` makes one of all its rows.

        Where `loop.log.announced` is not None, the first one was announced with this note before a restart: it has to
        be of the same rows again.
        """

    def finish(self, loop: BatchLoop, batch: Batch) -> None:
        """Spark replays a batch of which a version is committed: make those that are missing."""


def pending_hook(log: Log) -> BatchHook | None:
    """The hook that makes the next version, if the last one or the announcement of the next names one."""
    announced = log.announced.hook if log.announced else None
    committed = (log.last.journal or {}).get("hook") if log.last else None
    fields = announced or committed
    return hook_of(fields) if fields else None


def hook_of(fields: Mapping[str, Any]) -> BatchHook:
    """The hook that is committed by name and note; raises `CheckpointError` where it is not installed."""
    name = fields["name"]
    known: Mapping[str, Any] = Plugins("meander.hooks")
    if name not in known:
        raise CheckpointError(
            f"the last batch is to be finished by the hook {name!r}, and no installed package has it; install the one "
            "that the query ran with, such as meander-lab, and start again"
        )
    hook: BatchHook = known[name](fields["note"])
    return hook
