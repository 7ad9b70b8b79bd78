"""Starting a query on Spark: what the query is, the claim on its checkpoint, its driver and its stream."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from meander.checkpoint.identity import SPARK, Identity, check_spark_part, foreign
from meander.checkpoint.location import Location
from meander.checkpoint.manifest import Log
from meander.engine.driver import hook
from meander.engine.driver.driver import Driver
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
        Identity.of(settings.bins, [each.fingerprint for each in operators]).settle(location)
        log = Log.open(location)
        query_id = check_spark_part(log)
        hook.from_json(((log.last and log.last.journal) or {}).get("hook"))  # refuses where it is not installed
        log.claim(socket.gethostname(), os.getpid())
        cluster = SparkCluster(gateway)
        jobs = SparkJobs(gateway, cluster, self.source, self.nodes, self.sink)
        driver = Driver(operators, cluster, jobs, settings, log)
        if before is not None:
            driver.inherit(before)
            driver.coordinator.take_over(moved)
        driver.coordinator.start(self.requested, settings.workers)
        _warm_up(driver)
        if not gateway.local:
            gateway.set_locality_wait("20s")  # shorter, and Spark would run a task elsewhere while its executor is busy
        stream = self._start_stream(driver, location, query_id)
        driver.ticker.start()
        return driver, stream

    def _start_stream(self, driver: Driver, location: Location, query_id: str | None) -> SparkStream:
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
                driver.attach(stream)
                if query_id and query_id != stream.id:
                    stream.stop()
                    raise foreign(location, query_id, stream.id)
        finally:
            spark.conf.set("spark.sql.adaptive.enabled", adaptive)
        return stream


def _warm_up(driver: Driver) -> None:
    """See that there are places for all workers and that their Python has what it needs."""
    try:
        driver.attempts.settle()
    except MeanderError:
        raise
    except Exception as problem:
        raise QueryFailed(in_short(problem)) from problem
