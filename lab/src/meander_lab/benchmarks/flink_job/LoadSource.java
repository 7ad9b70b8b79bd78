package meander.bench;

import java.util.List;
import java.util.stream.IntStream;
import org.apache.flink.api.connector.source.Boundedness;
import org.apache.flink.api.connector.source.Source;
import org.apache.flink.api.connector.source.SourceReader;
import org.apache.flink.api.connector.source.SourceReaderContext;
import org.apache.flink.api.connector.source.SplitEnumerator;
import org.apache.flink.api.connector.source.SplitEnumeratorContext;
import org.apache.flink.core.io.SimpleVersionedSerializer;

/** The keys of a {@link Workload}'s rows, from as many splits as it has. */
final class LoadSource<K> implements Source<K, LoadSplit, LoadEnumerator.State> {

    private final Keys<K> keys;
    private final Workload workload;
    private final String folder;

    LoadSource(Keys<K> keys, Workload workload, String folder) {
        this.keys = keys;
        this.workload = workload;
        this.folder = folder;
    }

    @Override
    public Boundedness getBoundedness() {
        return Boundedness.CONTINUOUS_UNBOUNDED;
    }

    @Override
    public SourceReader<K, LoadSplit> createReader(SourceReaderContext context) {
        return new LoadReader<>(context, keys, workload, folder);
    }

    @Override
    public SplitEnumerator<LoadSplit, LoadEnumerator.State> createEnumerator(
            SplitEnumeratorContext<LoadSplit> context) {
        List<LoadSplit> splits =
                IntStream.range(0, workload.splits())
                        .mapToObj(index -> new LoadSplit(index, 0L, 0L))
                        .toList();
        return restoreEnumerator(context, new LoadEnumerator.State(splits, 0L));
    }

    @Override
    public SplitEnumerator<LoadSplit, LoadEnumerator.State> restoreEnumerator(
            SplitEnumeratorContext<LoadSplit> context, LoadEnumerator.State state) {
        return new LoadEnumerator(context, workload.splits(), state);
    }

    @Override
    public SimpleVersionedSerializer<LoadSplit> getSplitSerializer() {
        return new LoadSplit.Serializer();
    }

    @Override
    public SimpleVersionedSerializer<LoadEnumerator.State> getEnumeratorCheckpointSerializer() {
        return new LoadEnumerator.Serializer();
    }
}
