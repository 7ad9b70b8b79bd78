package meander.bench;

import java.io.Serializable;

/**
 * Which rows there are, and when each is created.
 *
 * <p>Rows are numbered and dealt to the splits in turn, as a topic's rows to its partitions. The
 * first {@code fill} rows have the keys 0, 1, 2, ... and come as fast as they are taken. All others
 * belong to the load: row m of the load is created m / rate seconds after the load begins, whether
 * or not anybody takes it; with rate 0 it is created when it is taken.
 *
 * @param splits how many splits
 * @param keys how many keys, at most
 * @param fill how many rows fill the state before the load begins
 * @param rate rows of the load a second, or 0
 * @param scale of Zipf's law: ln(keys) / 2^53
 */
record Workload(int splits, long keys, long fill, long rate, double scale)
        implements Serializable {

    /** The number of a split's row. */
    long row(int split, long position) {
        return split + position * splits;
    }

    /** How many rows of the load are created within so many milliseconds. */
    long created(long elapsedMillis) {
        return rate == 0 ? Long.MAX_VALUE : Math.max(0, elapsedMillis) * rate / 1000;
    }
}
