"""The output of a version on its way into the sink: prepared before the manifest, committed after it.

A manifest names what the sink has prepared. Whoever finds the manifest commits it: the driver that wrote it, or the one
after it. So every committed version is delivered before the next one is made, and no other one ever is.
"""

from __future__ import annotations

from meander.engine.driver.attempts import Attempts
from meander.engine.driver.ports import JobLost, JobResult, OperatorOutput, OutputLost, SinkToken, SinkWrite
from meander.errors import Fenced
from meander.logs import logger
from meander.store.entries import Commit

SWEEP_EVERY = 16


class Delivery:
    """The sink of one run of a query."""

    def __init__(self, attempts: Attempts) -> None:
        self._attempts, self._log = attempts, attempts.log
        self._sink = attempts.jobs.sink

    def recover(self) -> None:
        """Before anything else: commit the last version once more, for its driver may have ended before that.

        If it is a rollback, the sink hears which versions are undone.
        """
        last = self._log.last
        if self._log.is_owed and last is not None and last.undoes is not None:
            self._sink.undo(*last.undoes, self._log.tokens(*last.undoes))
        if last is not None and last.sink is not None:
            try:
                self._sink.commit(last.sink)
            except OutputLost as loss:
                logger.warning("%s; if it was taken away after it was committed, all is well", loss)
        self.sweep()

    def prepare(self, result: JobResult, version: int) -> SinkToken:
        """Give a version's output to the sink, again where a job of the sink has lost a process."""
        attempts, settings = self._attempts, self._attempts.settings
        output = attempts.output(result, len(attempts.operators) - 1)
        write = self._write(version)
        for _ in range(settings.attempts - 1):
            try:
                return self._prepare(output, write)
            except JobLost as loss:
                # The rows are still there: the sink gets the same ones again, with the same number.
                if attempts.stopping:
                    raise
                logger.warning("version %d: the sink's job lost a process: %s; trying again", version, loss)
        return self._prepare(output, write)

    def commit(self, commit: Commit) -> None:
        """Append a version to the log, and let the sink show it."""
        try:
            self._log.append(commit)
        except Fenced:
            # Any other failure may have left the manifest: then the token is the next driver's to commit.
            if commit.sink is not None:
                self._sink.abort(commit.sink)
            raise
        if commit.sink is not None:
            self._sink.commit(commit.sink)
        if commit.version % SWEEP_EVERY == SWEEP_EVERY - 1:
            self.sweep()

    def sweep(self) -> None:
        """Remove what earlier drivers and failed attempts have left in the sink, also those that woke up late."""
        try:
            self._sink.sweep(self._write(self._log.index.version))
        except Exception as problem:
            # Nothing is lost by it: the next one takes what this one left.
            logger.warning("the sink could not remove what was never committed: %s", problem)

    def _prepare(self, output: OperatorOutput, write: SinkWrite) -> SinkToken:
        try:
            return self._attempts.jobs.prepare(output, write)
        except (JobLost, OutputLost):
            raise
        except Exception:
            self._log.check()  # a sink refuses a driver that was replaced, and that is what there is to say
            raise

    def _write(self, version: int) -> SinkWrite:
        epoch = self._log.epoch
        assert epoch is not None, "the log is claimed"
        return SinkWrite(version, epoch, self._attempts.settings.fsync)
