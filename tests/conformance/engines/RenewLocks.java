import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * BOOTSTRAP TOPIC GROUP MILLIS: acquires one record, renews its lock for so long and accepts it.
 * Prints "renewed N" and, when the acceptance is committed, "accepted VALUE".
 */
public class RenewLocks {
    public static void main(String[] arguments) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", arguments[0]);
        properties.put("group.id", arguments[2]);
        properties.put("share.acknowledgement.mode", "explicit");
        properties.put("max.poll.records", "1");
        try (var consumer =
                new KafkaShareConsumer<>(properties, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(arguments[1]));
            ConsumerRecord<String, String> record = null;
            while (record == null) {
                for (var found : consumer.poll(Duration.ofSeconds(1))) {
                    record = found;
                }
            }
            long end = System.currentTimeMillis() + Long.parseLong(arguments[3]);
            int renewals = 0;
            while (System.currentTimeMillis() < end) {
                consumer.acknowledge(record, AcknowledgeType.RENEW);
                check(consumer.commitSync());
                renewals++;
                for (var found : consumer.poll(Duration.ofMillis(500))) {
                    record = found;
                }
            }
            System.out.println("renewed " + renewals);
            consumer.acknowledge(record, AcknowledgeType.ACCEPT);
            check(consumer.commitSync());
            System.out.println("accepted " + record.value());
        }
    }

    private static void check(java.util.Map<?, java.util.Optional<org.apache.kafka.common.KafkaException>> outcomes) {
        outcomes.values().forEach(outcome -> outcome.ifPresent(error -> {
            throw error;
        }));
    }
}
