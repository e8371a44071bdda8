"""What a running query reports: offsets of its ConsumerGroup, and metrics.

Spark keeps a stream's position in its checkpoint, where no lag tool looks (SPARK-27549). After each
committed batch the job also commits the batch's end offsets to its group. The checkpoint stays
authoritative: the group's offsets are for people, alerts and autoscaling; they may trail by a batch
and never run ahead.
"""
