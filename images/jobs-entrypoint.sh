#!/bin/bash
# Entrypoint of headrace/jobs, to the contract that Spark's Kubernetes scheduler has with an image:
# `executor` becomes a JVM configured by SPARK_* variables, `driver …` becomes spark-submit in client
# mode (whatever submits from outside starts it so), and anything else runs as it is. Writes no file,
# so the root may be read-only. Contract: Spark's resource-managers/kubernetes, BasicExecutorFeatureStep.
set -euo pipefail

# spark.executor.extraClassPath first, as in a driver: shared classes are found by what comes first.
classpath=${SPARK_CLASSPATH:+$SPARK_CLASSPATH:}${SPARK_CONF_DIR:-$SPARK_HOME/conf}:${HADOOP_CONF_DIR:+$HADOOP_CONF_DIR:}$SPARK_HOME/jars/*${SPARK_EXTRA_CLASSPATH:+:$SPARK_EXTRA_CLASSPATH}

# Hadoop asks for a user's name; a cluster that chooses the number gives none.
if ! getent passwd "$(id -u)" >/dev/null; then
  export HADOOP_USER_NAME=${HADOOP_USER_NAME:-spark} SPARK_USER=${SPARK_USER:-spark}
fi

case ${1:-} in
executor)
  # SPARK_JAVA_OPT_0, SPARK_JAVA_OPT_1, …: one option each, in order, any text within.
  options=()
  for ((index = 0; ; index++)); do
    name=SPARK_JAVA_OPT_$index
    [ -n "${!name+set}" ] || break
    options+=("${!name}")
  done
  set -- "${JAVA_HOME:+$JAVA_HOME/bin/}java" "${options[@]}" \
    "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" -cp "$classpath:${SPARK_DIST_CLASSPATH:-}" \
    org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
    --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \
    --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" \
    --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME"
  ;;
driver)
  shift
  set -- "$SPARK_HOME/bin/spark-submit" --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" \
    --deploy-mode client "$@"
  ;;
esac
exec /usr/bin/tini -s -- "$@"
