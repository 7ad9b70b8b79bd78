package meander.bench;

import java.io.Serializable;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;

/**
 * The key of every row, a function of the row's number alone.
 *
 * <p>It is the function that the other side of the benchmark computes with Spark's {@code xxhash64}
 * and {@code exp}, and that its count from first principles computes with NumPy, bit by bit.
 */
interface Keys<K> extends Serializable {

    /** The key of a row. */
    K of(long row);

    /** The number that stands for a key where keys are written down. */
    long numberOf(K key);

    /** How Flink serialises a key. */
    TypeInformation<K> type();

    /** XXH64 of eight bytes with seed 42, as Spark's {@code xxhash64} of a bigint. */
    static long hash(long value) {
        long mixed = 42L + 0x27D4EB2F165667C5L + 8L;
        mixed ^= Long.rotateLeft(value * 0xC2B2AE3D27D4EB4FL, 31) * 0x9E3779B185EBCA87L;
        mixed = Long.rotateLeft(mixed, 27) * 0x9E3779B185EBCA87L + 0x85EBCA77C2B2AE63L;
        mixed = (mixed ^ (mixed >>> 33)) * 0xC2B2AE3D27D4EB4FL;
        mixed = (mixed ^ (mixed >>> 29)) * 0x165667B19E3779F9L;
        return mixed ^ (mixed >>> 32);
    }

    /** Whole numbers below {@code keys}, all equally likely. */
    record Uniform(Workload workload) implements Keys<Long> {

        @Override
        public Long of(long row) {
            long number = row - workload.fill();
            return number < 0 ? row : Math.floorMod(hash(number), workload.keys());
        }

        @Override
        public long numberOf(Long key) {
            return key;
        }

        @Override
        public TypeInformation<Long> type() {
            return Types.LONG;
        }
    }

    /** Whole numbers from 1 to {@code keys}, number k with a chance of log(1 + 1/k) / log(keys). */
    record Zipf(Workload workload) implements Keys<Long> {

        @Override
        public Long of(long row) {
            long number = row - workload.fill();
            return number < 0
                    ? row
                    : (long) StrictMath.exp(((hash(number) >>> 11) + 0.5) * workload.scale());
        }

        @Override
        public long numberOf(Long key) {
            return key;
        }

        @Override
        public TypeInformation<Long> type() {
            return Types.LONG;
        }
    }

    /** Short texts: the letter k and a number. */
    record Texts(Keys<Long> numbers) implements Keys<String> {

        @Override
        public String of(long row) {
            return "k" + numbers.of(row);
        }

        @Override
        public long numberOf(String key) {
            return Long.parseLong(key, 1, key.length(), 10);
        }

        @Override
        public TypeInformation<String> type() {
            return Types.STRING;
        }
    }
}
