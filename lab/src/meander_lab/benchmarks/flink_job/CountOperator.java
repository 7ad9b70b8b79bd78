package meander.bench;

import java.io.BufferedOutputStream;
import java.io.DataOutputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.runtime.state.VoidNamespace;
import org.apache.flink.runtime.state.VoidNamespaceSerializer;
import org.apache.flink.streaming.api.operators.BoundedOneInput;
import org.apache.flink.streaming.api.operators.KeyedProcessOperator;

/**
 * {@link RowCount} as Flink runs it, and at the end of the input every key's final count in a file,
 * so that the benchmark can count again.
 *
 * <p>The file has two big-endian longs for each key: the key's number and its count.
 */
final class CountOperator<K> extends KeyedProcessOperator<K, K, Tuple2<K, Long>>
        implements BoundedOneInput {

    private final Keys<K> keys;
    private final String folder;

    CountOperator(Keys<K> keys, String folder) {
        super(new RowCount<>());
        this.keys = keys;
        this.folder = folder;
    }

    @Override
    public void endInput() throws Exception {
        int subtask = getRuntimeContext().getTaskInfo().getIndexOfThisSubtask();
        Path file = Path.of(folder, "counts-" + subtask + ".bin");
        try (DataOutputStream output =
                new DataOutputStream(new BufferedOutputStream(Files.newOutputStream(file)))) {
            this.<K>getKeyedStateBackend()
                    .applyToAllKeys(
                            VoidNamespace.INSTANCE,
                            VoidNamespaceSerializer.INSTANCE,
                            RowCount.COUNT,
                            (key, count) -> {
                                output.writeLong(keys.numberOf(key));
                                output.writeLong(count.value());
                            });
        }
    }
}
