"""A daemon of Spark's Python workers that are killed in the middle of changing their state, where a token asks for it.

A token is an empty file in the folder MEANDER_TORN: `install-s0-w2` stands for operator 0 of worker 2, which dies when
it has read one part of the bins it copies; `advance-s0-w2` when half of a delta has been applied.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from meander.state.holding import Holding


def is_doomed(what: str, holding: Holding) -> bool:
    """Whether there is a token for this, which is used up."""
    token = Path(os.environ["MEANDER_TORN"]) / f"{what}-{holding.directory.parent.name}"
    try:
        token.unlink()
    except FileNotFoundError:
        return False
    return True


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def tear() -> None:
    """Let the two ways in which a holding changes end in the middle."""
    install, advance = Holding.install, Holding.advance

    def torn_install(self, bin_ids, parts, version):
        def some():
            for part in parts:
                yield part
                die()
            die()

        install(self, bin_ids, some() if is_doomed("install", self) else parts, version)

    def torn_advance(self, version, deltas):
        if is_doomed("advance", self):
            with self._change():
                for name, delta in deltas.items():
                    self.bases[name].apply(delta.slice(0, delta.num_rows // 2))
                    die()
                die()
        advance(self, version, deltas)

    Holding.install, Holding.advance = torn_install, torn_advance


if __name__ == "__main__":
    from meander.engine.spark.daemon import main

    tear()
    main()
