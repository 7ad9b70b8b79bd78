package meander.bench;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.TreeMap;
import org.apache.flink.api.connector.source.SourceEvent;
import org.apache.flink.api.connector.source.SplitEnumerator;
import org.apache.flink.api.connector.source.SplitEnumeratorContext;
import org.apache.flink.api.connector.source.SplitsAssignment;
import org.apache.flink.core.io.SimpleVersionedSerializer;

/** Deals the splits to the readers, and lets the load begin once all of them have filled the state. */
final class LoadEnumerator implements SplitEnumerator<LoadSplit, LoadEnumerator.State> {

    /** A reader says: this split has filled its part and waits for the load to begin. */
    record Filled(int split) implements SourceEvent {}

    /** The enumerator says: the load begins at this time, in milliseconds since 1970. */
    record Begin(long millis) implements SourceEvent {}

    /** The splits that no reader has, and when the load began, or 0. */
    record State(List<LoadSplit> splits, long begin) {}

    private final SplitEnumeratorContext<LoadSplit> context;
    private final int total;
    private final List<LoadSplit> unassigned;
    private final Set<Integer> filled = new HashSet<>();
    private long begin;

    LoadEnumerator(SplitEnumeratorContext<LoadSplit> context, int total, State state) {
        this.context = context;
        this.total = total;
        this.unassigned = new ArrayList<>(state.splits());
        this.begin = state.begin();
    }

    @Override
    public void addReader(int subtask) {
        assign();
    }

    @Override
    public void addSplitsBack(List<LoadSplit> splits, int subtask) {
        unassigned.addAll(splits);
        assign();
    }

    /** Deals what nobody has, once all readers are there to be dealt to. */
    private void assign() {
        if (context.registeredReaders().size() < context.currentParallelism()) {
            return;
        }
        TreeMap<Integer, List<LoadSplit>> shares = new TreeMap<>();
        for (LoadSplit split : unassigned) {
            int subtask = split.index() % context.currentParallelism();
            shares.computeIfAbsent(subtask, each -> new ArrayList<>()).add(split);
        }
        unassigned.clear();
        context.assignSplits(new SplitsAssignment<>(shares));
    }

    @Override
    public void handleSourceEvent(int subtask, SourceEvent event) {
        if (event instanceof Filled done) {
            filled.add(done.split());
            if (begin == 0 && filled.size() == total) {
                begin = System.currentTimeMillis();
            }
            if (begin != 0) {
                Begin start = new Begin(begin);
                context.registeredReaders()
                        .keySet()
                        .forEach(reader -> context.sendEventToSourceReader(reader, start));
            }
        }
    }

    @Override
    public State snapshotState(long checkpoint) {
        return new State(List.copyOf(unassigned), begin);
    }

    @Override
    public void start() {}

    @Override
    public void handleSplitRequest(int subtask, String host) {}

    @Override
    public void close() {}

    /** The enumerator's state in a checkpoint. */
    static final class Serializer implements SimpleVersionedSerializer<State> {

        private final LoadSplit.Serializer ofSplit = new LoadSplit.Serializer();

        @Override
        public int getVersion() {
            return 1;
        }

        @Override
        public byte[] serialize(State state) throws IOException {
            ByteArrayOutputStream bytes = new ByteArrayOutputStream();
            try (DataOutputStream output = new DataOutputStream(bytes)) {
                output.writeLong(state.begin());
                output.writeInt(state.splits().size());
                for (LoadSplit split : state.splits()) {
                    byte[] serialized = ofSplit.serialize(split);
                    output.writeInt(serialized.length);
                    output.write(serialized);
                }
            }
            return bytes.toByteArray();
        }

        @Override
        public State deserialize(int version, byte[] bytes) throws IOException {
            try (DataInputStream input = new DataInputStream(new ByteArrayInputStream(bytes))) {
                long begin = input.readLong();
                List<LoadSplit> splits = new ArrayList<>();
                for (int left = input.readInt(); left > 0; left--) {
                    byte[] serialized = input.readNBytes(input.readInt());
                    splits.add(ofSplit.deserialize(ofSplit.getVersion(), serialized));
                }
                return new State(splits, begin);
            }
        }
    }
}
