"""Starting a query on Spark: what the query is, the claim on its checkpoint, its driver and its stream."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from meander.engine.driver.conversion import with_converters
from meander.engine.driver.driver import Driver, claim
from meander.engine.driver.settings import Settings
from meander.engine.spark.cluster import SparkCluster
from meander.engine.spark.gateway import Gateway
from meander.engine.spark.jobs import SparkJobs, SparkSink, in_short
from meander.engine.spark.nodes import Dataflow, Shape
from meander.engine.spark.stream import SparkBatches, SparkStream
from meander.errors import InvalidOption, MeanderError, QueryFailed
from meander.migration.steps import Step
from meander.store.design import Design
from meander.store.evolution import Evolution
from meander.store.identity import foreign
from meander.store.location import Location
from meander.store.manifest import Log
from meander.store.spark_logs import SPARK
from meander.warmth import warm_beside

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

# Spark copies the session when a stream starts: these hold for the stream, and the session has its own again.
WHILE_STARTING = {"spark.sql.adaptive.enabled": "false"}
"""With adaptive execution on, the shuffle would run outside our job."""

FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
ON_LOCAL_FILES = {
    FILE_MANAGER: "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
}
"""What Spark takes by default starts a process of the system for some files of its logs, a third of a small batch."""


@dataclass(frozen=True)
class SparkLaunch:
    """Everything a query is started with on Spark.

    Args:
        flow: what it computes, and from which sources.
        settings: how it runs.
        sink: where its output goes.
        trigger: Spark's trigger.
        requested: the number of workers that the user named, if any.
        shapes: what the last operator's rows go through before the sink.
        evolution: how the query may differ from what it was.
    """

    flow: Dataflow
    settings: Settings
    sink: SparkSink
    trigger: Mapping[str, Any]
    requested: int | None = None
    shapes: Sequence[Shape] = ()
    evolution: Evolution = field(default_factory=Evolution)

    def start(self, moved: Sequence[Step] = (), before: Driver | None = None) -> tuple[Driver, SparkStream]:
        """Check everything, claim the checkpoint and start.

        After the claim Spark can still refuse in one way: by what its sources find out in its own thread.
        """
        settings, graph, gateway = self.settings, self.flow.graph, Gateway(self._session)
        location = Location.of(settings.checkpoint, fsync=settings.fsync)
        cluster = SparkCluster(gateway)
        graph = replace(graph, operators=tuple(with_converters(graph.operators, self.evolution)))
        try:
            jobs = SparkJobs(gateway, cluster, replace(self.flow, graph=graph), self.sink, self.shapes)
        except Exception as problem:
            raise InvalidOption(f"Spark refuses the sources as one stream: {in_short(problem)}") from problem

        def settled(log: Log, design: Design | None) -> Driver:
            driver = Driver(graph, cluster, jobs, settings, log, before=before, design=design)
            return driver.settle(self.requested, None if before is None else moved)

        writer = self._writer(gateway, location, jobs.source)
        warm_beside()
        try:
            driver = claim(location, settings, graph, settled, socket.gethostname(), os.getpid(), self.evolution)
        except MeanderError:
            raise
        except Exception as problem:
            raise QueryFailed(in_short(problem)) from problem
        if not gateway.local:
            gateway.set_locality_wait("20s")  # shorter, and Spark would run a task elsewhere while its executor is busy
        stream = self._start_stream(driver, writer)
        driver.ticker.start()
        return driver, stream

    @property
    def _session(self) -> SparkSession:
        session: SparkSession = self.flow.sources[0].sparkSession
        return session

    def _writer(self, gateway: Gateway, location: Location, source: DataFrame) -> DataStreamWriter:
        """The stream as Spark is to write it; raises what Spark would refuse it for when it starts."""
        name = self.settings.name
        if name and any(each.name == name for each in gateway.spark.streams.active):
            raise InvalidOption(f"a query of the name {name!r} runs in this session; stop it, or choose another name")
        writer = source.writeStream.option("checkpointLocation", f"{location.hadoop_path}/{SPARK}")
        if name:
            writer = writer.queryName(name)
        try:
            gateway.check_streaming(source)
            return writer.trigger(**self.trigger) if self.trigger else writer
        except Exception as problem:
            raise InvalidOption(f"Spark refuses the stream: {in_short(problem)}") from problem

    def _start_stream(self, driver: Driver, writer: DataStreamWriter) -> SparkStream:
        location, spark = driver.log.location, self._session
        location.make_folder(SPARK)
        settings = {**WHILE_STARTING, **(ON_LOCAL_FILES if location.is_local else {})}
        with _set_for_a_while(spark, settings), driver.loop.lock:
            stream = SparkStream(writer.foreachBatch(SparkBatches(driver)).start(), spark)
            driver.loop.attach(stream)
            last = driver.log.last
            if last is not None and last.query != stream.id:
                stream.stop()
                raise foreign(location, last.query, stream.id)
        return stream


@contextmanager
def _set_for_a_while(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """The session with these settings, but with the file manager that a user chose; afterwards as it was."""
    before = {name: spark.conf.get(name, None) for name in settings}
    mine = {name: value for name, value in settings.items() if name != FILE_MANAGER or before[name] is None}
    for name, value in mine.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in mine:
            earlier = before[name]
            if earlier is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, earlier)
