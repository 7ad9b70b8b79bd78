"""Starting a query on Spark: what the query is, the claim on its checkpoint, its driver and its stream."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from meander.engine.driver.conversion import with_converters
from meander.engine.driver.driver import Driver, claim
from meander.engine.driver.ports import OutputSink
from meander.engine.driver.settings import Settings
from meander.engine.spark.cluster import SparkCluster
from meander.engine.spark.gateway import Gateway
from meander.engine.spark.jobs import SparkJobs, in_short
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
    sink: OutputSink
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
        driver.log.location.make_folder(SPARK)
        # Spark copies the session when a stream starts; with adaptive execution on, the shuffle would run outside our
        # job.
        spark = self._session
        adaptive = str(spark.conf.get("spark.sql.adaptive.enabled"))
        spark.conf.set("spark.sql.adaptive.enabled", "false")
        try:
            with driver.loop.lock:
                stream = SparkStream(writer.foreachBatch(SparkBatches(driver)).start(), spark)
                driver.loop.attach(stream)
                last = driver.log.last
                if last is not None and last.query != stream.id:
                    stream.stop()
                    raise foreign(driver.log.location, last.query, stream.id)
        finally:
            spark.conf.set("spark.sql.adaptive.enabled", adaptive)
        return stream
