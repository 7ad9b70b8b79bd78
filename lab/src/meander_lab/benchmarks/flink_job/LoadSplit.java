package meander.bench;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import org.apache.flink.api.connector.source.SourceSplit;
import org.apache.flink.core.io.SimpleVersionedSerializer;

/**
 * A split's place: how many of its rows are out, and when the load began.
 *
 * @param index which split
 * @param position how many of its rows are out
 * @param begin when the load began, in milliseconds since 1970, or 0 before
 */
record LoadSplit(int index, long position, long begin) implements SourceSplit {

    @Override
    public String splitId() {
        return Integer.toString(index);
    }

    /** A split as twenty bytes. */
    static final class Serializer implements SimpleVersionedSerializer<LoadSplit> {

        @Override
        public int getVersion() {
            return 1;
        }

        @Override
        public byte[] serialize(LoadSplit split) throws IOException {
            ByteArrayOutputStream bytes = new ByteArrayOutputStream();
            try (DataOutputStream output = new DataOutputStream(bytes)) {
                output.writeInt(split.index);
                output.writeLong(split.position);
                output.writeLong(split.begin);
            }
            return bytes.toByteArray();
        }

        @Override
        public LoadSplit deserialize(int version, byte[] bytes) throws IOException {
            try (DataInputStream input = new DataInputStream(new ByteArrayInputStream(bytes))) {
                return new LoadSplit(input.readInt(), input.readLong(), input.readLong());
            }
        }
    }
}
