"""The one module that reaches into Spark's JVM beyond PySpark's public API; for Spark's own state, `native.internals`.

Everything here was tried on PySpark 4.3. Another version may differ in any of it; then this file changes, no other.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql import DataFrame as AnyFrame
    from pyspark.sql.types import StructType

ArrowTask = Callable[[Iterator["pa.RecordBatch"]], Iterator["pa.RecordBatch"]]
BytesTask = Callable[[int, Iterator[bytes]], Iterator[bytes]]
"""A function of a partition's number and its messages."""

KNOWN_PLACES = 16
"""So many ways to place partitions are remembered: they come again with every batch."""


class Executor(NamedTuple):
    """One executor as Spark's status store lists it."""

    id: str
    host: str
    cores: int
    active: bool


class Gateway:
    """The JVM side of one SparkSession."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self.context = spark.sparkContext
        self.jsc = self.context._jsc.sc()
        jvm = self.context._jvm
        assert jvm is not None
        self.jvm: Any = jvm
        self.seq = jvm.org.apache.spark.api.python.PythonUtils.toSeq
        self.to_map = jvm.org.apache.spark.api.python.PythonUtils.toScalaMap
        self.any = getattr(getattr(jvm.scala.reflect, "ClassTag$"), "MODULE$").Any()
        encoders = jvm.org.apache.spark.sql.Encoders
        agnostic = jvm.org.apache.spark.sql.catalyst.encoders.AgnosticEncoders
        self._chunks_encoder = agnostic.ArrayEncoder(getattr(getattr(agnostic, "BinaryEncoder$"), "MODULE$"), False)
        self._hand_over_encoders: dict[int, Any] = {}
        self._pair_of = encoders.tuple
        self.control_encoder = encoders.BINARY()
        # To find a class by its name takes a call for each part of the name, in every batch.
        self._parallel_rdd = jvm.org.apache.spark.rdd.ParallelCollectionRDD
        self._union_rdd = jvm.org.apache.spark.rdd.SQLPartitioningAwareUnionRDD
        self._python_rdd = jvm.org.apache.spark.api.python.PythonRDD
        self._preferences: dict[tuple[str, ...], Any] = {}

    @property
    def local(self) -> bool:
        """Whether driver and executor are one process."""
        return bool(self.jsc.isLocal())

    def executors(self) -> list[Executor]:
        """The executors that are there now; in local mode the driver itself."""
        listed = self.jsc.statusStore().executorList(True)
        executors = []
        for at in range(listed.size()):
            each = listed.apply(at)
            if (each.id() == "driver") == self.local:
                host = each.hostPort().rsplit(":", 1)[0]
                executors.append(Executor(each.id(), host, int(each.totalCores()), bool(each.isActive())))
        return [each for each in executors if each.active]

    def check_streaming(self, frame: DataFrame) -> None:
        """Raise what Spark would, were it to run this as a stream: some operations need a table."""
        if str(self.spark.conf.get("spark.sql.streaming.unsupportedOperationCheck", "true")).lower() != "true":
            return
        checker = self.jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
        append = self.jvm.org.apache.spark.sql.streaming.OutputMode.Append()
        checker.checkForStreaming(frame._jdf.queryExecution().analyzed(), append)

    def settings(self) -> dict[str, str]:
        """The settings that the application was started with."""
        return dict(self.context.getConf().getAll())

    @property
    def started_ms(self) -> int:
        """When the application was started, in milliseconds since 1970."""
        return int(self.context.startTime)

    def executor_ids(self) -> str:
        """The ids of the executors that are there, sorted and with commas between them; empty in local mode."""
        return "" if self.local else ",".join(sorted(str(self.jsc.getExecutorIds().mkString(",")).split(",")))

    def array(self, values: Sequence[int]) -> Column:
        """One literal that holds all of these whole numbers; `F.get` looks one up."""
        from pyspark.sql.classic.column import Column

        filled = self.array_of(self.jvm.int, len(values))
        # In one piece: a call into the JVM for each of thousands of bins would be felt at every flip.
        data = struct.pack(f">{len(values)}i", *values)
        self.jvm.java.nio.ByteBuffer.wrap(data).asIntBuffer().get(filled)
        return Column(self.jvm.org.apache.spark.sql.functions.lit(filled))

    def array_of(self, kind: Any, length: int) -> Any:
        """An array of a class of the JVM's, to be filled."""
        gateway = self.context._gateway
        assert gateway is not None
        return gateway.new_array(kind, length)

    def plan_of_view(self, name: str) -> str | None:
        """The plan of a temporary view as a text, None where there is no such view."""
        view = self.spark._jsparkSession.sessionState().catalog().getTempView(name)
        return str(view.get().toString()) if view.isDefined() else None

    def show_table(self, table: object, name: str) -> None:
        """Register a temporary view over a table that Python implements; the JVM calls it, as in `foreachBatch`."""
        from pyspark.java_gateway import ensure_callback_server_started

        ensure_callback_server_started(self.context._gateway)  # type: ignore[no-untyped-call]
        sql, nothing = self.jvm.org.apache.spark.sql, self.jvm.scala.Option.empty()
        relations = getattr(getattr(sql.execution.datasources.v2, "DataSourceV2Relation$"), "MODULE$")
        datasets = getattr(getattr(sql.classic, "Dataset$"), "MODULE$")
        relation = relations.create(table, nothing, nothing)
        datasets.ofRows(self.spark._jsparkSession, relation).createOrReplaceTempView(name)

    def struct(self, schema: StructType) -> Any:
        """A schema as the JVM has it."""
        return self.spark._jsparkSession.parseDataType(schema.json())

    def table_columns(self, struct: Any) -> Any:
        """The columns of a schema, as tables have them."""
        column, fields = self.connector.catalog.Column, list(struct.fields())
        columns = self.array_of(column, len(fields))
        for at, each in enumerate(fields):
            columns[at] = column.create(each.name(), each.dataType())
        return columns

    def table_capabilities(self) -> Any:
        """What a table can do that is read in a batch, and no more."""
        return self.jvm.java.util.Set.of(self.connector.catalog.TableCapability.BATCH_READ)

    def no_properties(self) -> Any:
        """An empty map."""
        return self.jvm.java.util.HashMap()

    @property
    def connector(self) -> Any:
        """The package of Spark's second data source API."""
        return self.jvm.org.apache.spark.sql.connector

    def rows_inside(self, frame: DataFrame) -> Any:
        """The rows of a DataFrame as Spark has them inside."""
        return frame._jdf.queryExecution().executedPlan().executeCollect()

    def pinned(self, messages: Sequence[bytes], places: Sequence[str]) -> Any:
        """An RDD with one message per partition, each partition preferring its place."""
        preferred = self._preferred(tuple(places))
        return self._parallel_rdd(self.jsc, self.seq(list(messages)), len(messages), preferred, self.any)

    def _preferred(self, places: tuple[str, ...]) -> Any:
        """The places of partitions as Spark takes them; made anew only when they are others."""
        known = self._preferences.get(places)
        if known is None:
            if len(self._preferences) >= KNOWN_PLACES:
                self._preferences.clear()
            known = self._preferences[places] = self.to_map({at: self.seq([place]) for at, place in enumerate(places)})
        return known

    def with_control(self, rows: Sequence[DataFrame], control: Any) -> DataFrame:
        """Rows that are already in their partitions, as lists of Arrow chunks, each beside its control message.

        The lists of several frames are pairs of pairs: (((first, second), third), control).
        """
        chunks = rows[0]._jdf.toArrowBatchRdd().glom()
        for each in rows[1:]:
            chunks = chunks.zip(each._jdf.toArrowBatchRdd().glom(), self.any)
        return self.frame(rows[0].sparkSession, chunks.zip(control, self.any), self.hand_over_encoder(len(rows)))

    def side_by_side(self, rows: Sequence[DataFrame], messages: Sequence[bytes], places: Sequence[str]) -> Any:
        """An RDD of bytes: in each partition its control message, then the Arrow chunks of each of the frames.

        The frames are already in their partitions; an empty message stands between the chunks of two. A partition runs
        at its place.
        """
        # This union looks at the host of a preferred location alone, and takes one that says it is a cache of HDFS by
        # its whole name: so the name of an executor comes through.
        named = [f"hdfs_cache_{place}" for place in places]
        parts = [self.pinned(messages, named)]
        for each in rows:
            if len(parts) > 1:
                parts.append(self.pinned([b""] * len(messages), named))
            parts.append(each._jdf.toArrowBatchRdd())
        return self._union_rdd(self.jsc, self.seq(parts), len(messages), self.any)

    def columns(self, columns: Sequence[Column]) -> Any:
        """Columns as Spark takes them."""
        return self.seq([each._jc for each in columns])

    def partitioned(self, rows: DataFrame, count: int, partition: Column, columns: Any) -> DataFrame:
        """These columns of the rows, each row in the partition that an expression says."""
        from pyspark.sql.classic.dataframe import DataFrame

        moved = rows._jdf.repartitionById(count, partition._jc).select(columns)
        return DataFrame(moved, rows.sparkSession)

    def hand_over_encoder(self, lists: int = 1) -> Any:
        """How rows of so many lists of chunks, each beside the others and its control message, are kept."""
        if lists not in self._hand_over_encoders:
            chunks = self._chunks_encoder
            for _ in range(lists - 1):
                chunks = self._pair_of(chunks, self._chunks_encoder)
            self._hand_over_encoders[lists] = self._pair_of(chunks, self.control_encoder)
        return self._hand_over_encoders[lists]

    def shuffled_bytes(self, rows: DataFrame) -> list[int]:
        """Run the shuffle that these rows end with and return the bytes of each partition; it is not run again."""

        def exchange(node: Any) -> Any:
            if node.getClass().getSimpleName() == "ShuffleExchangeExec":
                return node
            children = node.children()
            below = (exchange(children.apply(at)) for at in range(children.size()))
            return next((each for each in below if each is not None), None)

        shuffle = exchange(rows._jdf.queryExecution().executedPlan())
        forever = getattr(getattr(self.jvm.scala.concurrent.duration, "Duration$"), "MODULE$").Inf()
        statistics = self.jvm.scala.concurrent.Await.result(shuffle.submitShuffleJob(), forever)
        return [0] if statistics is None else list(statistics.bytesByPartitionId())

    def frame(self, session: SparkSession, rdd: Any, encoder: Any = None) -> DataFrame:
        """A DataFrame over an RDD of the JVM; without an encoder, of control messages alone."""
        from pyspark.sql.classic.dataframe import DataFrame

        dataset = session._jsparkSession.createDataset(rdd, encoder or self.control_encoder)
        return DataFrame(dataset.toDF(), session)

    def empty(self, session: SparkSession, schema: StructType) -> DataFrame:
        """No rows of a schema, made in the JVM: of a Python list Spark would start Python processes to read it."""
        from pyspark.sql.classic.dataframe import DataFrame

        inner = session._jsparkSession
        frame = inner.createDataFrame(self.jvm.java.util.ArrayList(), inner.parseDataType(schema.json()))
        return DataFrame(frame, session)

    def task(self, function: ArrowTask, schema: StructType) -> Callable[[DataFrame, bool], DataFrame]:
        """`mapInArrow` whose function is serialised once, not once a batch; the flag asks for a barrier."""
        from pyspark.sql.classic.dataframe import DataFrame
        from pyspark.sql.udf import UserDefinedFunction
        from pyspark.util import PythonEvalType

        udf = UserDefinedFunction(function, schema, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)

        def run(frame: AnyFrame, barrier: bool) -> AnyFrame:
            column = udf(*[frame[name] for name in frame.columns])
            return DataFrame(frame._jdf.mapInArrow(column._jc, barrier, None), frame.sparkSession)

        return run

    def bytes_task(self, function: BytesTask) -> Callable[[Any, bool], list[bytes]]:
        """A function over the partitions of an RDD of bytes, serialised once; the flag asks for a barrier.

        What it gives is collected: Spark plans nothing for it and copies nothing twice.
        """
        from pyspark.core.rdd import RDD, _wrap_function
        from pyspark.serializers import NoOpSerializer

        command = _wrap_function(self.context, function, NoOpSerializer(), NoOpSerializer())

        def run(messages: Any, barrier: bool) -> list[bytes]:
            rdd = self._python_rdd(messages, command, False, barrier)
            answers: RDD[bytes] = RDD(rdd.asJavaRDD(), self.context, NoOpSerializer())
            return answers.collect()

        return run

    def executor_of_tasks(self, stage: int) -> dict[int, str]:
        """Which executor ran each finished task of a stage, by the task's partition."""
        listed = self.jsc.statusStore().taskList(stage, 0, 1 << 20)
        return {listed.apply(at).partitionId(): listed.apply(at).executorId() for at in range(listed.size())}

    def request_executors(self, total: int) -> None:
        """Tell the cluster manager how many executors the application shall have in all."""
        self.jsc.requestTotalExecutors(total, 0, self.to_map({}))

    def release_executors(self, executors: Sequence[str]) -> None:
        """Let executors go for good; the cluster manager does not replace them."""
        self.jsc.killExecutors(self.seq(list(executors)))

    def cores_of_executor(self) -> int | None:
        """The cores that a new executor has, where that is set."""
        cores = self.context.getConf().get("spark.executor.cores", None)
        return int(cores) if cores else None

    def set_locality_wait(self, wait: str) -> None:
        """How long Spark keeps a task for its place; acts on the next job."""
        self.jsc.conf().set("spark.locality.wait", wait)

    def locality_wait(self) -> str:
        """How long Spark keeps a task for its place, as it is set now."""
        return str(self.jsc.conf().get("spark.locality.wait", "3s"))

    def seconds(self, duration: str) -> float:
        """A duration as Spark writes it, in seconds."""
        return float(self.jvm.org.apache.spark.network.util.JavaUtils.timeStringAsMs(duration)) / 1000

    def cancel(self, tag: str) -> None:
        """Cancel the running jobs with this tag."""
        self.jsc.cancelJobsWithTag(tag)
