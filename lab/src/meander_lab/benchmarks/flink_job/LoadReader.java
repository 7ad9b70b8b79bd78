package meander.bench;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import org.apache.flink.api.connector.source.ReaderOutput;
import org.apache.flink.api.connector.source.SourceEvent;
import org.apache.flink.api.connector.source.SourceReader;
import org.apache.flink.api.connector.source.SourceReaderContext;
import org.apache.flink.core.io.InputStatus;

/**
 * Emits the rows of its splits in turn, each as soon as it is created.
 *
 * <p>Rows are created by the clock and never wait for the job (an open loop): a reader that was held
 * up or restarted finds all rows that were created meanwhile, as it would in a topic. At every
 * checkpoint it records how many rows of each split are out.
 */
final class LoadReader<K> implements SourceReader<K, LoadSplit> {

    private static final long PAUSE_MILLIS = 1;

    /** A split that is being read. */
    private static final class Lane {
        private final int index;
        private long position;
        private long begin;
        private boolean reported;

        private Lane(LoadSplit split) {
            this.index = split.index();
            this.position = split.position();
            this.begin = split.begin();
        }
    }

    private final SourceReaderContext context;
    private final Keys<K> keys;
    private final Workload workload;
    private final RecordFile records;
    private final List<Lane> lanes = new ArrayList<>();
    private final ScheduledExecutorService timer =
            Executors.newSingleThreadScheduledExecutor(
                    task -> {
                        Thread thread = new Thread(task, "load-timer");
                        thread.setDaemon(true);
                        return thread;
                    });
    private CompletableFuture<Void> available = CompletableFuture.completedFuture(null);
    private int turn;
    /** How many rows of the load were created when the clock was last looked at. */
    private long created;

    LoadReader(SourceReaderContext context, Keys<K> keys, Workload workload, String folder) {
        this.context = context;
        this.keys = keys;
        this.workload = workload;
        this.records = new RecordFile(folder, "positions");
    }

    @Override
    public InputStatus pollNext(ReaderOutput<K> output) {
        if (emitNext(output)) {
            return InputStatus.MORE_AVAILABLE;
        }
        created = createdByNow();
        if (emitNext(output)) {
            return InputStatus.MORE_AVAILABLE;
        }
        CompletableFuture<Void> later = new CompletableFuture<>();
        available = later;
        timer.schedule(() -> later.complete(null), PAUSE_MILLIS, TimeUnit.MILLISECONDS);
        return InputStatus.NOTHING_AVAILABLE;
    }

    /** Emits a row of the first lane, in turn, that has one. */
    private boolean emitNext(ReaderOutput<K> output) {
        for (int tried = 0; tried < lanes.size(); tried++) {
            turn = turn + 1 < lanes.size() ? turn + 1 : 0;
            Lane lane = lanes.get(turn);
            long row = workload.row(lane.index, lane.position);
            if (isCreated(lane, row)) {
                lane.position++;
                output.collect(keys.of(row));
                return true;
            }
        }
        return false;
    }

    private boolean isCreated(Lane lane, long row) {
        if (row < workload.fill()) {
            return true;
        }
        if (lane.begin == 0) {
            reportFilled(lane);
            return false;
        }
        return row - workload.fill() < created;
    }

    private void reportFilled(Lane lane) {
        if (!lane.reported) {
            lane.reported = true;
            context.sendSourceEventToCoordinator(new LoadEnumerator.Filled(lane.index));
        }
    }

    private long createdByNow() {
        for (Lane lane : lanes) {
            if (lane.begin != 0) {
                return workload.created(System.currentTimeMillis() - lane.begin);
            }
        }
        return 0;
    }

    @Override
    public void handleSourceEvents(SourceEvent event) {
        if (event instanceof LoadEnumerator.Begin start) {
            lanes.forEach(lane -> lane.begin = start.millis());
            available.complete(null);
        }
    }

    @Override
    public void addSplits(List<LoadSplit> splits) {
        splits.forEach(split -> lanes.add(new Lane(split)));
        available.complete(null);
    }

    @Override
    public List<LoadSplit> snapshotState(long checkpoint) {
        for (Lane lane : lanes) {
            records.write(
                    "{\"checkpoint\": %d, \"split\": %d, \"position\": %d, \"begin\": %d}",
                    checkpoint, lane.index, lane.position, lane.begin);
        }
        return lanes.stream()
                .map(lane -> new LoadSplit(lane.index, lane.position, lane.begin))
                .toList();
    }

    @Override
    public CompletableFuture<Void> isAvailable() {
        return available;
    }

    @Override
    public void start() {}

    @Override
    public void notifyNoMoreSplits() {}

    @Override
    public void close() {
        timer.shutdownNow();
        records.close();
    }
}
