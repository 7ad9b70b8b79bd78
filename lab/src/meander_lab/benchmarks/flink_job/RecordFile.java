package meander.bench;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.io.Writer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Locale;
import java.util.UUID;

/** A file of its own for each task and attempt, one JSON object a line, whole as soon as it is written. */
final class RecordFile implements AutoCloseable {

    private final Writer writer;

    RecordFile(String folder, String kind) {
        try {
            writer = Files.newBufferedWriter(Path.of(folder, kind + "-" + UUID.randomUUID() + ".jsonl"));
        } catch (IOException problem) {
            throw new UncheckedIOException(problem);
        }
    }

    void write(String format, Object... values) {
        try {
            writer.write(String.format(Locale.ROOT, format, values) + "\n");
            writer.flush();
        } catch (IOException problem) {
            throw new UncheckedIOException(problem);
        }
    }

    @Override
    public void close() {
        try {
            writer.close();
        } catch (IOException problem) {
            throw new UncheckedIOException(problem);
        }
    }
}
