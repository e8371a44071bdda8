"""`headrace up`: the session that runs a cluster, and its display."""
