import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.util.HexFormat;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.MessageUtil;

/**
 * Reads lines "class version hex"; Kafka's own generated class reads the bytes, and the line that
 * answers is "hex json": what it writes back, and the values it read.
 */
public class MessageOracle {
    private static final String[] PACKAGES = {
        "org.apache.kafka.common.message.",
        "org.apache.kafka.common.metadata.",
        "org.apache.kafka.coordinator.group.generated.",
        "org.apache.kafka.coordinator.share.generated.",
        "org.apache.kafka.coordinator.transaction.generated.",
        "org.apache.kafka.server.log.remote.metadata.storage.generated.",
        "org.apache.kafka.storage.internals.log.",
        "org.apache.kafka.raft.generated.",
    };

    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ", -1);
            System.out.println(answer(words[0], Short.parseShort(words[1]), words[2]));
        }
    }

    private static String answer(String name, short version, String hex) throws Exception {
        Class<?> type = find(name);
        if (type == null) {
            return "unknown";
        }
        try {
            Message message = (Message) type.getDeclaredConstructor().newInstance();
            ByteBuffer bytes = ByteBuffer.wrap(HexFormat.of().parseHex(hex));
            message.read(new ByteBufferAccessor(bytes), version);
            if (bytes.hasRemaining()) {
                return "error " + bytes.remaining() + " bytes left over";
            }
            ByteBuffer written = MessageUtil.toByteBufferAccessor(message, version).buffer();
            byte[] back = new byte[written.remaining()];
            written.get(back);
            Class<?> converter = Class.forName(type.getName() + "JsonConverter");
            Method write = converter.getMethod("write", type, short.class, boolean.class);
            return HexFormat.of().formatHex(back) + " " + write.invoke(null, message, version, false);
        } catch (Exception error) {
            return "error " + String.valueOf(error).replace('\n', ' ');
        }
    }

    private static Class<?> find(String name) {
        for (String prefix : PACKAGES) {
            for (String suffix : new String[] {"Data", ""}) {
                try {
                    return Class.forName(prefix + name + suffix);
                } catch (ClassNotFoundException absent) {
                    continue;
                }
            }
        }
        return null;
    }
}
