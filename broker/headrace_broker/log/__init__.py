"""The log: segments in Apache Kafka's own on-disk layout, and everything that keeps them intact.

This layer owns the files below one log directory. It knows nothing of replication, of requests or
of an event loop; the caller passes the time, the leader epoch that writes, and the high watermark.
"""
