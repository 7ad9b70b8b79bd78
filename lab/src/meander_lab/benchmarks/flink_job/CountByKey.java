package meander.bench;

import java.nio.file.Path;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.api.java.typeutils.TupleTypeInfo;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.util.ParameterTool;

/**
 * Counts rows by key, exactly once, and records what each checkpoint covers.
 *
 * <pre>
 *   LoadSource --keyBy--> RowCount --> CommitRecorder --> DiscardingSink
 * </pre>
 *
 * <p>The benchmark sets checkpoints, state backend and parallelism in the cluster's configuration;
 * nothing about them is decided here.
 */
public final class CountByKey {

    private CountByKey() {}

    /** Reads {@code --law --keys --fill --rate --scale --splits --folder} and submits the job. */
    public static void main(String[] arguments) throws Exception {
        ParameterTool options = ParameterTool.fromArgs(arguments);
        Workload workload =
                new Workload(
                        options.getInt("splits"),
                        options.getLong("keys"),
                        options.getLong("fill"),
                        options.getLong("rate"),
                        options.getDouble("scale"));
        String folder = Path.of(options.getRequired("folder")).toString();
        String law = options.getRequired("law");
        switch (law) {
            case "ints" -> submit(new Keys.Uniform(workload), workload, folder);
            case "texts" -> submit(new Keys.Texts(new Keys.Uniform(workload)), workload, folder);
            case "zipf" -> submit(new Keys.Zipf(workload), workload, folder);
            default -> throw new IllegalArgumentException("there is no law of keys '" + law + "'");
        }
    }

    private static <K> void submit(Keys<K> keys, Workload workload, String folder)
            throws Exception {
        StreamExecutionEnvironment environment =
                StreamExecutionEnvironment.getExecutionEnvironment();
        TypeInformation<Tuple2<K, Long>> counted = new TupleTypeInfo<>(keys.type(), Types.LONG);
        environment
                .fromSource(
                        new LoadSource<>(keys, workload, folder),
                        WatermarkStrategy.noWatermarks(),
                        "load",
                        keys.type())
                .keyBy(key -> key, keys.type())
                .transform("count", counted, new CountOperator<>(keys, folder))
                .process(new CommitRecorder<>(folder))
                .returns(counted)
                .name("record")
                .sinkTo(new DiscardingSink<>())
                .name("discard");
        environment.executeAsync("count by key");
    }
}
