"""The log: segments in Apache Kafka's own on-disk layout, and everything that keeps them true.

This layer owns the files below one log directory. It knows nothing of replication, of requests
or of an event loop; the caller says what time it is, which leader epoch writes, and how far the
high watermark has come.
"""
