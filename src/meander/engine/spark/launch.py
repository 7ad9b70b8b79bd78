"""Starting a query on Spark: what the query is, the claim on its checkpoint, its driver and its stream."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from meander.checkpoint.identity import SPARK, foreign
from meander.checkpoint.location import Location
from meander.engine.driver.driver import Driver, claim
from meander.engine.driver.settings import Settings
from meander.engine.spark.cluster import SparkCluster
from meander.engine.spark.gateway import Gateway
from meander.engine.spark.jobs import OperatorNode, OutputSink, SparkJobs, in_short
from meander.engine.spark.stream import SparkBatches, SparkStream
from meander.errors import MeanderError, QueryFailed
from meander.migration.steps import Step

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class SparkLaunch:
    """Everything a query is started with on Spark.

    Args:
        source: the stream.
        nodes: the operators, first to last.
        settings: how it runs.
        sink: where its output goes.
        trigger: Spark's trigger.
        requested: the number of workers that the user named, if any.
    """

    source: DataFrame
    nodes: Sequence[OperatorNode]
    settings: Settings
    sink: OutputSink
    trigger: Mapping[str, Any]
    requested: int | None = None

    def start(self, moved: Sequence[Step] = (), before: Driver | None = None) -> tuple[Driver, SparkStream]:
        """Check everything, claim the checkpoint and start."""
        settings, gateway = self.settings, Gateway(self.source.sparkSession)
        location = Location.of(settings.checkpoint, fsync=settings.fsync)
        if not location.is_local:
            uri = location.uri
            location = replace(location, exclusive=lambda path, data: gateway.create_exclusively(f"{uri}/{path}", data))
        operators = [node.operator for node in self.nodes]
        log = claim(location, settings, operators, socket.gethostname(), os.getpid())
        cluster = SparkCluster(gateway)
        jobs = SparkJobs(gateway, cluster, self.source, self.nodes, self.sink)
        driver = Driver(operators, cluster, jobs, settings, log, before=before)
        try:
            driver.start(self.requested, None if before is None else moved)
        except MeanderError:
            raise
        except Exception as problem:
            raise QueryFailed(in_short(problem)) from problem
        if not gateway.local:
            gateway.set_locality_wait("20s")  # shorter, and Spark would run a task elsewhere while its executor is busy
        stream = self._start_stream(driver, location)
        driver.ticker.start()
        return driver, stream

    def _start_stream(self, driver: Driver, location: Location) -> SparkStream:
        folder = f"{location.uri}/{SPARK}"
        writer = self.source.writeStream.foreachBatch(SparkBatches(driver)).option("checkpointLocation", folder)
        if self.settings.name:
            writer = writer.queryName(self.settings.name)
        if self.trigger:
            writer = writer.trigger(**self.trigger)
        # Spark copies the session when a stream starts; with adaptive execution on, the shuffle would run outside our
        # job.
        spark = self.source.sparkSession
        adaptive = str(spark.conf.get("spark.sql.adaptive.enabled"))
        spark.conf.set("spark.sql.adaptive.enabled", "false")
        try:
            with driver.loop.lock:
                stream = SparkStream(writer.start(), spark)
                driver.loop.attach(stream)
                last = driver.log.last
                if last is not None and last.query != stream.id:
                    stream.stop()
                    raise foreign(location, last.query, stream.id)
        finally:
            spark.conf.set("spark.sql.adaptive.enabled", adaptive)
        return stream
