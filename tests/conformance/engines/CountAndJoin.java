import java.time.Duration;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Produced;

/**
 * Counts orders by customer and joins each with the customer's name, exactly once.
 *
 * <p>Topics: orders (customer to number) and customers (customer to name) in; counts (customer to
 * how many so far) and joined (customer to number:name) out. Arguments: bootstrap, state directory.
 */
public class CountAndJoin {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, "count-and-join");
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, arguments[1]);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 2);
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 50);
        // Each update goes out, so that a lost or a repeated one shows.
        settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
        settings.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        settings.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        settings.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
        // Small polls, so that a kill comes in the middle of the input; a killed one is missed soon.
        settings.put(ConsumerConfig.MAX_POLL_RECORDS_CONFIG, 100);
        settings.put(ConsumerConfig.SESSION_TIMEOUT_MS_CONFIG, 6000);
        settings.put(ConsumerConfig.HEARTBEAT_INTERVAL_MS_CONFIG, 500);
        settings.put(StreamsConfig.producerPrefix(ProducerConfig.TRANSACTION_TIMEOUT_CONFIG), 10000);

        StreamsBuilder builder = new StreamsBuilder();
        KStream<String, String> orders = builder.stream("orders");
        orders.groupByKey().count().toStream()
            .to("counts", Produced.with(Serdes.String(), Serdes.Long()));
        orders.join(builder.<String, String>table("customers"), (order, name) -> order + ":" + name)
            .to("joined");

        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            return StreamThreadExceptionResponse.REPLACE_THREAD;
        });
        CountDownLatch end = new CountDownLatch(1);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            streams.close(Duration.ofSeconds(20));
            end.countDown();
        }));
        streams.start();
        end.await();
    }
}
