"""What a running query reports: offsets of its ConsumerGroup, and metrics.

Spark keeps a stream's position in its checkpoint, where no lag tool looks (SPARK-27549). After each
committed batch the job commits the batch's end offsets to its group as well. The checkpoint stays
the truth: the group's offsets are for people, alerts and autoscaling, they may trail by a batch
and never run ahead.
"""
