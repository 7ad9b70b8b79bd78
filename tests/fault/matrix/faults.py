"""What a fault is: something that is done to a query that is held in a phase, and what must come of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fault.matrix import namespaces
from streams import kill

if TYPE_CHECKING:
    from fault.matrix.cell import Scene

Held = dict[str, Any]
STOPPED_S = 20


EXECUTORS = 3
CLUSTER = f"local-cluster[{EXECUTORS},1,1024]"
LOCAL = f"local[{EXECUTORS}]"


@dataclass(frozen=True)
class Setup:
    """What a fault needs of Spark: its settings, executors in namespaces, a small disk for their local folders."""

    spark: tuple[tuple[str, str], ...] = ()
    namespace: str | None = None
    disk: str | None = None
    master: str = CLUSTER

    @property
    def is_networked(self) -> bool:
        """Whether each executor has a network of its own."""
        return self.namespace == namespaces.NETWORK


PLAIN = Setup()


class Fault:
    """Something that breaks."""

    is_of_driver = False
    """Whether the driver is what is hurt, and not its workers."""
    setup = PLAIN
    """What Spark must be like."""

    def __init__(self, name: str) -> None:
        self.name = name

    def why_not(self, phase: str) -> str | None:
        """Why there is no cell of this fault in a phase; None if there is one."""
        return None

    def prepare(self, scene: Scene) -> None:
        """Before the query starts."""

    def strike(self, scene: Scene, held: Held) -> None:
        """Do it to the query that is held, let it go on, and start it again where it must have ended."""
        raise NotImplementedError

    def leave_first_driver(self, scene: Scene) -> None:
        """In a takeover: what becomes of the driver before."""
        kill(scene.engine.program.pid)
        scene.engine.program.wait()

    def clean_up(self, scene: Scene) -> None:
        """When the cell is over, however it ended."""
