import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.HexFormat;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.common.record.MutableRecordBatch;
import org.apache.kafka.common.record.Record;

/** Reads a batch in hex from each line; answers with its records as "offset:timestamp:key:value". */
public class BatchOracle {
    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            StringBuilder out = new StringBuilder();
            ByteBuffer bytes = ByteBuffer.wrap(HexFormat.of().parseHex(line));
            for (MutableRecordBatch batch : MemoryRecords.readableRecords(bytes).batches()) {
                batch.ensureValid();
                for (Record record : batch) {
                    record.ensureValid();
                    out.append(record.offset()).append(':').append(record.timestamp());
                    out.append(':').append(hex(record.key())).append(':').append(hex(record.value()));
                    out.append(' ');
                }
            }
            System.out.println(out.toString().trim());
        }
    }

    private static String hex(ByteBuffer bytes) {
        if (bytes == null) {
            return "null";
        }
        byte[] copy = new byte[bytes.remaining()];
        bytes.get(copy);
        return HexFormat.of().formatHex(copy);
    }
}
