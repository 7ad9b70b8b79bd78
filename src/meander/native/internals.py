"""The native engine's one reach into Spark's private classes: state stores, where they are, and where they shall be.

Everything here was tried on PySpark 4.3; `Internals.of` probes it and refuses what it does not know. What is done to a
query is little: the coordinator of state stores, which tells the scheduler where a state partition is loaded, is told
of another executor. Wherever a task then runs, Spark loads the state it needs from the checkpoint: no call here can
change a result.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import count
from typing import TYPE_CHECKING, Any

from meander.engine.spark.gateway import Executor, Gateway
from meander.errors import InvalidOption, QueryFailed
from meander.native.stores import Backlog, StatefulOperator

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

SUPPORTED = "4.3"

_STREAMING = "org.apache.spark.sql.execution.streaming"
_STORE_SETTINGS = "spark.sql.streaming.stateStore."


class Internals:
    """The private side of one run of a streaming query."""

    def __init__(self, query: StreamingQuery, gateway: Gateway, execution: Any) -> None:
        self.query, self.gateway, self._execution = query, gateway, execution
        jvm = gateway.jvm
        state = jvm.org.apache.spark.sql.execution.streaming.state
        # Looking a class up by its package costs a call for each part of its name: once is enough.
        self._provider_id, self._store_id = state.StateStoreProviderId, state.StateStoreId
        self._json = jvm.org.apache.spark.util.JsonProtocol
        self._arrays = jvm.org.apache.commons.lang3.ArrayUtils
        self._writer = jvm.java.lang.Class.forName(f"{_STREAMING}.operators.stateful.StateStoreWriter")
        self._session = query._jsq.sparkSession()
        self._coordinator = self._session.streams().stateStoreCoordinator()
        self._run = jvm.java.util.UUID.fromString(query.runId)
        self.checkpoint = str(execution.resolvedCheckpointRoot())
        self._ids: dict[tuple[int, int, str], Any] = {}

    @property
    def name(self) -> str:
        """The query's name, or its id where it has none."""
        return str(self.query.name or self.query.id)

    @classmethod
    def of(cls, query: object) -> Internals:
        """The private side of a query; refuses in one sentence what is not a classic query on a Spark we know."""
        from pyspark import SparkContext
        from pyspark.sql import SparkSession

        if type(query).__module__.startswith("pyspark.sql.connect"):
            raise InvalidOption(
                "this query runs through Spark Connect, which hides where state is; attach in a classic session"
            )
        if type(query).__module__.startswith("meander"):
            raise InvalidOption("this is a query of Meander's own; it has rescale, rebalance and move itself")
        wrapped = getattr(query, "_jsq", None)
        context = SparkContext._active_spark_context
        if wrapped is None or context is None:
            raise InvalidOption(f"attach takes what writeStream.start() returns, not {type(query).__name__}")
        if not context.version.startswith(f"{SUPPORTED}."):
            raise InvalidOption(
                f"the native engine knows Spark {SUPPORTED} and this is {context.version}; install pyspark {SUPPORTED}"
            )
        if not wrapped.isActive():
            raise QueryFailed("the query does not run; start it, and attach then")
        try:
            gateway = Gateway(SparkSession(context, wrapped.sparkSession()))
            execution = wrapped.streamingQuery()
            kind = str(execution.getClass().getSimpleName())
            internals = cls(query, gateway, execution)  # type: ignore[arg-type]
            internals.probe()
        except Exception as problem:
            raise InvalidOption(
                f"this Spark {context.version} does not show where state is ({str(problem).splitlines()[0][:200]}); "
                f"the native engine was made for Spark {SUPPORTED}"
            ) from problem
        if kind != "MicroBatchExecution":
            raise InvalidOption(f"the query runs as {kind}; only micro-batches keep state that can be placed")
        return internals

    def probe(self) -> None:
        """Ask where some state is; raises where this Spark does not tell."""
        self._coordinator.getLocation(self._id(0, 0, "default"))

    # --- the query -------------------------------------------------------------------------

    @property
    def is_active(self) -> bool:
        """Whether the query runs."""
        return bool(self.query.isActive)

    @property
    def is_between_batches(self) -> bool:
        """Whether no batch runs at this moment."""
        return not self.query.status["isTriggerActive"]

    @property
    def is_quiet(self) -> bool:
        """Whether no task of the application runs at this moment."""
        return len(self.gateway.jsc.statusTracker().getActiveStageIds()) == 0

    @property
    def trigger_ms(self) -> float:
        """The trigger's interval; 0 where a batch follows the other."""
        trigger = self._execution.trigger()
        is_periodic = str(trigger.getClass().getSimpleName()) == "ProcessingTimeTrigger"
        return float(trigger.intervalMs()) if is_periodic else 0.0

    @property
    def is_elastic(self) -> bool:
        """Whether Spark itself decides how many executors there are."""
        return bool(self.gateway.jsc.executorAllocationManager().isDefined())

    @property
    def has_planned(self) -> bool:
        """Whether a batch has been planned in this run, so that its operators are known."""
        return self._execution.lastExecution() is not None

    @property
    def last_planned(self) -> int:
        """The batch that was planned last."""
        return int(self._execution.lastExecution().currentBatchId())

    def operators(self) -> list[StatefulOperator]:
        """The stateful operators of the batch that was planned last; empty before the first."""
        operators = {}
        for node, group in self._stateful(self._execution.lastExecution()):
            info = node.stateInfo().get()
            stores = tuple(str(node.stateStoreNames().mkString("\n")).split("\n"))
            number = int(info.operatorId())
            name, partitions = str(node.shortName()), int(info.numPartitions())
            operators[number] = StatefulOperator(number, name, stores, partitions, group)
        return [operators[number] for number in sorted(operators)]

    def groups_by_metric(self, batch: int) -> dict[int, int]:
        """The group of the operator that each accumulator of state rows belongs to, in the plan of this batch."""
        planned = self._execution.lastExecution()
        if planned is None or int(planned.currentBatchId()) != batch:
            return {}
        return {int(node.metrics().apply("numTotalStateRows").id()): group for node, group in self._stateful(planned)}

    def _stateful(self, planned: Any) -> Iterator[tuple[Any, int]]:
        """The stateful nodes of a planned batch, and the group of each: those with no exchange between them."""
        if planned is None:
            return
        dense: dict[int, int] = {}
        for node, stage in self._nodes(planned.executedPlan(), 0, count(1)):
            if self._writer.isInstance(node) and node.stateInfo().isDefined():
                yield node, dense.setdefault(stage, len(dense))

    def _nodes(self, node: Any, stage: int, stages: Iterator[int]) -> Iterator[tuple[Any, int]]:
        """The nodes of a physical plan from the top, each with a number for what lies between two exchanges."""
        kind = str(node.getClass().getSimpleName())
        if kind == "AdaptiveSparkPlanExec":
            yield from self._nodes(node.executedPlan(), stage, stages)
            return
        if kind.endswith("QueryStageExec"):
            yield from self._nodes(node.plan(), stage, stages)
            return
        yield node, stage
        children = node.children()
        for at in range(children.size()):
            yield from self._nodes(children.apply(at), next(stages) if "Exchange" in kind else stage, stages)

    # --- places ----------------------------------------------------------------------------

    def _id(self, operator: int, partition: int, store: str) -> Any:
        key = (operator, partition, store)
        if key not in self._ids:
            store_id = self._store_id(f"{self.checkpoint}/state", operator, partition, store)
            self._ids[key] = self._provider_id(store_id, self._run)
        return self._ids[key]

    def _stores(self, operators: Iterable[StatefulOperator], partition: int) -> list[Any]:
        return [self._id(each.number, partition, store) for each in operators for store in each.stores]

    def place(self, operators: Collection[StatefulOperator], partition: int) -> str | None:
        """The executor on which the stores of a partition are; None: none yet, or they are not all on one."""
        places = {str(self._coordinator.getLocation(each).toString()) for each in self._stores(operators, partition)}
        place = re.fullmatch(r"Some\(executor_.*_([^_]+)\)", places.pop()) if len(places) == 1 else None
        return None if place is None else place.group(1)

    def steer(self, operators: Collection[StatefulOperator], partition: int, executor: Executor) -> None:
        """Say that a partition is on an executor, so that Spark runs its next task there.

        A task that runs elsewhere at this moment says so itself when it opens its stores, and then that counts.
        """
        for each in self._stores(operators, partition):
            self._coordinator.reportActiveInstance(each, executor.host, executor.id, self.gateway.seq([]))

    # --- snapshots -------------------------------------------------------------------------

    def setting(self, name: str) -> str:
        """A setting of Spark's state stores, as the coordinator sees it."""
        return str(self._session.conf().get(f"{_STORE_SETTINGS}{name}"))

    @property
    def takes_snapshots_on_request(self) -> bool:
        """Whether Spark writes a snapshot at once where it believes that one is overdue; its default since 4.1."""
        return self.setting("coordinatorReportSnapshotUploadLag") == self.setting("forceSnapshotUploadOnLag") == "true"

    def shield(self, operators: Collection[StatefulOperator], partitions: Collection[int], version: int) -> None:
        """Let the coordinator believe that these partitions have a snapshot of a version, so that none is overdue.

        It uses this for nothing else than to find what is overdue. What Spark snapshots of its own accord, in its
        regular maintenance, stays as it is.
        """
        now = int(self.gateway.jvm.java.lang.System.currentTimeMillis())
        for partition in partitions:
            for each in self._stores(operators, partition):
                self._coordinator.snapshotUploaded(each, version, now)

    def ask_for_snapshots(self, version: int) -> None:
        """Have every partition without a snapshot of this version write one when the next batch commits."""
        overdue = int(self.setting("multiplierForMinVersionDiffToLog")) * int(self.setting("minDeltasForSnapshot"))
        self._coordinator.logLaggingStateStores(self._run, version + overdue, True)

    def backlog(self, operators: Collection[StatefulOperator], partition: int) -> Backlog:
        """What would have to be read to load a partition elsewhere, from the files of the checkpoint."""
        return Backlog.total(Backlog.of_listing(self._listing(each)) for each in self._stores(operators, partition))

    def _listing(self, provider: Any) -> str:
        """The files of a store as Hadoop lists them; in two calls, however many there are."""
        folder = provider.storeId().storeCheckpointLocation()
        files = folder.getFileSystem(self.gateway.jsc.hadoopConfiguration())
        try:
            return str(self._arrays.toString(files.listStatus(folder)))
        except Exception:
            return ""  # nothing was written yet, or it cannot be seen from here

    # --- listening and warming ---------------------------------------------------------------

    def listen(self, listener: object) -> Callable[[], None]:
        """Have a Python object called with Spark's events, in a queue of its own; returns what ends that."""
        from pyspark.java_gateway import ensure_callback_server_started

        ensure_callback_server_started(self.gateway.context._gateway)  # type: ignore[no-untyped-call]
        bus = self.gateway.jsc.listenerBus()
        bus.addToQueue(listener, "meander")
        return lambda: bus.removeListener(listener)

    def as_json(self, event: Any) -> str:
        """An event of Spark's listeners, whole, in one call."""
        return str(self._json.sparkEventToJsonString(event))

    def _state_variable(self, operator: StatefulOperator) -> str | None:
        """The first state variable of an operator that has such, which the reader of its state has to be told."""
        if not operator.name.startswith("transformWithState"):
            return None
        metadata = self.gateway.spark.read.format("state-metadata").load(self.checkpoint)
        row = metadata.where(metadata.operatorId == operator.number).select("operatorProperties").first()
        return None if row is None else str(json.loads(row[0])["stateVariables"][0]["stateName"])

    def warm_python(self, executor: Executor) -> None:
        """Start Python on an executor, with what its operators in Python load."""
        from pyspark.sql.types import BinaryType, StructField, StructType

        # Within a function, it travels by value: Meander itself need not be there.
        def load(batches: Iterator[Any]) -> Iterator[Any]:
            from importlib import import_module

            for module in ("pyarrow", "pandas"):
                import_module(module)
            yield from batches

        gateway = self.gateway
        pinned = gateway.pinned([b""], [f"executor_{executor.host}_{executor.id}"])
        schema = StructType([StructField("value", BinaryType())])
        gateway.frame(gateway.spark, pinned).mapInArrow(load, schema).collect()

    def warm(self, operator: StatefulOperator, partition: int, executor: Executor) -> None:
        """Load a partition's state once on an executor, aside from the query, so that it knows how from then on.

        It is read as Spark's state reader does, and thrown away: what the query itself has loaded is not touched.
        """
        from pyspark.sql import functions as F

        spark = self.gateway.spark
        reader = spark.read.format("statestore").option("operatorId", operator.number)
        if operator.stores != ("default",):
            reader = reader.option("storeName", operator.stores[0])
        variable = self._state_variable(operator)
        rows = (reader if variable is None else reader.option("stateVarName", variable)).load(self.checkpoint)
        # Everything is read and hardly anything returned; an impossible condition would be optimised away.
        rows = rows.where(F.xxhash64(rows.columns[-1]) == F.lit(0)).select(F.lit(0))
        chunks = rows._jdf.toArrowBatchRdd().glom()
        total = int(chunks.getNumPartitions())
        control = self.gateway.pinned([b""] * total, [f"executor_{executor.host}_{executor.id}"] * total)
        pinned = self.gateway.frame(spark, chunks.zip(control, self.gateway.any), self.gateway.hand_over_encoder())
        only = self.gateway.jvm.java.util.ArrayList()
        only.append(partition)
        run = self.gateway.jvm.org.apache.spark.api.python.PythonRDD.runJob
        run(self.gateway.jsc, pinned._jdf.toArrowBatchRdd().toJavaRDD(), only)
