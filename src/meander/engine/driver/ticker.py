"""Ticks while the stream is idle: timers fire, windows close and migrations go on without waiting for rows."""

from __future__ import annotations

import threading

from meander.clock import Clock
from meander.engine.driver.batch_loop import BatchLoop
from meander.errors import CheckpointError


class Ticker:
    """Looks for idle times, in a thread of its own or whenever it is asked to."""

    def __init__(self, loop: BatchLoop, clock: Clock) -> None:
        self._loop, self._clock = loop, clock
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="meander-ticker", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._ended.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def look(self) -> bool:
        """Make a tick if the stream is quiet and there is something to do; whether to look again."""
        loop, stream = self._loop, self._loop.stream
        if loop.stopping or loop.failure:
            return False
        if stream is None or not stream.is_active:
            try:
                loop.log.check()  # it has ended without us: perhaps another driver has taken over
            except CheckpointError as fenced:
                loop.failure = loop.failure or fenced
            return False
        if stream.is_quiet and (loop.is_idle or loop.ticks_go_on) and loop.wants_tick:
            try:
                loop.tick_if_wanted()
            except Exception as problem:
                # Nobody else would notice: a query whose ticks have failed has failed, and brings no more batches.
                loop.failure = loop.failure or problem
                stream.stop()
                return False
        return True

    def _run(self) -> None:
        every_s = min(0.2, self._loop.settings.idle_after_s / 4)
        while not self._ended.wait(every_s) and self.look():
            pass
