import java.time.Duration;
import java.util.Properties;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.TimeWindows;

/**
 * Windows of CPU readings by Kafka Streams: event times out of the values, ten seconds of grace.
 *
 * <p>The input's key is the CPU's. Each window goes out once, when it is closed. Arguments:
 * bootstrap, input topic, output topic, application, state directory.
 */
public class StreamsCpuWindows {
    private static final Pattern TIME = Pattern.compile("\"occurred_at\": *(\\d+)");
    private static final Pattern USAGE = Pattern.compile("\"usage\": *([\\d.]+)");

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, arguments[3]);
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, arguments[4]);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 100);
        settings.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        settings.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        settings.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
        settings.put(ConsumerConfig.MAX_POLL_RECORDS_CONFIG, 50);
        settings.put(ConsumerConfig.SESSION_TIMEOUT_MS_CONFIG, 6000);
        settings.put(ConsumerConfig.HEARTBEAT_INTERVAL_MS_CONFIG, 500);
        settings.put(StreamsConfig.producerPrefix(ProducerConfig.TRANSACTION_TIMEOUT_CONFIG), 10000);

        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(arguments[1], Consumed.with(Serdes.String(), Serdes.String())
                .withTimestampExtractor((record, before) -> (long) number(TIME, (String) record.value())))
            .groupByKey()
            .windowedBy(TimeWindows.ofSizeAndGrace(Duration.ofSeconds(10), Duration.ofSeconds(10)))
            .aggregate(() -> "0 0 0", (key, value, sums) -> {
                String[] parts = sums.split(" ");
                double usage = number(USAGE, value);
                return (Double.parseDouble(parts[0]) + usage)
                    + " " + Math.max(Double.parseDouble(parts[1]), usage)
                    + " " + (Long.parseLong(parts[2]) + 1);
            })
            .suppress(Suppressed.untilWindowCloses(Suppressed.BufferConfig.unbounded()))
            .toStream((window, sums) -> window.key() + "@" + window.window().start())
            .to(arguments[2]);
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(Duration.ofSeconds(20))));
        // On a busy machine a restored segment of its window store was "currently closed" once, which
        // ends the thread. Applications replace it, and exactly once holds all the same.
        streams.setUncaughtExceptionHandler(thrown -> StreamThreadExceptionResponse.REPLACE_THREAD);
        streams.start();
        Thread.currentThread().join();
    }

    private static double number(Pattern pattern, String json) {
        Matcher found = pattern.matcher(json);
        if (!found.find()) {
            throw new IllegalArgumentException(json);
        }
        return Double.parseDouble(found.group(1));
    }
}
