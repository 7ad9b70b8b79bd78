package meander.bench;

import java.util.List;
import java.util.TreeMap;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.CheckpointListener;
import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.runtime.state.FunctionInitializationContext;
import org.apache.flink.runtime.state.FunctionSnapshotContext;
import org.apache.flink.streaming.api.checkpoint.CheckpointedFunction;
import org.apache.flink.streaming.api.functions.ProcessFunction;
import org.apache.flink.util.Collector;

/**
 * Passes rows on, counts them exactly once, and records each checkpoint when it is complete.
 *
 * <p>This is the moment at which an exactly-once sink of Flink commits: before it, nobody outside may
 * see the rows.
 */
final class CommitRecorder<T> extends ProcessFunction<T, T>
        implements CheckpointedFunction, CheckpointListener {

    private final String folder;
    private transient RecordFile records;
    private transient ListState<Long> stored;
    private transient TreeMap<Long, Long> pending;
    private transient long rows;

    CommitRecorder(String folder) {
        this.folder = folder;
    }

    @Override
    public void initializeState(FunctionInitializationContext context) throws Exception {
        pending = new TreeMap<>();
        stored =
                context.getOperatorStateStore()
                        .getListState(new ListStateDescriptor<>("rows", Types.LONG));
        for (Long part : stored.get()) {
            rows += part;
        }
    }

    @Override
    public void open(OpenContext context) {
        records = new RecordFile(folder, "commits");
    }

    @Override
    public void processElement(T row, Context context, Collector<T> output) {
        rows++;
        output.collect(row);
    }

    @Override
    public void snapshotState(FunctionSnapshotContext context) throws Exception {
        stored.update(List.of(rows));
        pending.put(context.getCheckpointId(), rows);
    }

    @Override
    public void notifyCheckpointComplete(long checkpoint) {
        Long covered = pending.get(checkpoint);
        if (covered != null) {
            records.write(
                    "{\"checkpoint\": %d, \"at\": %d, \"rows\": %d, \"tasks\": %d}",
                    checkpoint,
                    System.currentTimeMillis(),
                    covered,
                    getRuntimeContext().getTaskInfo().getNumberOfParallelSubtasks());
        }
        pending.headMap(checkpoint, true).clear();
    }

    @Override
    public void close() {
        if (records != null) {
            records.close();
        }
    }
}
