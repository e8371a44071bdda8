import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.TimeWindows;

/**
 * The benchmark's windows by Kafka Streams, to the input's end: each goes out once, when it is closed.
 *
 * <p>At least once, one thread, its defaults else. The input's key is the CPU's. Arguments: bootstrap,
 * input topic, output topic, state directory.
 */
public class StreamsWindows {
    private static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] arguments) throws Exception {
        String input = arguments[1];
        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, "streams-" + arguments[2]);
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, arguments[3]);
        settings.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 1000);
        settings.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        settings.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        settings.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");

        StreamsBuilder builder = new StreamsBuilder();
        Serde<JsonNode> readings = Serdes.serdeFrom((topic, node) -> written(node), (topic, bytes) -> parsed(bytes));
        builder.stream(input, Consumed.with(Serdes.String(), readings)
                .withTimestampExtractor((record, before) -> ((JsonNode) record.value()).get("occurred_at").asLong()))
            .groupByKey()
            .windowedBy(TimeWindows.ofSizeAndGrace(Duration.ofSeconds(10), Duration.ofSeconds(10)))
            .aggregate(() -> "0 0", (key, reading, sums) -> {
                String[] parts = sums.split(" ");
                double greatest = Math.max(Double.parseDouble(parts[0]), reading.get("usage").asDouble());
                return greatest + " " + (Long.parseLong(parts[1]) + 1);
            })
            .suppress(Suppressed.untilWindowCloses(Suppressed.BufferConfig.unbounded()))
            .toStream((window, sums) -> window.key() + "/" + window.window().start())
            .mapValues((key, sums) -> {
                String[] names = key.split("/");
                String[] parts = sums.split(" ");
                return JSON.createObjectNode().put("hostname", names[0]).put("cpu", names[1])
                    .put("start_ms", Long.parseLong(names[2]))
                    .put("usage_max", Double.parseDouble(parts[0]))
                    .put("readings", Long.parseLong(parts[1])).toString();
            })
            .to(arguments[2]);
        try (KafkaStreams streams = new KafkaStreams(builder.build(), settings);
             Admin admin = Admin.create(Map.of("bootstrap.servers", arguments[0]))) {
            streams.start();
            while (!isAtEnd(admin, input, "streams-" + arguments[2])) {
                Thread.sleep(200);
            }
        }
    }

    private static boolean isAtEnd(Admin admin, String topic, String group) throws Exception {
        int partitions = admin.describeTopics(List.of(topic)).allTopicNames().get()
            .get(topic).partitions().size();
        Map<TopicPartition, OffsetSpec> asked = IntStream.range(0, partitions).boxed()
            .collect(Collectors.toMap(each -> new TopicPartition(topic, each), each -> OffsetSpec.latest()));
        var ends = admin.listOffsets(asked).all().get();
        var done = admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get();
        return ends.entrySet().stream().allMatch(each -> done.get(each.getKey()) != null
            && done.get(each.getKey()).offset() >= each.getValue().offset());
    }

    private static JsonNode parsed(byte[] value) {
        try {
            return JSON.readTree(value);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    private static byte[] written(JsonNode value) {
        try {
            return JSON.writeValueAsBytes(value);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }
}
