import org.apache.flink.configuration.Configuration;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;

/**
 * Windows of CPU readings by Flink SQL, in a cluster of this process, up to the topic's end.
 *
 * <p>Goes on from its group's offsets; what it writes is committed with its checkpoints. Arguments:
 * bootstrap, input topic, output topic, group, directory of checkpoints.
 */
public class FlinkCpuWindows {
    public static void main(String[] arguments) throws Exception {
        Configuration settings = new Configuration();
        settings.setString("execution.checkpointing.interval", "1s");
        settings.setString("execution.checkpointing.dir", "file://" + arguments[4]);
        settings.setString("parallelism.default", "1");
        settings.setString("table.local-time-zone", "UTC");
        settings.setString("taskmanager.memory.network.min", "32mb");
        settings.setString("taskmanager.memory.network.max", "32mb");
        settings.setString("taskmanager.memory.managed.size", "32mb");
        StreamTableEnvironment tables = StreamTableEnvironment.create(
            StreamExecutionEnvironment.getExecutionEnvironment(settings));
        tables.executeSql("""
            CREATE TABLE cpu_load_stats_real (
              hostname STRING, cpu STRING, `usage` DOUBLE, occurred_at BIGINT,
              ts AS TO_TIMESTAMP_LTZ(occurred_at, 3),
              WATERMARK FOR ts AS ts - INTERVAL '10' SECOND
            ) WITH (
              'connector' = 'kafka', 'format' = 'json', 'topic' = '%s',
              'properties.bootstrap.servers' = '%s', 'properties.group.id' = '%s',
              'scan.startup.mode' = 'group-offsets', 'properties.auto.offset.reset' = 'earliest',
              'scan.bounded.mode' = 'latest-offset'
            )""".formatted(arguments[1], arguments[0], arguments[3]));
        tables.executeSql("""
            CREATE TABLE cpu_load (
              hostname STRING, cpu STRING, start_ms BIGINT,
              usage_sum DOUBLE, usage_max DOUBLE, readings BIGINT
            ) WITH (
              'connector' = 'kafka', 'format' = 'json', 'topic' = '%s',
              'properties.bootstrap.servers' = '%s',
              'properties.transaction.timeout.ms' = '60000',
              'sink.delivery-guarantee' = 'exactly-once',
              'sink.transactional-id-prefix' = '%s'
            )""".formatted(arguments[2], arguments[0], arguments[3]));
        tables.executeSql("""
            INSERT INTO cpu_load
            SELECT hostname, cpu, 1000 * UNIX_TIMESTAMP(CAST(window_start AS STRING)),
              SUM(`usage`), MAX(`usage`), COUNT(*)
            FROM TABLE(TUMBLE(TABLE cpu_load_stats_real, DESCRIPTOR(ts), INTERVAL '10' SECOND))
            GROUP BY hostname, cpu, window_start, window_end
            """).await();
        System.exit(0);
    }
}
